"""Wheels as files: read one without trusting it, write one so that the same content gives the same bytes.

Written wheels have their members sorted with the metadata last (RECORD at the very end), one time stamp, one of
two modes, and one compression, so that nothing of the machine or the moment enters them. Version and tags stand
in five places (file name, names of the metadata directories, METADATA, WHEEL, RECORD) and are only ever changed
together. Sources: the binary distribution format and the core metadata of the Python packaging specifications.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import stat
import time
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import BytesParser
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from isal import isal_zlib
from isal.isal_zlib import IsalError
from packaging.metadata import InvalidMetadata, Metadata

from smwheel import __version__
from smwheel.errors import MalformedError, UsageError
from smwheel.wheels.wheelname import (
    WheelName,
    check_member_name,
    escaped,
    expand_tags,
    normal_version,
    tag_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from email.message import Message

    from packaging.tags import Tag

Content = bytes | Path

CHUNK = 1 << 20
# The largest metadata file that is read whole: METADATA with a long README stays below 1 MB, RECORD of a package
# with 100,000 files below 16.
MAX_METADATA = 64 << 20

_EPOCH = 315532800  # 1980-01-01, the first moment that a zip can say
_LAST = 4354819198  # 2107-12-31, the last
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_LOCAL_HEADER = 30
_NOT_WHOLE = "a part of the wheel is missing: download or build it again"
_OF_THE_RECIPE = "correct what the recipe or its generator says of the wheel"


@dataclass(frozen=True)
class RecordRow:
    """One row of RECORD: `digest` is `sha256=…` (or empty), `size` in bytes (or None)."""

    path: str
    digest: str
    size: int | None


class Wheel:
    """An open wheel; use as a context manager.

    Raises, on opening:
        UsageError: there is no such file.
        MalformedError: no zip, a member whose name leads out of the installation directory, two members of one
            name, or not exactly one metadata directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = WheelName.parse(path.name)
        if path.exists() and not path.is_file():
            raise MalformedError("is no regular file", where=str(path), cure="name the wheel itself")
        try:
            self._zip = zipfile.ZipFile(path)
        except FileNotFoundError as error:
            raise UsageError("there is no such file", where=str(path), cure="name the wheel itself") from error
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise MalformedError(
                f"is no readable zip ({error})", where=str(path), cure="download or build it again"
            ) from error
        try:
            self.members = self._checked_members()
            self.dist_info = self._dist_info()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def _checked_members(self) -> dict[str, zipfile.ZipInfo]:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            check_member_name(info.orig_filename, where=str(self.path))
            if info.is_dir():
                continue
            if info.filename in members:
                raise MalformedError(f"holds two members named {info.filename!r}", where=str(self.path))
            if stat.S_ISLNK(info.external_attr >> 16):
                raise MalformedError(f"member {info.filename!r} is a symbolic link", where=str(self.path))
            members[info.filename] = info
        return members

    def _dist_info(self) -> str:
        found = sorted({name.split("/", 1)[0] for name in self.members if ".dist-info/" in name})
        found = [name for name in found if name.endswith(".dist-info")]
        if len(found) != 1:
            raise MalformedError(
                f"has {len(found)} .dist-info directories{': ' if found else ''}{', '.join(found)}",
                where=str(self.path),
                cure="a wheel has exactly one; build it again",
            )
        return found[0]

    def read(self, name: str) -> bytes:
        """Return a small member whole (at most `MAX_METADATA` bytes).

        Raises:
            MalformedError: it is not there, too large, or damaged.

        """
        info = self._info(name)
        if info.file_size > MAX_METADATA:
            raise MalformedError(f"member {name} claims {info.file_size} bytes", where=str(self.path))
        return b"".join(self.stream(name))

    def stream(self, name: str, *, chunk: int = CHUNK) -> Iterator[bytes]:
        """Yield a member's bytes piece by piece; inflates about three times as fast as `zipfile`.

        Raises:
            MalformedError: it is not there, or damaged (length or CRC differ; said after the last piece).

        """
        info = self._info(name)
        where = f"{self.path}:{name}"
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise MalformedError("is compressed in a way that wheels may not use, or encrypted", where=where)
        crc, size = 0, 0
        for piece in self._pieces(info, chunk, where):
            crc, size = isal_zlib.crc32(piece, crc), size + len(piece)
            if size > info.file_size:
                break
            yield piece
        if size != info.file_size or crc != info.CRC:
            raise MalformedError(
                "is damaged: its length or checksum is not the one that the zip's directory gives",
                where=where,
                cure="download or build the wheel again",
            )

    def _pieces(self, info: zipfile.ZipInfo, chunk: int, where: str) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(info.header_offset)
            header = file.read(_LOCAL_HEADER)
            if len(header) < _LOCAL_HEADER or header[:4] != b"PK\3\4":
                raise MalformedError("has no local header in the zip", where=where)
            file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), os.SEEK_CUR)
            left = info.compress_size
            unpack = isal_zlib.decompressobj(-15) if info.compress_type == zipfile.ZIP_DEFLATED else None
            while left:
                data = file.read(min(chunk, left))
                if not data:
                    return
                left -= len(data)
                if unpack is None:
                    yield data
                    continue
                try:
                    while data:
                        yield unpack.decompress(data, chunk)
                        data = unpack.unconsumed_tail
                except IsalError as error:  # type: ignore[misc]  # its stub calls the class an instance
                    raise MalformedError(f"is damaged: {error}", where=where) from error
            if unpack is not None:
                yield unpack.flush()

    def _info(self, name: str) -> zipfile.ZipInfo:
        if name not in self.members:
            raise MalformedError(f"has no member {name}", where=str(self.path), cure=_NOT_WHOLE)
        return self.members[name]

    @cached_property
    def metadata(self) -> Message:
        """METADATA as an e-mail message: `metadata["Version"]`, `metadata.get_all("Requires-Dist")`."""
        return BytesParser().parsebytes(self.read(f"{self.dist_info}/METADATA"))

    @cached_property
    def wheel(self) -> Message:
        """WHEEL as an e-mail message: `wheel["Root-Is-Purelib"]`, `wheel.get_all("Tag")`."""
        return BytesParser().parsebytes(self.read(f"{self.dist_info}/WHEEL"))

    @cached_property
    def tags(self) -> frozenset[Tag]:
        """The tags that WHEEL lists.

        Raises:
            MalformedError: one of them is no tag.

        """
        return expand_tags(map(str, self.wheel.get_all("Tag") or []), where=f"{self.path}:{self.dist_info}/WHEEL")

    @cached_property
    def record(self) -> tuple[RecordRow, ...]:
        """The rows of RECORD.

        Raises:
            MalformedError: it is not there or not readable.

        """
        where = f"{self.path}:{self.dist_info}/RECORD"
        try:
            text = self.read(f"{self.dist_info}/RECORD").decode()
            return tuple(
                RecordRow(path, digest, int(size) if size else None)
                for path, digest, size in csv.reader(io.StringIO(text, newline=""))
            )
        except (ValueError, csv.Error) as error:
            raise MalformedError(f"is no RECORD: {error}", where=where) from error

    def extract(self, directory: Path, names: Iterable[str] | None = None) -> None:
        """Unpack the members named, or all, with their modes, below a directory."""
        for name in self.members if names is None else names:
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for piece in self.stream(name):
                    file.write(piece)
            path.chmod(0o755 if self.members[name].external_attr >> 16 & 0o111 else 0o644)


