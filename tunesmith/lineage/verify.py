"""Check the records of finished runs against what lies on disk, without a server.

A run is a folder that holds ``tunesmith/<task>/<identity>.<attempt>.json``; a WORKDIR holds several under ``runs/``.
Four things vouch for each other, so that one changed byte in any of them is found:

- a record is canonical JSON, and the digest of its text is in the ``prev`` of the records that consumed its outputs;
- the same text is the content of the step's ``record`` artifact, at ``<run>/<task>/record``;
- each artifact and each file that a record lists has the recorded digest;
- an input's digest is the one that its producer recorded.

Whoever can write all of them consistently is not found; for that, keep a record's digest elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tunesmith.lineage.digest import digest_path, digest_text
from tunesmith.lineage.record import LIMIT_BYTES, SCHEMA, Item, Record
from tunesmith.lineage.store import FOLDER, Store

RUNS = "runs"
COPY = "record"

# What reading a file that anybody may have written can raise; each is a finding, none ends the check.
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError)


@dataclass(frozen=True)
class Finding:
    """Something that does not hold: ``what`` it is, ``where``, and the digests (or texts) expected and found."""

    what: str
    where: str
    expected: str = ""
    found: str = ""

    def __str__(self) -> str:
        """One line for people."""
        differ = f" (expected {self.expected or 'nothing'}, found {self.found or 'nothing'})"
        return f"{self.where}: {self.what}{differ if self.expected or self.found else ''}"


@dataclass(frozen=True)
class Verification:
    """The outcome: what does not hold, and how many records, artifacts and artifact bytes were checked."""

    problems: list[Finding]
    records: int
    artifacts: int
    bytes: int

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, for ``--json``."""
        return {"ok": self.ok, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class _Stored:
    """A record as it lies in a run's store."""

    run: Path
    path: str
    text: str
    record: Record

    @property
    def where(self) -> str:
        return str(self.run / FOLDER / self.path)


@dataclass
class _Check:
    problems: list[Finding] = field(default_factory=list)
    digests: dict[Path, str] = field(default_factory=dict)
    bytes: int = 0
    moved: dict[Path, Path] = field(default_factory=dict)

    def add(self, what: str, where: str, expected: str = "", found: str = "") -> None:
        finding = Finding(what, where, expected, found)
        if finding not in self.problems:
            self.problems.append(finding)

    def digest(self, path: Path) -> str:
        """The digest of a path, computed once. Raises what `digest_path` raises."""
        if path not in self.digests:
            digest = digest_path(path)
            self.digests[path] = digest.text
            self.bytes += digest.bytes
        return self.digests[path]


def verify(root: Path) -> Verification:
    """Check a run's folder or all runs of a WORKDIR; what is missing is a problem as well.

    Args:
        root: a folder that holds ``tunesmith/`` (one run) or ``runs/`` (several). If it is one run of a WORKDIR, its
            records may refer to those of the other runs.
    """
    root, check = Path(root).absolute(), _Check()
    runs = _runs(root)
    stored = [one for run in runs for one in _stored(run, check)]
    if not stored:
        check.add("no records here: give the folder of a run or the WORKDIR of several", str(root))
    siblings = [run for run in _runs(root.parent.parent) if run not in runs] if root.parent.name == RUNS else []
    known = stored + [one for run in siblings for one in _stored(run, _Check())]
    check.moved = _moved(known)

    for one in stored:
        _check_name(one, check)
        _check_chain(one, {digest_text(other.text) for other in known}, check)
    for run in runs:
        _check_copies(run, [one for one in stored if one.run == run], check)
    latest, producers = _latest(stored), _producers(_latest(known), check)
    for one in latest:
        _check_items(one, producers, check)
        _check_files(one, check)
    return Verification(check.problems, len(stored), len(check.digests), check.bytes)


def _runs(root: Path) -> list[Path]:
    if (root / FOLDER).is_dir():
        return [root]
    return sorted(run for run in (root / RUNS).glob("*") if run.is_dir())


def _stored(run: Path, check: _Check) -> Iterator[_Stored]:
    """The records of a run that can be read; the others are findings."""
    for path in Store(run).record_paths():
        where = run / FOLDER / path
        try:
            text = _read(where)
            record = Record.parse(text)
            _check_types(record)
        except _UNREADABLE as error:
            check.add(f"not a record: {_short(error)}", str(where))
        else:
            yield _Stored(run, path, text, record)


def _read(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError("not a file")
    with path.open("rb") as stream:
        content = stream.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise ValueError(f"larger than {LIMIT_BYTES} bytes")
    return content.decode()


def _check_types(record: Record) -> None:
    """Refuse values that the checks below cannot work with."""
    texts = [record.task, record.identity, record.state, *record.prev]
    texts += [text for item in (*record.inputs, *record.outputs) for text in (item.name, item.uri, item.digest)]
    if not all(isinstance(text, str) for text in texts) or not isinstance(record.details, Mapping):
        raise ValueError("a field has a wrong type")


def _moved(stored: Iterable[_Stored]) -> dict[Path, Path]:
    """Where runs lay when they were recorded, and where they lie now.

    So a copied WORKDIR is checked itself, and not the one it was copied from.
    """
    places: dict[Path, Path] = {}
    for one in stored:
        root = one.record.run.get("root") if isinstance(one.record.run, Mapping) else None
        if isinstance(root, str) and (path := _local(root)):
            places[path] = one.run
    return places


def _local(uri: str) -> Path | None:
    """The local path that a URI means, or None."""
    if uri.startswith("/"):
        return Path(os.path.normpath(uri))
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    is_local = parts.scheme == "file" and parts.netloc in ("", "localhost")
    return Path(os.path.normpath(unquote(parts.path))) if is_local and parts.path else None


def _path_now(uri: str, check: _Check) -> Path | None:
    path = _local(uri)
    for parent in path.parents if path else ():
        if path and parent in check.moved:
            return check.moved[parent] / path.relative_to(parent)
    return path


def _check_name(one: _Stored, check: _Check) -> None:
    record = one.record
    expected = f"{record.task}/{record.identity}.{record.attempt}.json"
    if one.path != expected:
        check.add("the record belongs elsewhere", one.where, expected, one.path)


def _check_chain(one: _Stored, known: set[str], check: _Check) -> None:
    if "shortened" in one.record.details:
        return  # it had too many for 16 KiB and names them by one digest
    for digest in one.record.prev:
        if digest not in known:
            check.add("the record that produced an input is missing or was changed", one.where, digest)


def _check_copies(run: Path, stored: list[_Stored], check: _Check) -> None:
    """Compare each record with the step's ``record`` artifact."""
    by_key = {_key(one.record.task, one.record.identity, one.record.attempt): one for one in stored}
    tasks, seen = {one.record.task for one in stored}, set()
    for path in _copies(run):
        try:
            text = _read(path)
            data = json.loads(text)
            key = _key(path.parent.name, data["identity"], data["attempt"])
            is_record = data["schema"] == SCHEMA
        except _UNREADABLE as error:
            if path.parent.name in tasks:
                check.add(f"the record artifact is not a record: {_short(error)}", str(path))
            continue
        seen.add(key)
        if key in by_key and by_key[key].text != text:
            check.add(f"differs from the record artifact {path}", by_key[key].where, digest_text(text),
                      digest_text(by_key[key].text))  # fmt: skip
        elif key not in by_key and is_record:
            check.add(f"the record of the record artifact {path} is missing", str(run / FOLDER), digest_text(text))
    for one in _latest(stored):
        if one.record.state == "SUCCEEDED" and _key(*_name(one), one.record.attempt) not in seen:
            check.add("the step's record artifact is missing", one.where, digest_text(one.text))


def _copies(run: Path) -> Iterator[Path]:
    """Files called ``record`` outside the store: loops nest them deeper than ``<run>/<task>/record``."""
    for folder, subfolders, files in os.walk(run):
        if folder == str(run) and FOLDER in subfolders:
            subfolders.remove(FOLDER)
        subfolders.sort()
        if COPY in files:
            yield Path(folder) / COPY


def _key(task: object, identity: object, attempt: object) -> tuple[str, str, str]:
    return str(task), str(identity), str(attempt)


def _name(one: _Stored) -> tuple[str, str]:
    return one.record.task, one.record.identity


def _latest(stored: Iterable[_Stored]) -> list[_Stored]:
    """The last attempt of each step: it overwrote what the attempts before it had written."""
    last: dict[tuple[Path, str, str], _Stored] = {}
    for one in stored:
        key = (one.run, *_name(one))
        if key not in last or _attempt(one) >= _attempt(last[key]):
            last[key] = one
    return list(last.values())


def _attempt(one: _Stored) -> int:
    return one.record.attempt if isinstance(one.record.attempt, int) else -1


def _producers(latest: Iterable[_Stored], check: _Check) -> dict[str, tuple[Item, _Stored]]:
    """Which record wrote the artifact of each URI."""
    return {_uri(item, check): (item, one) for one in latest for item in one.record.outputs if item.digest}


def _uri(item: Item, check: _Check) -> str:
    path = _path_now(item.uri, check)
    return str(path) if path else item.uri.rstrip("/")


def _check_items(one: _Stored, producers: Mapping[str, tuple[Item, _Stored]], check: _Check) -> None:
    """Recompute the digests of what lies here, and compare inputs with what their producers recorded."""
    for role, items in (("output", one.record.outputs), ("input", one.record.inputs)):
        for item in items:
            label = f"{role} {item.name} of {one.record.task}"
            if not item.digest:
                if one.record.state == "SUCCEEDED" and item.name != COPY:
                    check.add(f"{label} has no digest", one.where)
                continue
            if (path := _path_now(item.uri, check)) is not None:
                _compare(f"{label} changed", path, item.digest, check)
            producer = producers.get(_uri(item, check))
            if role == "input" and producer and producer[0].digest != item.digest:
                check.add(f"{label} is not what {producer[1].record.task} wrote", one.where, producer[0].digest,
                          item.digest)  # fmt: skip


def _check_files(one: _Stored, check: _Check) -> None:
    """Recompute the digests of the files that the step left beside its record."""
    files = one.record.details.get("files", {})
    if not isinstance(files, Mapping):
        check.add("details.files is not a map of names to digests", one.where)
        return
    folder = one.run / FOLDER / one.record.task
    for name, digest in files.items():
        path = Path(os.path.normpath(folder / name))
        if not path.is_relative_to(folder) or path == folder:
            check.add(f"details.files names {name!r}, which is not beside the record", one.where)
        else:
            _compare("file beside the record changed", path, str(digest), check)


def _compare(what: str, path: Path, expected: str, check: _Check) -> None:
    try:
        found = check.digest(path)
    except FileNotFoundError:
        check.add(what.replace("changed", "is missing"), str(path), expected)
    except _UNREADABLE as error:
        check.add(f"{what}: {_short(error)}", str(path), expected)
    else:
        if found != expected:
            check.add(what, str(path), expected, found)


def _short(error: BaseException) -> str:
    return f"{error}"[:200] or type(error).__name__
