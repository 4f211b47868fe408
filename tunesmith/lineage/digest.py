"""Digests of files and folders, the same on every machine.

A file's digest is the sha256 of its bytes. A folder's is the sha256 of the RFC 8785 canonical JSON of the sorted list
of ``[posix path, sha256, size in bytes]`` of every file in it, so that the order in which a file system lists them,
their times and their owners do not count. The algorithm is part of the digest's text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import rfc8785

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Digest:
    """What a file or folder holds: ``text`` is ``sha256:<hex>`` for a file, ``sha256-tree:<hex>`` for a folder."""

    text: str
    bytes: int

    def __str__(self) -> str:
        return self.text


def digest_file(path: Path) -> Digest:
    """Digest of one file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    hasher, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            hasher.update(chunk)
            size += len(chunk)
    return Digest(f"sha256:{hasher.hexdigest()}", size)


def digest_path(path: Path | str) -> Digest:
    """Digest of a file or of a folder with all that is below it.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: the folder holds a symbolic link or a special file; its content would not be the folder's own.
    """
    path = Path(path)
    if path.is_symlink():
        raise ValueError(f"{path} is a symbolic link: what it leads to is not the artifact's own")
    if path.is_file():
        return digest_file(path)
    if not path.is_dir():
        raise FileNotFoundError(f"nothing to digest at {path}")
    entries: list[list[str | int]] = []
    total = 0
    for file in sorted(path.rglob("*"), key=lambda p: p.relative_to(path).as_posix()):
        if file.is_symlink() or not (file.is_file() or file.is_dir()):
            raise ValueError(f"{file} is a symbolic link or a special file: only plain files and folders have a digest")
        if file.is_file():
            one = digest_file(file)
            entries.append([file.relative_to(path).as_posix(), one.text.removeprefix("sha256:"), one.bytes])
            total += one.bytes
    return Digest(f"sha256-tree:{hashlib.sha256(rfc8785.dumps(entries)).hexdigest()}", total)


def digest_text(text: str) -> str:
    """``sha256:<hex>`` of a text's UTF-8 bytes."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
