"""Write a `.tar.gz` whose bytes depend on nothing but the files in it."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from smwheel.errors import SourceError


@dataclass(frozen=True)
class Entry:
    """One file: its path, its bytes (of a symbolic link: the target), and what it is."""

    path: str
    content: bytes
    executable: bool = False
    link: bool = False


def write_tarball(target: Path, entries: Iterable[Entry], *, limit: int, where: str) -> None:
    """Write entries, in their order, below one top directory `tree/`.

    Raises:
        SourceError: they hold more than `limit` bytes.
    """
    total = 0
    with (
        target.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as compressed,
        tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for entry in entries:
            total += len(entry.content)
            if total > limit:
                raise SourceError(
                    f"holds more than {limit:,} bytes", where=where, cure="if it is right, its bound is `unpacked`"
                )
            info = tarfile.TarInfo(f"tree/{entry.path}")
            if entry.link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.content.decode("utf-8", "surrogateescape")
                tar.addfile(info)
            else:
                info.size, info.mode = len(entry.content), 0o755 if entry.executable else 0o644
                tar.addfile(info, io.BytesIO(entry.content))
