"""The one place where a URI becomes a local path and a local folder a URI.

A path is used as it is. Anything else (``s3://``, ``gs://`` ...) goes through fsspec and a temporary folder.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import fsspec

from tunesmith.errors import BadInput


def local_path(location: str) -> Path | None:
    """The path that a location names, or None if it is elsewhere."""
    if location.startswith("file://"):
        return Path(location.removeprefix("file://"))
    return None if "://" in location else Path(location)


def fetch(location: str) -> Path:
    """A local path with what is at ``location``.

    Raises:
        BadInput: nothing is there.
    """
    path = local_path(location)
    if path is not None:
        if not path.exists():
            raise BadInput(f"there is nothing at {location}")
        return path
    files, root = _open(location)
    if not files.exists(root):
        raise BadInput(f"there is nothing at {location}")
    target = Path(tempfile.mkdtemp(prefix="tunesmith-")) / Path(root).name
    if files.isdir(root):
        files.get(root.rstrip("/") + "/", f"{target}/", recursive=True)
    else:
        files.get_file(root, str(target))
    return target


def publish(folder: Path, location: str, *, last: str) -> None:
    """Copy what is in ``folder`` to a URI, the file named ``last`` after all others.

    Who looks for ``last`` (a marker, a model's config.json) therefore never sees half a folder.
    """
    files, root = _open(location)
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    for name in sorted(names, key=lambda name: name == last):
        files.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        files.put_file(str(folder / name), f"{root}/{name}")


def names_at(location: str) -> list[str]:
    """Names of what lies directly under a URI; empty if there is nothing."""
    files, root = _open(location)
    if not files.isdir(root):
        return []
    return sorted(Path(name).name for name in files.ls(root, detail=False))


def holds(location: str) -> bool:
    """Whether there is a file at a URI."""
    files, root = _open(location)
    return bool(files.isfile(root))


def remove(location: str) -> None:
    """Delete a URI with all that is below it."""
    files, root = _open(location)
    files.rm(root, recursive=True)


def _open(location: str) -> tuple[Any, str]:
    files, root = fsspec.core.url_to_fs(location)
    return files, root.rstrip("/")
