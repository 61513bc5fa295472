"""Unpack a source archive so that nothing leaves the destination and nothing grows beyond a stated bound.

Archives are made by others, so the rules are narrower than the formats: files, directories and links that stay
inside; every path once; no device, no absolute path, no `..`. What comes out is normal: modes 644 and 755, one fixed
modification time. Symbolic links are made last, so no write ever goes through one.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, cast

from isal import igzip, isal_zlib

from smwheel.errors import SourceError, SystemNeedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_BYTES = 2 << 30
MAX_FILES = 200_000
MTIME = 315_532_800
"""Modification time of everything unpacked, in seconds: 1980-01-01, the earliest that a zip file can hold."""

_CHUNK = 1 << 20
_HEADER_ALLOWANCE = 4 << 20
_BROKEN: tuple[type[Exception], ...] = (
    EOFError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    isal_zlib.error,  # type: ignore[assignment]
    gzip.BadGzipFile,
)


@dataclass(frozen=True)
class Unpacked:
    """What an archive became: `root`, and how many files, directories and links (`entries`) and `bytes` it holds."""

    root: Path
    entries: int
    bytes: int


class _Kind(Enum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"


@dataclass(frozen=True)
class _Member:
    name: str
    kind: _Kind
    size: int = 0
    executable: bool = False
    target: str = ""
    open: Callable[[], IO[bytes]] = io.BytesIO


def unpack(archive: Path, destination: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Unpacked:
    """Unpack a `.tar.gz`, `.zip` or `.whl` to `destination`, which must not exist and appears whole or not at all.

    A single top directory is stripped (not from a wheel). At most `max_bytes` are written and `max_files` paths made.

    Raises:
        SourceError: the archive is truncated, damaged, of no known kind, too large, or holds a path, link or device
            that is not allowed; `where` names archive and member. Nothing is left.
        SystemNeedError: the disk is full.
    """
    if destination.exists():
        raise SourceError("is there already", where=str(destination), cure="remove it or name another directory")
    destination.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        with _translated(archive):
            writer = _Writer(archive.name, staging / "tree", max_bytes, max_files)
            for member in _members(archive, max_bytes):
                writer.add(member)
            writer.finish()
            root = _top(staging / "tree", strip=archive.suffix != ".whl")
            root.rename(destination)
        return Unpacked(destination, len(writer.kinds), writer.written)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


class _Writer:
    """Writes members below `root`, remembering what each path is."""

    def __init__(self, archive: str, root: Path, max_bytes: int, max_files: int) -> None:
        self.archive = archive
        self.root = root
        self.max_bytes = max_bytes
        self.max_files = max_files
        self.written = 0
        self.kinds: dict[str, _Kind] = {}
        self._links: list[tuple[str, str]] = []
        root.mkdir()

    def add(self, member: _Member) -> None:
        name = self._safe_name(member.name)
        if name == ".":
            return
        self._register(name, member)
        path = self.root / name
        match member.kind:
            case _Kind.DIRECTORY:
                pass  # made by _register
            case _Kind.SYMLINK:
                self._links.append((name, self._safe_target(name, member)))
            case _Kind.HARDLINK:
                source = self._safe_name(member.target)
                if self.kinds.get(source) not in (_Kind.FILE, _Kind.HARDLINK):
                    raise self._refused(member.name, f"links to {member.target!r}, no file that came before it")
                original = self.root / source
                with original.open("rb") as content:
                    self._write(path, content, member.name, executable=bool(original.stat().st_mode & 0o100))
            case _Kind.FILE:
                with member.open() as content:
                    self._write(path, content, member.name, executable=member.executable)

    def finish(self) -> None:
        """Make the symbolic links, see that each stays inside, and set the directories' times."""
        for name, target in self._links:
            (self.root / name).symlink_to(target)
        inside = os.path.realpath(self.root) + os.sep
        for name, target in self._links:
            if not os.path.realpath(self.root / name).startswith(inside):
                raise self._refused(name, f"is a link to {target!r}, which leads outside")
            os.utime(self.root / name, (MTIME, MTIME), follow_symlinks=False)
        for name, kind in self.kinds.items():
            if kind is _Kind.DIRECTORY:
                os.utime(self.root / name, (MTIME, MTIME))

    def _safe_name(self, name: str) -> str:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name or not name:
            raise self._refused(name, "is no path inside the archive")
        return str(path)

    def _safe_target(self, name: str, member: _Member) -> str:
        target = os.path.normpath(PurePosixPath(name).parent / member.target)
        if not member.target or member.target.startswith("/") or target.split("/")[0] == "..":
            raise self._refused(member.name, f"is a link to {member.target!r}, which leads outside")
        return member.target

    def _register(self, name: str, member: _Member) -> None:
        for parent in reversed(PurePosixPath(name).parents[:-1]):
            self._directory(str(parent), member.name)
        if member.kind is _Kind.DIRECTORY:
            self._directory(name, member.name)
            return
        if name in self.kinds:
            raise self._refused(member.name, "is in the archive twice")
        self._count(name, member.kind)

    def _directory(self, name: str, member: str) -> None:
        kind = self.kinds.get(name)
        if kind is None:
            self._count(name, _Kind.DIRECTORY)
            (self.root / name).mkdir(mode=0o755)
        elif kind is not _Kind.DIRECTORY:
            raise self._refused(member, f"needs {name!r} to be a directory, and it is a {kind.value}")

    def _count(self, name: str, kind: _Kind) -> None:
        self.kinds[name] = kind
        if len(self.kinds) > self.max_files:
            raise self._refused(name, f"is one more than the {self.max_files:,} paths allowed")

    def _write(self, path: Path, content: IO[bytes], member: str, *, executable: bool) -> None:
        with path.open("xb") as file:
            while chunk := content.read(_CHUNK):
                self.written += len(chunk)
                if self.written > self.max_bytes:
                    raise self._refused(member, f"grows beyond the {self.max_bytes:,} bytes allowed in all")
                file.write(chunk)
            os.fchmod(file.fileno(), 0o755 if executable else 0o644)
        os.utime(path, (MTIME, MTIME))

    def _refused(self, member: str, reason: str) -> SourceError:
        return SourceError(
            f"refused: {member[:200]!r} {reason}; nothing was kept",
            where=self.archive,
            cure="do not use this archive; if it is the right one, its bound is `unpacked` in the recipe"
            if "allowed" in reason
            else "do not use this archive: it is not what a packaging tool makes",
        )


