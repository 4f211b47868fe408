"""Archives made to do harm: each is refused, with the entry's name, and nothing is written outside its folder."""

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunesmith.errors import BadInput
from tunesmith.trainer import quarantine
from tunesmith.trainer.quarantine import Limits, require_space, safe_member, unpack


def zipped(folder: Path, *entries: tuple[str, bytes], kind: int = stat.S_IFREG) -> Path:
    file = folder / "model.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name  # ZipInfo's own constructor would cut at NUL
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (kind | 0o755) << 16
            archive.writestr(info, content)
    return file


def tarred(folder: Path, *entries: tuple[str, bytes], mode: str = "w", **changes: object) -> Path:
    file = folder / "model.tar"
    with tarfile.open(file, mode) as archive:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in changes.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return file


def refused(archive: Path, folder: Path, limits: Limits | None = None) -> str:
    """The refusal's sentence; nothing may have appeared beside the folder that was unpacked into."""
    jail = folder / "outer" / "jail"
    jail.mkdir(parents=True)
    before = sorted(path for path in folder.rglob("*") if not path.is_relative_to(jail))
    with pytest.raises(BadInput) as caught:
        unpack(archive, jail, limits)
    assert sorted(path for path in folder.rglob("*") if not path.is_relative_to(jail)) == before
    assert not any(path.is_symlink() for path in jail.rglob("*"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_plain_tar_is_unpacked_as_data(tmp_path, mode):
    archive = tarred(tmp_path, ("m/config.json", b"{}"), ("m/weights", b"x" * 5000), mode=mode)
    into = tmp_path / "into"
    into.mkdir()
    assert [path.relative_to(into).as_posix() for path in unpack(archive, into)] == ["m/config.json", "m/weights"]
    assert (into / "m/weights").read_bytes() == b"x" * 5000


def test_a_plain_wheel_is_unpacked_and_nothing_in_it_is_executable(tmp_path):
    archive = zipped(tmp_path, ("pkg/", b""), ("pkg/run.sh", b"#!/bin/sh\n"))
    into = tmp_path / "into"
    into.mkdir()
    assert unpack(archive, into) == [into / "pkg/run.sh"]
    assert not (into / "pkg/run.sh").stat().st_mode & 0o111


HOSTILE_NAMES = ["/etc/cron.d/x", "../x", "a/../../x", "..", "C:/x", "C:x", "a\\..\\..\\x", "//host/share/x", "a\nb"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_wheel_with_a_path_that_leads_out_is_refused_before_anything_is_written(tmp_path, name):
    message = refused(zipped(tmp_path, ("good.txt", b"good"), (name, b"evil")), tmp_path)
    assert "path that leads out of the archive's folder" in message
    assert ascii(name) in message
    assert not (tmp_path / "outer/jail/good.txt").exists()


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_tar_with_a_path_that_leads_out_is_refused(tmp_path, name):
    assert "path that leads out of the archive's folder" in refused(tarred(tmp_path, (name, b"evil")), tmp_path)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_a_link_or_device_in_a_wheel_is_refused(tmp_path, kind):
    assert "the entry 'x' is a link or a device" in refused(
        zipped(tmp_path, ("x", b"/etc/passwd"), kind=kind), tmp_path
    )


TAR_KINDS = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]


@pytest.mark.parametrize("kind", TAR_KINDS)
def test_a_link_or_device_in_a_tar_is_refused(tmp_path, kind):
    archive = tarred(tmp_path, ("x", b""), type=kind, linkname="/etc/passwd")
    assert "the entry 'x' is a link, a device or sparse" in refused(archive, tmp_path)


def test_a_sparse_file_in_a_tar_is_refused(tmp_path):
    archive = tarred(tmp_path, ("x", b"1"), pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1000"})
    assert "the entry 'x' is a link, a device or sparse" in refused(archive, tmp_path)


def test_a_file_written_through_a_link_of_the_same_archive_is_refused(tmp_path):
    file = tmp_path / "model.tar"
    with tarfile.open(file, "w") as archive:
        link = tarfile.TarInfo("out")
        link.type, link.linkname = tarfile.SYMTYPE, "../.."
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("out/evil"), io.BytesIO())
    assert "link" in refused(file, tmp_path)


@pytest.mark.parametrize("names", [("a", "a"), ("Config.json", "config.json"), ("a/b", "a//b")])
@pytest.mark.parametrize("build", [zipped, tarred])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_for_one_file_are_refused(tmp_path, names, build):
    assert "is there twice" in refused(build(tmp_path, *[(name, b"x") for name in names]), tmp_path)


@pytest.mark.parametrize("build", [zipped, tarred])
def test_too_many_entries_are_refused(tmp_path, build):
    archive = build(tmp_path, *[(f"f{n}", b"") for n in range(11)])
    assert "more than 10 entries" in refused(archive, tmp_path, Limits(files=10))


def test_a_zip_bomb_is_refused_and_stops_writing_at_the_limit(tmp_path):
    archive = zipped(tmp_path, ("zeros", bytes(40 << 20)))
    assert archive.stat().st_size < 100_000
    assert "it unpacks to more than" in refused(archive, tmp_path)
    assert sum(path.stat().st_size for path in (tmp_path / "outer/jail").rglob("*") if path.is_file()) < 25 << 20


def test_a_gzip_bomb_in_a_tar_is_refused_by_its_declared_size(tmp_path):
    archive = tarred(tmp_path, ("zeros", bytes(40 << 20)), mode="w:gz")
    assert "it unpacks to more than" in refused(archive, tmp_path)
    assert list((tmp_path / "outer/jail").iterdir()) == []


def test_a_tar_whose_header_alone_is_a_bomb_is_refused_without_reading_it_into_memory(tmp_path):
    """A PAX header of 64 MiB, which the standard library would hold in memory at once."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 64 << 20
    file = tmp_path / "model.tar.gz"
    with gzip.open(file, "wb", compresslevel=1) as sink:
        sink.write(header.tobuf())
        sink.write(bytes(64 << 20))
    assert "headers are larger than any real archive's" in refused(file, tmp_path)


def test_an_entry_that_is_larger_than_it_says_is_refused(tmp_path):
    """The size in the zip's directory is a claim: a smaller one must not smuggle bytes past the limits."""
    archive = zipped(tmp_path, ("zeros", bytes(1 << 20)))
    content = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = content.index(signature) + offset
        assert struct.unpack_from("<I", content, at) == (1 << 20,)
        struct.pack_into("<I", content, at, 10)
    archive.write_bytes(content)
    assert "is not a readable zip" in refused(archive, tmp_path)


def test_an_encrypted_entry_is_refused(tmp_path):
    archive = zipped(tmp_path, ("x", b"x"))
    content = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    archive.write_bytes(content)
    assert "the entry 'x' is encrypted" in refused(archive, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"hello world, this is text" * 100, id="text"),
        pytest.param(b"PK\x03\x04 and no more", id="cut zip"),
        pytest.param(gzip.compress(b"x" * 5000)[:-20], id="cut gzip"),
        pytest.param(b"\x1f\x8b\x08\x00rubbish", id="broken gzip"),
    ],
)
def test_what_is_no_archive_is_refused_in_one_sentence(tmp_path, content):
    file = tmp_path / "model.whl"
    file.write_bytes(content)
    assert "model.whl is not a readable zip, wheel or tar archive" in refused(file, tmp_path)


