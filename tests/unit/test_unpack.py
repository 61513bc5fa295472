"""Unpacking: what comes out is normal, and no archive writes outside or grows beyond its bound."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from smwheel.errors import SourceError
from smwheel.sources.unpack import MTIME, unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=kind, linkname=target)


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return path


def refused(archive: Path, destination: Path, match: str, **bounds: int) -> None:
    """The archive is refused with a message that names it, and nothing is left beside it."""
    before = sorted(destination.parent.iterdir())
    with pytest.raises(SourceError, match=match) as caught:
        unpack(archive, destination, **bounds)
    assert archive.name in caught.value.where
    assert sorted(destination.parent.iterdir()) == before


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    return lambda *members: tar(tmp_path / "demo-1.0.tar.gz", *members)


def test_the_top_directory_is_stripped_and_modes_and_times_are_normal(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    archive = make(
        member("demo-1.0", type=tarfile.DIRTYPE, mode=0o700),
        member("demo-1.0/a.txt", b"a", mode=0o4666, mtime=1_700_000_000),
        member("demo-1.0/sub/run.sh", b"#!", mode=0o770),
        link("demo-1.0/sub/link", "../a.txt"),
        link("demo-1.0/copy.txt", "demo-1.0/a.txt", tarfile.LNKTYPE),
    )
    result = unpack(archive, tmp_path / "out")
    root = tmp_path / "out"
    assert (result.root, result.bytes) == (root, 4)
    assert sorted(str(p.relative_to(root)) for p in root.rglob("*")) == [
        "a.txt", "copy.txt", "sub", "sub/link", "sub/run.sh",
    ]  # fmt: skip
    modes = {name: stat.S_IMODE((root / name).stat().st_mode) for name in ("a.txt", "sub", "sub/run.sh")}
    assert modes == {"a.txt": 0o644, "sub": 0o755, "sub/run.sh": 0o755}
    assert {path.lstat().st_mtime for path in root.rglob("*")} == {MTIME}
    assert (root / "sub/link").read_bytes() == b"a"
    assert (root / "copy.txt").stat().st_ino != (root / "a.txt").stat().st_ino


def test_a_wheel_keeps_its_top_directory(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "demo-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("demo/__init__.py", "")
    unpack(tmp_path / "demo-1.0-py3-none-any.whl", tmp_path / "out")
    assert (tmp_path / "out/demo/__init__.py").exists()


def test_a_zip_keeps_executables_and_links(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "demo.zip", "w") as archive:
        for name, mode, text in (("d/run", 0o100755, "x"), ("d/link", 0o120777, "run")):
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, text)
    unpack(tmp_path / "demo.zip", tmp_path / "out")
    assert os.access(tmp_path / "out/run", os.X_OK)
    assert (tmp_path / "out/link").readlink().name == "run"


@pytest.mark.parametrize("name", ["../evil", "d/../../evil", "/tmp/evil", "d/..", ""])
def test_a_path_that_leaves_is_refused(make: Callable[..., Path], tmp_path: Path, name: str) -> None:
    refused(make(member(name, b"x")), tmp_path / "out", "no path inside")


@pytest.mark.parametrize("target", ["../../evil", "/etc/passwd", "../d/../../evil", ""])
def test_a_link_that_leaves_is_refused(make: Callable[..., Path], tmp_path: Path, target: str) -> None:
    refused(make(link("d/link", target)), tmp_path / "out", "leads outside")


def test_a_link_that_leaves_through_another_link_is_refused(make: Callable[..., Path], tmp_path: Path) -> None:
    archive = make(member("x/a/b", type=tarfile.DIRTYPE), link("x/a/b/up", "../../.."), link("out", "x/a/b/up/.."))
    refused(archive, tmp_path / "out", "leads outside")


def test_a_file_below_a_link_is_refused(make: Callable[..., Path], tmp_path: Path) -> None:
    refused(make(link("d/here", "."), member("d/here/x", b"x")), tmp_path / "out", "symbolic link")


def test_a_hard_link_to_what_did_not_come_before_is_refused(make: Callable[..., Path], tmp_path: Path) -> None:
    for target in ("d/later", "/etc/passwd", "../x"):
        refused(make(link("d/x", target, tarfile.LNKTYPE), member("d/later", b"x")), tmp_path / "out", "refused")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"S"])
def test_devices_and_pipes_are_refused(make: Callable[..., Path], tmp_path: Path, kind: bytes) -> None:
    refused(make(member("d/x", type=kind)), tmp_path / "out", "special file|damaged")


def test_a_path_that_comes_twice_is_refused(make: Callable[..., Path], tmp_path: Path) -> None:
    refused(make(member("d/x", b"1"), member("d/./x", b"2")), tmp_path / "out", "twice")
    refused(make(member("d/x", b"1"), link("d/x", "y")), tmp_path / "out", "twice")
    refused(make(member("d/x", b"1"), member("d/x/y", b"2")), tmp_path / "out", "to be a directory")


def test_an_archive_that_grows_beyond_its_bound_is_refused(make: Callable[..., Path], tmp_path: Path) -> None:
    bomb = make(member("d/x", b"\0" * 600), member("d/y", b"\0" * 600))
    refused(bomb, tmp_path / "out", "grows beyond the 1,000 bytes", max_bytes=1000)
    refused(bomb, tmp_path / "out", "500 are allowed", max_bytes=500)
    refused(bomb, tmp_path / "out", "one more than the 2 paths", max_files=2)


def test_hard_links_count_as_copies(make: Callable[..., Path], tmp_path: Path) -> None:
    bomb = make(member("d/x", b"\0" * 600), link("d/y", "d/x", tarfile.LNKTYPE))
    refused(bomb, tmp_path / "out", "grows beyond", max_bytes=1000)


def test_a_header_that_is_a_bomb_is_not_read_into_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("name")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 50 << 20
    path = tmp_path / "demo-1.0.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT) + b"a" * info.size)
    refused(path, tmp_path / "out", "beyond what its headers say")


def test_a_zip_that_lies_about_sizes_is_bounded_by_what_comes_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "demo.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("d/x", b"\0" * 5_000_000)
    refused(tmp_path / "demo.zip", tmp_path / "out", "grows beyond", max_bytes=1_000_000)


def test_a_truncated_or_damaged_archive_is_refused(make: Callable[..., Path], tmp_path: Path) -> None:
    archive = make(*(member(f"d/{number}", os.urandom(5000)) for number in range(20)))
    whole = archive.read_bytes()
    for damaged in (whole[:-4000], whole[:-9], whole[:20_000] + b"\0" * 8 + whole[20_008:], b"", b"not gzip"):
        archive.write_bytes(damaged)
        refused(archive, tmp_path / "out", "damaged")
    padded = gzip.compress(gzip.decompress(whole) + os.urandom(2 << 20), compresslevel=1)
    archive.write_bytes(padded[:-9])  # cut behind the tar's own end
    refused(archive, tmp_path / "out", "damaged")
    (tmp_path / "demo.whl").write_bytes(whole)
    refused(tmp_path / "demo.whl", tmp_path / "out", "damaged")


def test_an_unknown_kind_a_missing_file_and_a_taken_place_are_said(tmp_path: Path) -> None:
    (tmp_path / "demo.rar").write_bytes(b"x")
    refused(tmp_path / "demo.rar", tmp_path / "out", "neither")
    refused(tmp_path / "none.zip", tmp_path / "out", "No such file")
    (tmp_path / "there").mkdir()
    with pytest.raises(SourceError, match="already"):
        unpack(tmp_path / "demo.rar", tmp_path / "there")
