"""The record of one step: what it read and wrote, with digests, what it ran, what came of it and what it cost.

A record is one canonical JSON text (RFC 8785) of at most 16 KiB. It is written, whether the step succeeds or fails, to
``<run root>/tunesmith/<task>/<identity>.<attempt>.json`` and travels as metadata of the step's ``record`` artifact.
``prev`` holds the digests of the records that produced the inputs, so that the records of a run form a hash chain which
can be checked without a server. Unknown ``schema`` values must be refused by readers, unknown keys kept.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import rfc8785

from tunesmith.lineage.digest import digest_text

SCHEMA = "tunesmith.dev/record/v1"
LIMIT_BYTES = 16 * 1024

# Metadata keys of artifacts. Values are strings: KFP turns booleans into ints and None into a failed task.
KEY_DIGEST = "tunesmith_digest"
KEY_RECORD = "tunesmith_record"
KEY_RECORD_DIGEST = "tunesmith_record_digest"

_LARGEST_EXACT = 2**53 - 1
_LONG_VALUE = 512
_REDACTED = "<redacted>"
_DEEPEST = 12
# Names by which parameters and environment variables hold secrets, and names that only look so: counts of tokens.
_SECRET = re.compile(
    r"secret|passw|passphrase|(^|_)(pass|pwd|pw|auth|key)($|_)|token|bearer|credential|authorization|cookie|"
    r"api_?key|private_?key|access_?key|connection_?string",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(r"(max_|min_|num_|n_)?(new_)?tokens(_per_second)?|tokenizer|useful_tokens", re.IGNORECASE)
_URL_SECRETS = re.compile(
    r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)(?:(?P<user>[^/@\s]+)@)?(?P<place>[^?\s]*)(?P<query>\?\S*)?"
)
_SHORTEST_SECRET = 4  # characters; shorter ones would blot out half of every text


@dataclass(frozen=True)
class Item:
    """An artifact that a step read or wrote. ``digest`` is empty only if the step failed before it was written."""

    name: str
    uri: str
    type: str = ""
    digest: str = ""
    bytes: int = 0


@dataclass(frozen=True)
class Attempt:
    """One object that the step launched. Times are RFC 3339 in UTC; ``seconds`` counts from start to end of running."""

    name: str
    kind: str
    uid: str
    state: str
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    fault: str = ""
    started: str = ""
    ended: str = ""
    seconds: float = 0.0
    restarts: int = 0
    cost: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Why a step failed and who is at fault: user, system or capacity; ``docs/errors.md`` explains ``id``."""

    fault: str
    reason: str
    message: str
    log_tail: tuple[str, ...] = ()
    id: str = ""


@dataclass(frozen=True)
class Record:
    """What a step did. ``state`` is one of the closed states; ``cost`` as `tunesmith.cost.Cost.to_json` gives it."""

    task: str
    component: str
    identity: str
    attempt: int
    state: str
    started: str
    ended: str
    seconds: float
    run: Mapping[str, str]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Item, ...] = ()
    outputs: tuple[Item, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    cost: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    prev: tuple[str, ...] = ()
    schema: str = SCHEMA

    def text(self) -> str:
        """The canonical JSON.

        Raises:
            ValueError: more than 16 KiB; big things belong into artifacts.
        """
        text = rfc8785.dumps(_plain(dataclasses.asdict(self))).decode()
        if len(text.encode()) > LIMIT_BYTES:
            raise ValueError(f"the record of {self.task} has {len(text.encode())} bytes, more than {LIMIT_BYTES}")
        return text

    @property
    def digest(self) -> str:
        """``sha256:<hex>`` of the canonical JSON."""
        return digest_text(self.text())

    @classmethod
    def parse(cls, text: str) -> Record:
        """Read a record back.

        Raises:
            ValueError: not JSON, of an unknown schema, or not in canonical form (so somebody changed it).
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"not a record: {error}") from None
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"not a record of schema {SCHEMA}")
        if rfc8785.dumps(data).decode() != text:
            raise ValueError("not in canonical form: somebody changed it")
        names = {f.name for f in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in names}
        values["inputs"] = tuple(Item(**item) for item in data.get("inputs", ()))
        values["outputs"] = tuple(Item(**item) for item in data.get("outputs", ()))
        values["attempts"] = tuple(Attempt(**attempt) for attempt in data.get("attempts", ()))
        values["prev"] = tuple(data.get("prev", ()))
        if failure := data.get("failure"):
            values["failure"] = Failure(**{**failure, "log_tail": tuple(failure.get("log_tail", ()))})
        return cls(**values)


def public_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as they may stand in a record.

    Secrets are redacted: by name, and user and query of every URL. Long texts are replaced by their digest.
    """
    return {name: _public(name, value, 0) for name, value in parameters.items()}


def secret_values(parameters: Mapping[str, Any]) -> set[str]:
    """The texts that `public_parameters` takes out, to be taken out of messages and logs too."""
    found: set[str] = set()
    _collect_secrets("", parameters, found, 0)
    return {value for value in found if len(value) >= _SHORTEST_SECRET}


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """``text`` with every secret in it, and user and query of every URL, replaced."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _REDACTED)
    return _URL_SECRETS.sub(_public_url, text)


def _is_secret(name: str) -> bool:
    spelled = re.sub(r"[^A-Za-z0-9]+", "_", name)
    return bool(_SECRET.search(spelled)) and not _NOT_SECRET.fullmatch(spelled)


def _public(name: str, value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return "<nested too deeply>"
    if isinstance(value, Mapping):
        return {str(key): _public(str(key), inner, depth + 1) for key, inner in value.items()}
    if value and _is_secret(name):
        return _REDACTED
    if isinstance(value, (list, tuple)):
        return [_public("", inner, depth + 1) for inner in value]
    if isinstance(value, str):
        value = _URL_SECRETS.sub(_public_url, value)
        return f"<{len(value)} characters, {digest_text(value)}>" if len(value) > _LONG_VALUE else value
    return value


def _public_url(match: re.Match[str]) -> str:
    user = f"{_REDACTED}@" if match["user"] else ""
    query = f"?{_REDACTED}" if match["query"] else ""
    return f"{match['scheme']}{user}{match['place']}{query}"


def _collect_secrets(name: str, value: Any, found: set[str], depth: int) -> None:
    if depth > _DEEPEST:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _collect_secrets(str(key), inner, found, depth + 1)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _collect_secrets(name, inner, found, depth + 1)
    elif isinstance(value, str):
        if _is_secret(name):
            found.add(value)
        for match in _URL_SECRETS.finditer(value):
            found.update(part.lstrip("?") for part in (match["user"], match["query"]) if part)
            found.update((match["user"] or "").split(":")[1:])


def _plain(value: Any) -> Any:
    """Values that canonical JSON can hold.

    Tuples become lists; numbers that are not finite, or that JSON readers do not keep exactly, become text; lone
    surrogates, which have no UTF-8, question marks.
    """
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value if abs(value) <= _LARGEST_EXACT else str(value)
    return str(value).encode("utf-8", "replace").decode()
