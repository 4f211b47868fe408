"""What comes from outside and may be hostile: archives are checked entry by entry before a byte of them is kept.

Nothing here runs, imports or installs what it reads. An archive is refused as a whole for the first entry that could
write outside its folder, is not a plain file, or would fill the disk; what was written until then is the caller's
temporary folder, to be thrown away.
"""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, BinaryIO, cast

from tunesmith.errors import BadInput

__all__ = ["Limits", "require_space", "safe_member", "unpack"]

_CHUNK = 1 << 20
_GIB = 1 << 30
# Left free beside what we write: logs, records and checkpoints of the same run share the disk.
_SPARE_BYTES = 256 << 20
# What a tar may hold between two members: headers, padding and one long PAX record.
_TAR_HEADER_BYTES = 4 << 20


@dataclass(frozen=True)
class Limits:
    """How much an archive may hold.

    Args:
        files: entries, folders included.
        bytes: unpacked size of all files together.
        ratio: unpacked size over the archive's own size. Weights hardly compress and text ten times; a bomb a thousand.
    """

    files: int = 10_000
    bytes: int = 200 * _GIB
    ratio: int = 50


def require_space(folder: Path, wanted_bytes: int, purpose: str) -> None:
    """Refuse early when a disk is too small.

    Args:
        folder: an existing folder on the disk that will be written to.
        wanted_bytes: what will be written.
        purpose: what the bytes are for, as the sentence names it.

    Raises:
        BadInput: less is free than that and a small reserve.
    """
    free, wanted = shutil.disk_usage(folder).free, wanted_bytes + _SPARE_BYTES
    if free < wanted:
        raise BadInput(
            f"not enough disk space for {purpose}: it needs {wanted / _GIB:.1f} GiB below {folder} and "
            f"{free / _GIB:.1f} GiB are free; free some, or write to another disk"
        )


def safe_member(name: str) -> PurePosixPath:
    """The relative path of an archive's entry.

    Raises:
        BadInput: the name is absolute, climbs with ``..``, has a drive, a backslash or a control character.
    """
    path = PurePosixPath(name)
    hostile = (
        path.is_absolute()
        or ".." in path.parts
        or "\\" in name
        or bool(PureWindowsPath(name).drive)
        or any(ord(character) < 32 or ord(character) == 127 for character in name)
    )
    if hostile or not path.parts:
        raise BadInput(f"the entry {ascii(name)} has a path that leads out of the archive's folder")
    return path


def unpack(archive: Path, into: Path, limits: Limits | None = None) -> list[Path]:
    """Unpack a ``.zip``, ``.whl``, ``.tar`` or ``.tar.gz``/``.tgz`` as plain data.

    Args:
        archive: the file; its content, not its name, says which kind it is.
        into: an existing, empty folder. Files in it are plain, not executable and have no links.
        limits: how much it may hold; `Limits()` when not given.

    Returns:
        The files written, in the archive's order.

    Raises:
        BadInput: not such an archive, damaged, encrypted, too big, or with an entry that is a link, a device, a
            duplicate or leads out of the folder.
    """
    limits = limits or Limits()
    writer = _Writer(into, limits, archive.stat().st_size)
    with archive.open("rb") as stream:
        magic = stream.read(2)
    try:
        if zipfile.is_zipfile(archive):
            _unzip(archive, writer)
        elif magic == b"\x1f\x8b":
            with gzip.open(archive) as plain:
                _untar(cast(BinaryIO, plain), writer)
        else:
            with archive.open("rb") as plain:
                _untar(plain, writer)
    except BadInput as refusal:
        raise BadInput(f"{archive.name} is refused: {refusal}") from None
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, NotImplementedError) as error:
        raise BadInput(f"{archive.name} is not a readable zip, wheel or tar archive: {error}") from error
    return writer.files


class _Writer:
    """Writes entries and keeps count; the counts are of bytes that really came, not of what a header promised."""

    def __init__(self, into: Path, limits: Limits, archive_bytes: int) -> None:
        self._into, self._limits = into, limits
        self._allowed = min(limits.bytes, limits.ratio * archive_bytes + (16 << 20))
        self._left, self._entries = self._allowed, 0
        self._seen: set[str] = set()
        self.files: list[Path] = []

    def check(self, name: str, declared_bytes: int) -> Path:
        """The place of one entry, once its name, its declared size and the count of entries are in order."""
        self._entries += 1
        if self._entries > self._limits.files:
            raise BadInput(f"it has more than {self._limits.files} entries")
        if declared_bytes > self._left:
            self._too_big()
        member = safe_member(name)
        # Case folded: on a laptop's disk `Config.json` would overwrite `config.json`.
        folded = str(member).casefold()
        if folded in self._seen:
            raise BadInput(f"the entry {ascii(name)} is there twice")
        self._seen.add(folded)
        return self._into / member

    def write(self, target: Path, source: IO[bytes]) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as sink:
            while chunk := source.read(_CHUNK):
                self._left -= len(chunk)
                if self._left < 0:
                    self._too_big()
                sink.write(chunk)
        self.files.append(target)

    def require_space(self, declared_bytes: int) -> None:
        require_space(self._into, declared_bytes, "the unpacked archive")

    def _too_big(self) -> None:
        raise BadInput(
            f"it unpacks to more than {self._allowed / (1 << 20):.0f} MiB, the limit for an archive of its size"
        )


def _unzip(archive: Path, writer: _Writer) -> None:
    with zipfile.ZipFile(archive) as opened:
        entries = opened.infolist()
        # All names before the first byte: a hostile last entry must not leave the first ones behind.
        targets = [writer.check(entry.filename, 0) for entry in entries]
        writer.require_space(min(sum(entry.file_size for entry in entries), writer._allowed))
        for entry, target in zip(entries, targets, strict=True):
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise BadInput(f"the entry {ascii(entry.filename)} is a link or a device, not a plain file")
            if entry.flag_bits & 0x1:
                raise BadInput(f"the entry {ascii(entry.filename)} is encrypted")
            if entry.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            with opened.open(entry) as source:
                writer.write(target, source)


def _untar(stream: BinaryIO, writer: _Writer) -> None:
    metered = _Metered(stream)
    with tarfile.open(fileobj=cast(IO[bytes], metered), mode="r|") as opened:
        while (member := opened.next()) is not None:
            target = writer.check(member.name, member.size)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            if not member.isreg() or member.issparse():
                raise BadInput(f"the entry {ascii(member.name)} is a link, a device or sparse, not a plain file")
            tarfile.data_filter(member, os.fspath(target.parent))  # the standard library's own opinion on top of ours
            writer.require_space(member.size)
            metered.allow(member.size)
            source = opened.extractfile(member)
            if source is not None:
                writer.write(target, source)
            metered.allow(0)


class _Metered:
    """A stream that stops giving between two members, so that a gigabyte of headers is never read into memory."""

    def __init__(self, stream: BinaryIO) -> None:
        self._read: Callable[[int], bytes] = stream.read
        self._left = 0
        self.allow(0)

    def allow(self, content_bytes: int) -> None:
        self._left = content_bytes + _TAR_HEADER_BYTES

    def read(self, size: int) -> bytes:
        data = self._read(size)
        self._left -= len(data)
        if self._left < 0:
            raise BadInput("its headers are larger than any real archive's")
        return data