def write_wheel(
    destination: Path,
    *,
    distribution: str,
    version: str,
    tags: Iterable[str],
    files: Iterable[tuple[str, Content]],
    headers: Iterable[tuple[str, str]] = (),
    description: str = "",
    entry_points: str = "",
    extra_dist_info: Mapping[str, Content] | None = None,
) -> Path:
    """Write a wheel into the directory `destination` and return its path.

    `tags` are texts such as `py3-none-manylinux_2_28_x86_64`; `headers` are further fields of METADATA
    (`("Requires-Dist", "torch==2.14.*")`); `description` is Markdown; `entry_points` is the text of that file;
    `extra_dist_info` are more files of the metadata directory (plan.json, sboms/…, licenses/…). A file is
    executable in the wheel if it is on disk.

    Raises:
        MalformedError: names, version, tags or metadata are not valid, or two files have one path.

    """
    single = expand_tags(tags)
    name = f"{escaped(distribution)}-{normal_version(version)}"
    info = f"{name}.dist-info"
    pure = all(tag.platform == "any" for tag in single)
    own: dict[str, Content] = {
        "METADATA": _metadata(distribution, version, headers, description),
        "WHEEL": _wheel_text(single, purelib=pure),
        **({"entry_points.txt": entry_points.encode()} if entry_points else {}),
    }
    for path, content in (extra_dist_info or {}).items():
        if path in own:
            raise MalformedError(f"{path} is written by itself", where=name, cure=_OF_THE_RECIPE)
        own[path] = content
    everything = [*files, *((f"{info}/{path}", content) for path, content in own.items())]
    contents = _unique(((path, _source(content)) for path, content in everything), where=name)
    return _pack(destination / f"{name}-{tag_text(single)}.whl", info, contents)


