"""A cluster in a folder: the same objects as Kubernetes keeps, in SQLite, and processes instead of pods.

The folder holds::

    cluster.db         objects, and a journal of their changes from which `LocalCluster.watch` reads (SQLite, WAL)
    controllers/       <uid>.lock (held while the object's controller lives; says "done" after it) and <uid>.log
    pods/<pod uid>/    what the supervisor of each container attempt was told, and what it reported
    logs/              <pod uid>.<attempt>.log: stdout and stderr of the container

Creating a PyTorchJob or an InferenceService starts a controller, a process of its own that outlives its creator; so
does opening the folder again when a controller has died. Several processes may use one folder at once, on one machine
(not over a network file system: SQLite's shared memory does not reach across).
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from tunesmith.clusters.admission import CONTROLLED, admit, kind_of
from tunesmith.clusters.base import (
    AlreadyExists,
    Conflict,
    Manifest,
    NotFound,
    Refused,
    Unavailable,
    WatchEvent,
)
from tunesmith.errors import BadInput
from tunesmith.resources import KINDS, POD, PYTORCHJOB, Kind

Manifests = list[Manifest]  # inside LocalCluster, `list` is one of its verbs
Command = list[str]

POLL_S = 0.025
CARE_S = 2.0  # how often a watch looks whether all controllers live
JOURNAL_ROWS = 4096
_ENDED = ("Succeeded", "Failed")
_LONGEST_PATH = 500  # bytes; SQLite opens no file whose path has more than 511, with "-journal" at its end
# What a later call may not meet any more; other errors say that the database itself is not what it should be.
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_PASSING |= {sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    uid TEXT PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    root TEXT NOT NULL,  -- uid of the object whose controller looks after this one
    body TEXT NOT NULL, UNIQUE (kind, namespace, name));
CREATE INDEX IF NOT EXISTS objects_by_root ON objects (root);
CREATE TABLE IF NOT EXISTS journal (
    version INTEGER PRIMARY KEY AUTOINCREMENT, type TEXT NOT NULL, kind TEXT NOT NULL, namespace TEXT NOT NULL,
    body TEXT NOT NULL);
"""


def now() -> str:
    """The present moment as Kubernetes writes it."""
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merge(target: Any, patch: Any) -> Any:
    """``target`` after the JSON merge patch (RFC 7386); neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def difference(old: Manifest, new: Manifest) -> Manifest:
    """The JSON merge patch that makes ``new`` of ``old``."""
    patch: Manifest = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            patch |= {key: change} if (change := difference(before, value)) else {}
        elif key not in old or before != value:
            patch[key] = value
    return patch


def clean_environment() -> dict[str, str]:
    """What every process of the cluster starts from: the running interpreter's programs first, and no secret."""
    programs = str(Path(sys.executable).parent)
    others = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder != programs]
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return {"PATH": os.pathsep.join([programs, *others])} | kept


class Stopwatch:
    """How long ago stamped moments were, though somebody sets the clock.

    The wall clock is asked once, at the first look at a moment; from then on the monotonic clock counts.
    """

    def __init__(self) -> None:
        self._began: dict[object, float] = {}

    def since(self, moment: object, wall_s: float) -> float:
        """Seconds since the moment known as ``moment``, which was at ``wall_s`` seconds since the epoch."""
        if moment not in self._began:
            self._began[moment] = time.monotonic() - max(0.0, time.time() - wall_s)
        return time.monotonic() - self._began[moment]

    def since_stamp(self, uid: str, stamp: str) -> float:
        """Seconds since a time in the object ``uid``, as Kubernetes writes it."""
        return self.since((uid, stamp), datetime.fromisoformat(stamp).timestamp())


class Changes:
    """Tells, for the price of a read of shared memory, whether anything in the cluster has changed."""

    def __init__(self, folder: Path, db: sqlite3.Connection):
        self._folder = folder
        self._db = db
        self._seen: object = None

    def any(self) -> bool:
        """Whether another connection wrote since the last call; true at the first. Raises `Unavailable`."""
        with _translated(self._folder):
            version = self._db.execute("PRAGMA data_version").fetchone()
        changed: bool = version != self._seen
        self._seen = version
        return changed


