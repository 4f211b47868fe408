"""How values are written for people: numbers, durations, sizes, times, digests. Nothing here raises for odd content."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from typing import Any

NONE = "\u2013"
# Control characters have no glyph, and a lone surrogate has no UTF-8.
_NO_GLYPH = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_KEEP_WHOLE = 1e15


def text(value: Any, limit: int = 2000) -> str:
    """Any value as text of at most ``limit`` characters that can be encoded and shown.

    >>> text({"r": 16}), text(None), text("abcdef", 3)
    ('{"r": 16}', '', 'abc… (3 more characters)')
    """
    if value is None:
        return ""
    whole = value if isinstance(value, str) else _as_json(value)
    whole = _NO_GLYPH.sub("\ufffd", whole.replace("\r\n", "\n"))
    if len(whole) <= limit:
        return whole
    return f"{whole[:limit]}\u2026 ({len(whole) - limit:,} more characters)"


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        return NONE


def finite(value: Any) -> float | None:
    """A number that can be drawn or added, else None; text and booleans are no numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def number(value: Any, digits: int = 4) -> str:
    """Four significant digits, thousands separated.

    >>> number(3.07123), number(61840), number(2e-4), number(1e30), number(float("nan")), number(None)
    ('3.071', '61,840', '0.0002', '1e+30', 'nan', '\u2013')
    """
    if value is None:
        return NONE
    amount = finite(value)
    if amount is None:
        return text(str(value), 40)
    if amount == int(amount) and abs(amount) < _KEEP_WHOLE:
        return f"{int(amount):,}"
    if abs(amount) >= 10**digits and abs(amount) < _KEEP_WHOLE:
        return f"{amount:,.0f}"
    return f"{amount:.{digits}g}"


def duration(seconds: float | None) -> str:
    """A time span with its two largest units.

    >>> duration(3.14), duration(41.2), duration(188), duration(7500), duration(200000)
    ('3.1 s', '41 s', '3 min 8 s', '2 h 5 min', '2 d 7 h')
    """
    if seconds is None or not 0 <= seconds < 1e12:
        return NONE
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400:,} d {whole % 86400 // 3600} h"


def size(amount: Any) -> str:
    """A count of bytes with a decimal prefix.

    >>> size(812), size(269_060_552)
    ('812 B', '269.1 MB')
    """
    count = finite(amount)
    if count is None or count < 0:
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def moment(value: Any) -> datetime | None:
    """An RFC 3339 time, or None; one without an offset is none, as it cannot be compared."""
    try:
        parsed = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return parsed if parsed.tzinfo else None


def clock(value: datetime | None) -> str:
    """A time to the second, in UTC as the records are."""
    return value.strftime("%Y-%m-%d %H:%M:%S UTC") if value else NONE


def short_digest(digest: str) -> str:
    """The first 12 hex digits.

    >>> short_digest("sha256-tree:0123456789abcdef0123")
    '0123456789ab'
    """
    return digest.rpartition(":")[2][:12]


def last_part(uri: str) -> str:
    """The last part of a path or URI."""
    return uri.rstrip("/").rpartition("/")[2] or uri
