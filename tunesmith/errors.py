"""Errors that a person reads: what, where, and what to write instead.

Each has an id that ``docs/errors.md`` explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TunesmithError(Exception):
    """Base of the errors that tunesmith raises on purpose; its text is for the user and needs no traceback.

    Args:
        message: one or a few sentences: what, where, what to do.
        id: kebab-case, explained in ``docs/errors.md``.
    """

    default_id = "error"
    fault = "system"
    exit_code = 1

    def __init__(self, message: str, id: str = ""):
        super().__init__(message)
        self.message = message
        self.id = id or type(self).default_id

    def __str__(self) -> str:
        return self.message


class BadInput(TunesmithError, ValueError):
    """What the user gave cannot be used; nothing was started, or what was started is undone.

    Attributes:
        problems: each problem on its own (20 at most), such as "line 7: ..."; empty where the sentence says it all.
    """

    default_id = "bad-input"
    fault = "user"
    exit_code = 2

    def __init__(self, message: str, id: str = "", *, problems: Sequence[str] = ()):
        super().__init__("\n  ".join([message, *problems]), id)
        self.problems: tuple[Any, ...] = tuple(problems)