class LocalCluster:
    """A `Cluster` whose objects live in ``folder``.

    Attributes:
        folder: where everything is kept; made if missing.
        namespace: the namespace of manifests that name none.
    """

    def __init__(self, folder: Path, *, namespace: str = "default", revive: bool = True):
        """Open the cluster in ``folder``; with ``revive`` also do what `revive` does, now and in each `watch`.

        Raises:
            BadInput: no cluster can be kept there, or what is there is broken.
            Unavailable: another process keeps the database locked, or the disk is full.
        """
        self.folder = Path(folder).absolute()
        self.namespace = namespace
        self._stopwatch = Stopwatch()
        self._make_folders()
        with _translated(self.folder, opening=True):
            self._make_database()
            # While one connection is open, the end of another does not write the whole journal back and wait for the
            # disk.
            self._anchor = self._connect()
        self._cares = revive
        if revive:
            self.revive()

    def __repr__(self) -> str:
        return f"LocalCluster({str(self.folder)!r})"

    # The eight verbs.

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """See `Cluster.create`. A PyTorchJob or InferenceService gets a controller at once."""
        kind = kind_of(manifest)
        body = self._born(kind, manifest)
        admit(kind, body)
        metadata = body["metadata"]
        with self._transaction(write=True) as db:
            if found := _find(db, kind, metadata["namespace"], metadata["name"]):
                leaving = "object is being deleted: " if "deletionTimestamp" in found["metadata"] else ""
                raise AlreadyExists(f'{leaving}{kind.plural} "{metadata["name"]}" already exists')
            if dry_run:
                return body
            root = metadata["uid"] if kind in CONTROLLED else _root_of_owners(db, body)
            _insert(db, kind, body, root)
        if kind in CONTROLLED:
            self._ensure_controller(metadata["uid"])
        return body

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """See `Cluster.get`."""
        with self._transaction() as db:
            return _must_find(db, kind, namespace, name)

    def list(self, kind: Kind, namespace: str, labels: Mapping[str, str] | None = None) -> Manifests:
        """See `Cluster.list`."""
        with self._transaction() as db:
            return _select(db, kind, namespace, None, labels)

    def watch(
        self,
        kind: Kind,
        namespace: str,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[WatchEvent]:
        """See `Cluster.watch`. Looks for news every `POLL_S` seconds, which costs one read of shared memory."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        known: dict[str, Manifest] = {}
        position = -1
        care_at = time.monotonic() + CARE_S
        with _translated(self.folder):
            db = self._connect()
        changes = Changes(self.folder, db)
        try:
            while True:
                if changes.any():  # asked before the rows are read, so that nothing in between is missed
                    with _translated(self.folder):
                        news, position = _news(db, kind, namespace, name, labels, known, position)
                    yield from news
                elif end is not None and time.monotonic() >= end:
                    return
                elif self._cares and time.monotonic() >= care_at:
                    self.revive()  # else a watch might wait for ever for what nobody does any more
                    care_at = time.monotonic() + CARE_S
                else:
                    time.sleep(POLL_S if end is None else max(0.0, min(POLL_S, end - time.monotonic())))
        finally:
            db.close()

    def patch(
        self, kind: Kind, namespace: str, name: str, patch: Manifest, *, subresource: Literal["status"] | None = None
    ) -> Manifest:
        """See `Cluster.patch`. A patch that changes nothing makes no new version."""
        with self._transaction(write=True) as db:
            old = _must_find(db, kind, namespace, name)
            new = _patched(kind, old, patch, subresource)
            if new == old:
                return old
            if subresource is None:
                admit(kind, new)
            _update(db, kind, new)
            if "deletionTimestamp" in new["metadata"] and not new["metadata"].get("finalizers"):
                self._remove(db, kind, new)
        if kind in CONTROLLED and subresource is None:
            self._ensure_controller(new["metadata"]["uid"])
        return new

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str | None = None) -> None:
        """See `Cluster.delete`. Pods whose processes still run stay, marked, until their controller has ended them."""
        with self._transaction(write=True) as db:
            body = _find(db, kind, namespace, name)
            if body is None:
                return
            if uid is not None and uid != body["metadata"]["uid"]:
                raise Conflict(f'{kind.plural} "{name}" has uid {body["metadata"]["uid"]}, not {uid}')
            root = db.execute("SELECT root FROM objects WHERE uid = ?", (body["metadata"]["uid"],)).fetchone()[0]
            self._remove(db, kind, body)
        if root and self._unattended(root):
            self._ensure_controller(root)

    def logs(self, namespace: str, pod: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `Cluster.logs`. With ``follow`` it also waits for a container that has not started."""
        uid = self.get(POD, namespace, pod)["metadata"]["uid"]
        lines = self._log_lines(namespace, pod, uid, follow)
        if tail is None or follow:
            return lines
        return iter(deque(lines, maxlen=tail))

    def can_i(self, verb: str, kind: Kind, namespace: str) -> bool:
        """Always true: whoever can read the folder may do everything."""
        return True

    # For controllers and the command line.

    def changes(self) -> Changes:
        """A look-out for changes of any object, on a connection of its own."""
        with _translated(self.folder):
            return Changes(self.folder, self._connect())

    def revive(self) -> None:
        """Start the controllers that should live and do not; delete finished jobs whose time to live is over."""
        with self._transaction() as db:
            roots = {row[0] for row in db.execute("SELECT DISTINCT root FROM objects WHERE root != ''")}
        for job in self.everywhere(PYTORCHJOB):
            if self._expired(job):
                namespace, name, uid = (job["metadata"][key] for key in ("namespace", "name", "uid"))
                self.delete(PYTORCHJOB, namespace, name, uid=uid)
                roots.discard(uid)
        for uid in sorted(roots):
            if self._unattended(uid):
                self._ensure_controller(uid)

    def find(self, uid: str) -> Manifest | None:
        """The object with that uid, or None."""
        with self._transaction() as db:
            row = db.execute("SELECT body FROM objects WHERE uid = ?", (uid,)).fetchone()
        return None if row is None else _load(row[0])

    def everywhere(self, kind: Kind) -> Manifests:
        """All objects of ``kind`` in every namespace."""
        with self._transaction() as db:
            return _select(db, kind, None, None, None)

    def under(self, root: str, kind: Kind) -> Manifests:
        """All objects of ``kind`` that the controller of ``root`` looks after, also those being deleted."""
        with self._transaction() as db:
            rows = db.execute("SELECT body FROM objects WHERE root = ? AND kind = ? ORDER BY rowid", (root, kind.kind))
            return [_load(body) for (body,) in rows]

    def finalize(self, pod: Manifest) -> None:
        """Remove a pod whose processes have ended."""
        with self._transaction(write=True) as db:
            row = db.execute("SELECT body FROM objects WHERE uid = ?", (pod["metadata"]["uid"],)).fetchone()
            if row is not None:
                _delete(db, POD, _load(row[0]))

    def lock_file(self, uid: str) -> Path:
        """The file that the controller of the object ``uid`` locks while it lives."""
        return self.folder / "controllers" / f"{uid}.lock"

    def controller_command(self, uid: str) -> Command:
        """The command line that starts a controller for the object ``uid``; it detaches itself and returns."""
        # -P: a folder named tunesmith in the working directory must not be imported in place of the package.
        command = [sys.executable, "-P", "-m", "tunesmith.local", "control"]
        return [*command, "--cluster", str(self.folder), "--uid", uid]

    # Inner workings.

    def _make_folders(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)  # what a job logs is its owner's business, also in a folder that was there before
            for part in ("controllers", "pods", "logs"):
                (self.folder / part).mkdir(exist_ok=True)
        except OSError as error:
            raise _broken(self.folder, error.strerror or str(error)) from error

    def _make_database(self) -> None:
        connection = sqlite3.connect(self.folder / "cluster.db", timeout=30)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
        finally:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        # mode=rw: opening must not bring back a folder that was deleted.
        uri = f"{(self.folder / 'cluster.db').as_uri()}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction on a connection of its own, so that threads and forks need no thought."""
        with _translated(self.folder):
            db = self._connect()
            try:
                db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield db
                db.execute("COMMIT")
            finally:
                db.close()  # rolls back what was not committed

    def _born(self, kind: Kind, manifest: Manifest) -> Manifest:
        body: Manifest = json.loads(json.dumps(manifest))
        metadata = body.get("metadata")
        if not isinstance(metadata, dict):
            raise Refused(f"{kind}: metadata: Required value")
        if "name" not in metadata and "generateName" in metadata:
            metadata["name"] = f"{metadata['generateName']}{secrets.token_hex(3)[:5]}"
        if not metadata.get("name"):
            raise Refused(f"{kind}: metadata.name: Required value: name or generateName is required")
        for server_side in ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"):
            metadata.pop(server_side, None)
        metadata.setdefault("namespace", self.namespace)
        metadata |= {"uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": now()}
        if kind.kind != "Event":
            body.pop("status", None)
        return body

    def _remove(self, db: sqlite3.Connection, kind: Kind, body: Manifest) -> None:
        """Delete ``body`` and, as the garbage collector would, whatever it alone owns."""
        metadata = body["metadata"]
        root = db.execute("SELECT root FROM objects WHERE uid = ?", (metadata["uid"],)).fetchone()[0]
        # Without a controller above it a pod has no process either.
        running = kind == POD and root and body.get("status", {}).get("phase") not in _ENDED
        if running or metadata.get("finalizers"):
            if "deletionTimestamp" not in metadata:
                metadata["deletionTimestamp"] = now()
                if kind == POD:
                    metadata["deletionGracePeriodSeconds"] = body["spec"].get("terminationGracePeriodSeconds", 30)
                _update(db, kind, body)
            return
        _delete(db, kind, body)
        rows = db.execute("SELECT kind, body FROM objects WHERE instr(body, ?)", (metadata["uid"],)).fetchall()
        for kind_name, text in rows:
            child = _load(text)
            owners = [owner["uid"] for owner in child["metadata"].get("ownerReferences", [])]
            if metadata["uid"] in owners and not any(_exists(db, owner) for owner in owners):
                self._remove(db, KINDS[kind_name], child)

    def _expired(self, job: Manifest) -> bool:
        """Whether ``ttlSecondsAfterFinished`` of an ended job has passed."""
        ttl = (job["spec"].get("runPolicy") or {}).get("ttlSecondsAfterFinished")
        ended = job.get("status", {}).get("completionTime")
        if ttl is None or ended is None:
            return False
        return self._stopwatch.since_stamp(job["metadata"]["uid"], ended) > int(ttl)

    def _unattended(self, uid: str) -> bool:
        """Whether the object ``uid`` or what is left of it needs a controller and has none."""
        lock = self.lock_file(uid)
        if lock.exists() and lock.read_text() == "done":
            return False
        return not _locked(lock)

    def _ensure_controller(self, uid: str) -> None:
        lock = self.lock_file(uid)
        if lock.exists() and (lock.read_text() == "done" or _locked(lock)):
            return
        try:
            with (self.folder / "controllers" / f"{uid}.log").open("ab") as log:
                started = subprocess.run(
                    self.controller_command(uid),
                    env=clean_environment(),
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    check=False,
                )
        except OSError as error:  # the disk is full, or no process can be started
            raise Unavailable(f"no controller for {uid}: {error}") from error
        if started.returncode:
            raise Unavailable(f"no controller for {uid}: exit code {started.returncode}, see {log.name}")

    def _log_lines(self, namespace: str, pod: str, uid: str, follow: bool) -> Iterator[str]:
        attempt = 0
        while True:
            ended = not follow or self._ended(uid)
            path = self.folder / "logs" / f"{uid}.{attempt}.log"
            if path.exists():
                yield from self._file_lines(path, uid, attempt, follow)
                attempt += 1
            elif ended:
                return
            else:
                time.sleep(2 * POLL_S)

    def _file_lines(self, path: Path, uid: str, attempt: int, follow: bool) -> Iterator[str]:
        """Lines of one attempt: until it has ended (a later one has begun or the pod has ended) if ``follow``."""
        successor = path.with_name(f"{uid}.{attempt + 1}.log")
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            rest = ""
            while True:
                last_look = not follow or successor.exists() or self._ended(uid)
                while chunk := file.readline():
                    rest += chunk
                    if rest.endswith("\n"):
                        yield rest[:-1].removesuffix("\r")
                        rest = ""
                if last_look:
                    break
                time.sleep(2 * POLL_S)
            if rest:
                yield rest

    def _ended(self, pod_uid: str) -> bool:
        pod = self.find(pod_uid)
        return pod is None or pod.get("status", {}).get("phase") in _ENDED


# Rows.


def _load(text: str) -> Manifest:
    body: Manifest = json.loads(text)
    return body


def _exists(db: sqlite3.Connection, uid: str) -> bool:
    return db.execute("SELECT 1 FROM objects WHERE uid = ?", (uid,)).fetchone() is not None


def _find(db: sqlite3.Connection, kind: Kind, namespace: str, name: str) -> Manifest | None:
    query = "SELECT body FROM objects WHERE kind = ? AND namespace = ? AND name = ?"
    row = db.execute(query, (kind.kind, namespace, name)).fetchone()
    return None if row is None else _load(row[0])


def _must_find(db: sqlite3.Connection, kind: Kind, namespace: str, name: str) -> Manifest:
    body = _find(db, kind, namespace, name)
    if body is None:
        raise NotFound(f'{kind.plural} "{name}" not found in namespace {namespace}')
    return body


def _select(
    db: sqlite3.Connection, kind: Kind, namespace: str | None, name: str | None, labels: Mapping[str, str] | None
) -> list[Manifest]:
    query, values = "SELECT body FROM objects WHERE kind = ?", [kind.kind]
    for column, value in (("namespace", namespace), ("name", name)):
        if value is not None:
            query, values = f"{query} AND {column} = ?", [*values, value]
    bodies = [_load(body) for (body,) in db.execute(f"{query} ORDER BY rowid", values)]
    return [body for body in bodies if _carries(body, labels)]


def _carries(body: Manifest, labels: Mapping[str, str] | None) -> bool:
    carried = body["metadata"].get("labels") or {}
    return all(carried.get(key) == value for key, value in (labels or {}).items())


def _journal(db: sqlite3.Connection, type_: str, kind: Kind, body: Manifest) -> str:
    """Note a change; the number of its row becomes the object's version, as in etcd. Returns the body's text."""
    last = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
    version = (last[0] if last else 0) + 1
    body["metadata"]["resourceVersion"] = str(version)
    text = json.dumps(body, separators=(",", ":"))
    db.execute(
        "INSERT INTO journal (type, kind, namespace, body) VALUES (?, ?, ?, ?)",
        (type_, kind.kind, body["metadata"]["namespace"], text),
    )
    if version % 512 == 0:
        db.execute("DELETE FROM journal WHERE version <= ?", (version - JOURNAL_ROWS,))
    return text


def _insert(db: sqlite3.Connection, kind: Kind, body: Manifest, root: str) -> None:
    metadata = body["metadata"]
    text = _journal(db, "ADDED", kind, body)
    values = (metadata["uid"], kind.kind, metadata["namespace"], metadata["name"], root, text)
    db.execute("INSERT INTO objects (uid, kind, namespace, name, root, body) VALUES (?, ?, ?, ?, ?, ?)", values)


def _update(db: sqlite3.Connection, kind: Kind, body: Manifest) -> None:
    text = _journal(db, "MODIFIED", kind, body)
    db.execute("UPDATE objects SET body = ? WHERE uid = ?", (text, body["metadata"]["uid"]))


def _delete(db: sqlite3.Connection, kind: Kind, body: Manifest) -> None:
    _journal(db, "DELETED", kind, body)
    db.execute("DELETE FROM objects WHERE uid = ?", (body["metadata"]["uid"],))


def _root_of_owners(db: sqlite3.Connection, body: Manifest) -> str:
    """Uid of the controlled object above ``body``; an owner that is gone would have it collected at once."""
    for owner in body["metadata"].get("ownerReferences", []):
        if row := db.execute("SELECT root FROM objects WHERE uid = ?", (owner["uid"],)).fetchone():
            return str(row[0])
        if owner.get("controller") and owner.get("kind") in KINDS:
            raise NotFound(f"the owner of {body['metadata']['name']}, {owner['kind']} {owner['name']}, is gone")
    return ""


def _news(
    db: sqlite3.Connection,
    kind: Kind,
    namespace: str,
    name: str | None,
    labels: Mapping[str, str] | None,
    known: dict[str, Manifest],
    position: int,
) -> tuple[list[WatchEvent], int]:
    """Changes since the version ``position`` (-1: none seen), and the version they reach; updates ``known``."""
    db.execute("BEGIN")  # one state of the database for all three reads
    try:
        last = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
        last_version = last[0] if last else 0
        first = db.execute("SELECT min(version) FROM journal").fetchone()[0]
        expired = position < 0 or (last_version > position and (first is None or first > position + 1))
        if expired:
            current = {body["metadata"]["uid"]: body for body in _select(db, kind, namespace, name, labels)}
        else:
            query = "SELECT type, body FROM journal WHERE version > ? AND kind = ? AND namespace = ? ORDER BY version"
            rows = db.execute(query, (position, kind.kind, namespace)).fetchall()
    finally:
        db.execute("COMMIT")
    if expired:
        changes = [WatchEvent("DELETED", known.pop(uid)) for uid in [*known] if uid not in current]
        for body in current.values():
            changes += _change(known, "MODIFIED", body, True)
        return changes, last_version
    changes = []
    for type_, text in rows:
        body = _load(text)
        if name is None or body["metadata"]["name"] == name:
            changes += _change(known, type_, body, _carries(body, labels))
    return changes, last_version


def _change(known: dict[str, Manifest], type_: str, body: Manifest, selected: bool) -> list[WatchEvent]:
    """What a watcher that knows ``known`` is told; an object that leaves or enters its selection goes or comes."""
    uid, before = body["metadata"]["uid"], known.get(body["metadata"]["uid"])
    if type_ == "DELETED" or not selected:
        return [] if known.pop(uid, None) is None else [WatchEvent("DELETED", body)]
    known[uid] = body
    if before is None:
        return [WatchEvent("ADDED", body)]
    same = before["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"]
    return [] if same else [WatchEvent("MODIFIED", body)]


def _patched(kind: Kind, old: Manifest, patch: Manifest, subresource: str | None) -> Manifest:
    """``old`` after ``patch``, with what a client cannot change left as it was."""
    wanted = patch.get("metadata") or {}
    for precondition in ("uid", "resourceVersion"):
        if wanted.get(precondition) not in (None, old["metadata"][precondition]):
            there = old["metadata"][precondition]
            raise Conflict(f'{kind.plural} "{old["metadata"]["name"]}": {precondition} is {there}, not what was meant')
    if subresource == "status":
        merged: Manifest = merge(old, {"status": patch.get("status")} if "status" in patch else {})
        return merged
    new: Manifest = merge(old, {key: value for key, value in patch.items() if key != "status"})
    fixed = ("uid", "resourceVersion", "name", "namespace", "generation", "creationTimestamp", "deletionTimestamp")
    new["metadata"] = {key: value for key, value in (new.get("metadata") or {}).items() if key not in fixed}
    new["metadata"] |= {key: old["metadata"][key] for key in fixed if key in old["metadata"]}
    new |= {"apiVersion": old["apiVersion"], "kind": old["kind"]}
    if _desired(new) != _desired(old):
        new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
    return new


def _desired(body: Manifest) -> Manifest:
    return {key: value for key, value in body.items() if key not in ("metadata", "status")}


@contextmanager
def _translated(folder: Path, *, opening: bool = False) -> Iterator[None]:
    """SQLite's errors as ours: `BadInput` for a database that is broken, `Unavailable` for what may pass."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the details of an extended code
        if code in _CORRUPT or (opening and code not in _PASSING):
            raise _broken(folder, str(error)) from error
        raise Unavailable(f"{folder}: {error}") from error


def _broken(folder: Path, reason: str) -> BadInput:
    if len(os.fsencode(folder / "cluster.db")) > _LONGEST_PATH:
        reason = f"{reason}: its path is too long for SQLite"
    return BadInput(
        f"the cluster in {folder} cannot be opened ({reason}): remove that folder, or name another --workdir.",
        "broken-cluster",
    )


def _locked(path: Path) -> bool:
    """Whether a living process holds the lock. A controller tries for a while, so that this look cannot keep it out."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
