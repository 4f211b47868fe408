"""The interface of a cluster: eight verbs over plain dicts, and errors named after what happened.

Objects are plain Kubernetes JSON. Two implementations keep one contract (``tests/local/test_cluster_contract.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tunesmith.resources import Kind

Manifest = dict[str, Any]


class ClusterError(Exception):
    """A cluster did not do what was asked.

    ClusterError
    ├── NotFound        no such object (404)
    ├── AlreadyExists   an object of that name is there (409 AlreadyExists)
    ├── Conflict        the object is not the one that was meant: another uid or version (409)
    ├── Forbidden       the role does not allow it (403)
    ├── Refused         the manifest is invalid (400, 422)
    └── Unavailable     nobody answered, or not now (429, 5xx)
    """


class NotFound(ClusterError):
    """No such object."""


class AlreadyExists(ClusterError):
    """An object of that kind and name is there already."""


class Conflict(ClusterError):
    """A precondition on uid or resourceVersion did not hold."""


class Forbidden(ClusterError):
    """The caller's role does not allow it."""


class Refused(ClusterError):
    """The cluster finds the manifest invalid."""


class Unavailable(ClusterError):
    """The cluster did not answer, or asks to come back later."""


@dataclass(frozen=True)
class WatchEvent:
    """One change: ADDED for each object of the first list as well."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Manifest


class Cluster(Protocol):
    """Where objects live. All verbs raise `ClusterError`."""

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create the object and return it as stored; with ``dry_run`` only check it.

        Raises:
            AlreadyExists: that name is taken.
            Refused: the manifest is invalid.
        """
        ...

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """The object. Raises `NotFound`."""
        ...

    def list(self, kind: Kind, namespace: str, labels: Mapping[str, str] | None = None) -> list[Manifest]:
        """All objects of that kind that carry all ``labels``."""
        ...

    def watch(
        self,
        kind: Kind,
        namespace: str,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[WatchEvent]:
        """First an ADDED for each object there is, then each change, until ``timeout_s`` (None: for ever).

        Survives a lost connection and an expired version: it lists again and reports what differs, each change once.
        """
        ...

    def patch(
        self, kind: Kind, namespace: str, name: str, patch: Manifest, *, subresource: Literal["status"] | None = None
    ) -> Manifest:
        """Apply a JSON merge patch (RFC 7386) and return the object. Raises `NotFound`, `Conflict`."""
        ...

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str | None = None) -> None:
        """Delete the object and what it owns; nothing happens if it is gone.

        Raises:
            Conflict: ``uid`` was given and the object of that name has another.
        """
        ...

    def logs(self, namespace: str, pod: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Lines of the pod's main container, across its restarts; with ``follow`` until the pod has ended."""
        ...

    def can_i(self, verb: str, kind: Kind, namespace: str) -> bool:
        """Whether the caller's role allows ``verb``."""
        ...