def test_a_cut_tar_is_refused(tmp_path):
    archive = tarred(tmp_path, ("x", b"x" * 5000))
    archive.write_bytes(archive.read_bytes()[:2000])
    assert "is not a readable zip, wheel or tar archive" in refused(archive, tmp_path)


def test_an_archive_that_does_not_fit_on_the_disk_is_refused_before_it_is_written(tmp_path, monkeypatch):
    usage = os.statvfs(tmp_path)
    monkeypatch.setattr(quarantine.shutil, "disk_usage", lambda folder: type("U", (), {"free": 1000})())
    assert usage.f_bavail > 0
    assert "not enough disk space for the unpacked archive" in refused(zipped(tmp_path, ("x", b"x")), tmp_path)
    assert list((tmp_path / "outer/jail").iterdir()) == []


def test_missing_space_is_named_in_one_sentence(tmp_path):
    with pytest.raises(
        BadInput, match=r"not enough disk space for the model: it needs 1048576\.2 GiB below .* are free"
    ):
        require_space(tmp_path, 1 << 50, "the model")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.sampled_from(["a", ".", "/", "\\", ":", "C", "\n", "é", " "]), min_size=1, max_size=12))
def test_a_name_that_is_let_through_stays_inside(tmp_path, name):
    try:
        member = safe_member(name)
    except BadInput:
        return
    assert (tmp_path / member).resolve().is_relative_to(tmp_path.resolve())
    assert (tmp_path / member).resolve() != tmp_path.resolve()