def rewrite_wheel(
    source: Path,
    destination: Path,
    *,
    version: str | None = None,
    tags: Iterable[str] | None = None,
    replace: Mapping[str, Content] | None = None,
    remove: Iterable[str] = (),
    extra_dist_info: Mapping[str, Content] | None = None,
) -> Path:
    """Write a changed copy of a wheel into the directory `destination` and return its path.

    `version` and `tags` are changed in every place that states them. `replace` gives members new content (or adds
    them), `remove` leaves them out; both take the names of the source wheel. Signatures of the old RECORD are not
    carried. The build tag, if any, is.

    Raises:
        MalformedError: the source is malformed, or something to remove is not in it.

    """
    with Wheel(source) as wheel:
        new_version = normal_version(version) if version is not None else str(wheel.name.version)
        single = expand_tags(tags) if tags is not None else wheel.tags
        old, new = wheel.dist_info, f"{escaped(wheel.name.distribution)}-{new_version}.dist-info"
        given: dict[str, Content] = dict(replace or {})
        kept = set(wheel.members) | set(given)
        for name in remove:
            if name not in kept:
                raise MalformedError(f"has no member {name} to leave out", where=str(source), cure=_OF_THE_RECIPE)
            kept.discard(name)
        kept -= {f"{old}/{name}" for name in ("RECORD", *_SIGNATURES)}
        for file, edit in ((f"{old}/METADATA", _with_version), (f"{old}/WHEEL", _with_tags)):
            given[file] = edit(_whole(given.get(file)) or wheel.read(file), new_version, single)
        files = [
            (_moved(name, old, new), _source(given[name]) if name in given else _member(wheel, name)) for name in kept
        ]
        files += [(f"{new}/{path}", _source(content)) for path, content in (extra_dist_info or {}).items()]
        build = "".join(map(str, wheel.name.build))
        stem = f"{escaped(wheel.name.distribution)}-{new_version}" + (f"-{build}" if build else "")
        target = destination / f"{stem}-{tag_text(single)}.whl"
        return _pack(target, new, _unique(files, where=str(source)))


def _whole(content: Content | None) -> bytes | None:
    return content.read_bytes() if isinstance(content, Path) else content


def _moved(name: str, old: str, new: str) -> str:
    """Return a member's name after the metadata directory's own was changed."""
    top, _, rest = name.partition("/")
    if top == old:
        return f"{new}/{rest}"
    if top.endswith(".data"):
        return f"{new.removesuffix('.dist-info')}.data/{rest}"
    return name


@dataclass(frozen=True)
class _Source:
    """Content to be written: size in bytes, mode, and the bytes piece by piece."""

    size: int
    executable: bool
    pieces: Callable[[], Iterable[bytes]]


def _source(content: Content) -> _Source:
    if isinstance(content, bytes):
        return _Source(len(content), executable=False, pieces=lambda: (content,))
    status = content.stat()
    return _Source(status.st_size, executable=bool(status.st_mode & 0o111), pieces=lambda: _file_pieces(content))


def _member(wheel: Wheel, name: str) -> _Source:
    info = wheel.members[name]
    executable = bool(info.external_attr >> 16 & 0o111)
    return _Source(info.file_size, executable=executable, pieces=lambda: wheel.stream(name))


def _file_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece


def _metadata(distribution: str, version: str, headers: Iterable[tuple[str, str]], description: str) -> bytes:
    lines = ["Metadata-Version: 2.4", f"Name: {distribution}", f"Version: {normal_version(version)}"]
    for key, value in headers:
        if "\n" in value or "\r" in value:
            raise MalformedError(
                f"the field {key} of METADATA has a line break", where=distribution, cure=_OF_THE_RECIPE
            )
        lines.append(f"{key}: {value}")
    if description:
        lines.append("Description-Content-Type: text/markdown; charset=UTF-8")
    data = ("\n".join(lines) + "\n\n" + description).encode()
    try:
        Metadata.from_email(data, validate=True)
    except (InvalidMetadata, ExceptionGroup) as error:
        reasons = "; ".join(map(str, getattr(error, "exceptions", [error])))
        raise MalformedError(
            f"the metadata is not valid: {reasons}", where=distribution, cure=_OF_THE_RECIPE
        ) from error
    return data