def _members(archive: Path, max_bytes: int) -> Iterator[_Member]:
    if archive.name.endswith((".tar.gz", ".tgz")):
        return _tar_members(archive, max_bytes)
    if archive.suffix in (".zip", ".whl"):
        return _zip_members(archive)
    raise SourceError("is neither .tar.gz nor .zip nor .whl", where=archive.name)


def _tar_members(archive: Path, max_bytes: int) -> Iterator[_Member]:
    with igzip.open(archive, "rb") as compressed:  # type: ignore[no-untyped-call]
        reader = _Metered(compressed, archive.name)
        with tarfile.open(fileobj=reader, mode="r|", bufsize=_CHUNK) as tar:  # type: ignore[call-overload]
            for info in tar:
                if info.size > max_bytes:
                    raise SourceError(
                        f"refused: {info.name[:200]!r} says {info.size:,} bytes; {max_bytes:,} are allowed in all",
                        where=archive.name,
                        cure="do not use this archive; if it is the right one, its bound is `unpacked` in the recipe",
                    )
                reader.allowance += info.size + _HEADER_ALLOWANCE
                yield _tar_member(tar, info, archive.name)
                reader.allowance = _HEADER_ALLOWANCE
        while reader.read(_CHUNK):
            pass  # to the end: a truncated or damaged tail shows only there


def _tar_member(tar: tarfile.TarFile, info: tarfile.TarInfo, archive: str) -> _Member:
    if info.isdir():
        return _Member(info.name, _Kind.DIRECTORY)
    if info.issym():
        return _Member(info.name, _Kind.SYMLINK, target=info.linkname)
    if info.islnk():
        return _Member(info.name, _Kind.HARDLINK, target=info.linkname)
    if not info.isreg() or info.issparse():
        raise SourceError(
            f"refused: {info.name[:200]!r} is a device, pipe or another special file; nothing was kept",
            where=archive,
            cure="do not use this archive: it is not what a packaging tool makes",
        )

    return _Member(info.name, _Kind.FILE, info.size, bool(info.mode & 0o100), open=lambda: _content(tar, info))


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    return cast("IO[bytes]", tar.extractfile(info))  # None only for what is no file


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as zipped:
        for info in zipped.infolist():
            mode = info.external_attr >> 16
            kind = stat.S_IFMT(mode)
            if info.flag_bits & 0x1:
                raise SourceError("refused: it is encrypted", where=f"{archive.name}:{info.filename[:200]}")
            if info.is_dir():
                yield _Member(info.filename, _Kind.DIRECTORY)
            elif kind == stat.S_IFLNK:
                with zipped.open(info) as text:
                    target = os.fsdecode(text.read(4096))
                yield _Member(info.filename, _Kind.SYMLINK, target=target)
            elif kind in (0, stat.S_IFREG):
                yield _Member(
                    info.filename,
                    _Kind.FILE,
                    info.file_size,
                    bool(mode & 0o100),
                    open=lambda info=info: zipped.open(info),  # type: ignore[misc]
                )
            else:
                raise SourceError(
                    f"refused: {info.filename[:200]!r} is a device, pipe or another special file; nothing was kept",
                    where=archive.name,
                    cure="do not use this archive: it is not what a packaging tool makes",
                )


class _Metered:
    """The decompressed stream of a tar, which may be read only as far as the members announced so far reach.

    Without it a header that says "my name is 10 GB long" would be read into memory.
    """

    def __init__(self, stream: IO[bytes], archive: str) -> None:
        self._stream = stream
        self._archive = archive
        self.allowance = _HEADER_ALLOWANCE

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.allowance -= len(data)
        if self.allowance < 0:
            raise SourceError(
                "refused: it grows beyond what its headers say; nothing was kept",
                where=self._archive,
                cure="do not use this archive: it is not what a packaging tool makes",
            )
        return data


def _top(tree: Path, *, strip: bool) -> Path:
    children = list(tree.iterdir())
    if strip and len(children) == 1 and children[0].is_dir() and not children[0].is_symlink():
        return children[0]
    return tree


@contextmanager
def _translated(archive: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise SourceError(
            f"truncated or damaged: {error}; nothing was kept",
            where=str(archive),
            cure="remove it and fetch it again",
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SystemNeedError(
                "the disk is full", where=archive.name, cure="free space, or set SMWHEEL_CACHE to a larger disk"
            ) from error
        raise SourceError(f"cannot be unpacked: {error.strerror or error}", where=archive.name) from error