def _wheel_text(tags: frozenset[Tag], *, purelib: bool) -> bytes:
    lines = [
        "Wheel-Version: 1.0",
        f"Generator: smwheel {__version__}",
        f"Root-Is-Purelib: {'true' if purelib else 'false'}",
    ]
    lines += [f"Tag: {tag}" for tag in sorted(map(str, tags))]
    return ("\n".join(lines) + "\n").encode()


def _with_version(metadata: bytes, version: str, _: frozenset[Tag]) -> bytes:
    head, blank, body = _split_header(metadata)
    lines = [
        f"Version: {version}".encode() if line.lower().startswith(b"version:") else line for line in head.split(b"\n")
    ]
    return b"\n".join(lines) + blank + body


def _with_tags(wheel: bytes, _: str, tags: frozenset[Tag]) -> bytes:
    head = _split_header(wheel)[0]
    lines = [line for line in head.split(b"\n") if line and not line.lower().startswith(b"tag:")]
    lines += [f"Tag: {tag}".encode() for tag in sorted(map(str, tags))]
    return b"\n".join(lines) + b"\n"


def _split_header(message: bytes) -> tuple[bytes, bytes, bytes]:
    return message.replace(b"\r\n", b"\n").partition(b"\n\n")


def _unique(files: Iterable[tuple[str, _Source]], *, where: str) -> dict[str, _Source]:
    found: dict[str, _Source] = {}
    for path, source in files:
        check_member_name(path, where=where)
        if path in found:
            raise MalformedError(f"two files would be {path!r}", where=where, cure=_OF_THE_RECIPE)
        found[path] = source
    return found


def _source_date() -> int:
    """Return the time of every member, in seconds: SOURCE_DATE_EPOCH within what a zip can hold, else its first."""
    text = os.environ.get("SOURCE_DATE_EPOCH") or str(_EPOCH)
    if not text.isdecimal():
        raise UsageError(f"{text!r} is no number of seconds", where="SOURCE_DATE_EPOCH", cure="unset it or correct it")
    return min(max(int(text), _EPOCH), _LAST)


def _pack(target: Path, dist_info: str, contents: Mapping[str, _Source]) -> Path:
    moment = time.gmtime(_source_date())[:6]
    rows: list[tuple[str, str, str]] = []
    with _appearing(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        # Metadata last, as the format asks: a reader of the end of the file sees it at once.
        for path in sorted(contents, key=lambda path: (path.startswith(f"{dist_info}/"), path)):
            digest, size = _add(archive, path, contents[path], moment)
            rows.append((path, digest, str(size)))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, (f"{dist_info}/RECORD", "", "")])
        _add(archive, f"{dist_info}/RECORD", _source(text.getvalue().encode()), moment)
    return target


def _add(archive: zipfile.ZipFile, path: str, source: _Source, moment: tuple[int, ...]) -> tuple[str, int]:
    """Write one member; return its digest as RECORD spells it, and its size in bytes."""
    year, month, day, hour, minute, second = moment
    info = zipfile.ZipInfo(path, (year, month, day, hour, minute, second))
    info.create_system = 3  # Unix, on every machine: the modes below are Unix's
    info.external_attr = (stat.S_IFREG | (0o755 if source.executable else 0o644)) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    info.file_size = source.size
    with archive.open(info, "w") as member:
        return record_digest(source.pieces(), member.write)


@contextmanager
def _appearing(target: Path) -> Iterator[IO[bytes]]:
    """Give a file that appears under its name only when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def record_digest(pieces: Iterable[bytes], write: Callable[[bytes], object] = lambda _: None) -> tuple[str, int]:
    """Return the digest of some content as RECORD spells it (`sha256=…`), and its size in bytes.

    Each piece is also given to `write`, so that content is read once.
    """
    total, size = hashlib.sha256(), 0
    for piece in pieces:
        total.update(piece)
        size += len(piece)
        write(piece)
    return f"sha256={base64.urlsafe_b64encode(total.digest()).rstrip(b'=').decode()}", size
