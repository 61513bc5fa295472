"""The content-addressed store: `<root>/sha256/<first two digits>/<digest>/<file name>`.

A file is in the store only when it has been read whole and had the right size and digest; it comes by an atomic
rename. Disks lose bytes all the same, so a file is read whole again before its bytes are used (`sound`). What has come
so far of a file that is being brought lies in `<root>/partial/<digest>.part` beside its lock, and the next try goes on
from there.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from smwheel.errors import HashMismatchError, SourceError
from smwheel.locks import locked

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Store:
    """Files by their sha256 under `root`; safe for many processes at once.

    `root` is the store's own folder, normally `smwheel.paths.cache_dir() / "store"`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path | None:
        """Return where the file with this sha256 lies, or None when the store does not have it."""
        folder = self._folder(digest)
        try:
            return next(iter(sorted(folder.iterdir())), None)
        except FileNotFoundError:
            return None

    def sound(self, digest: str, *, mend: bool = True) -> Path | None:
        """Return where the file with this sha256 lies after reading it whole, or None when it must be brought.

        With `mend` a damaged one is removed, which is said in one line; without, it stays where it is.

        Raises:
            HashMismatchError: it is damaged, and not `mend`.
        """
        stored = self.path(digest)
        if stored is None or (found := file_digest(stored)) == digest:
            return stored
        if not mend:
            raise HashMismatchError(
                f"is damaged in the store: its sha256 is {found}",
                where=str(stored),
                cure="run the same command once without --offline, or `smwheel fetch --from-bundle FILE`: either "
                "replaces it",
            )
        with locked(self._part(digest).with_suffix(".lock")):
            if stored.exists() and file_digest(stored) != digest:  # it may have been replaced meanwhile
                shutil.rmtree(self._folder(digest))
                _log.warning("%s was damaged in the store (sha256 %s): removed, to be fetched again", stored, found)
        return self.path(digest)

    def obtain(self, digest: str, filename: str, size: int | None, fill: Callable[[Path], None]) -> Path:
        """Return the stored file, calling `fill(part)` to bring it when it is not there yet.

        `fill` appends to the part file what is missing (the file may hold the beginning already), or replaces it.
        Only one process fills at a time; the others wait and take the result.

        Raises:
            HashMismatchError: the bytes are not those of `digest`; nothing is kept. (A resumed file is brought
                once more from the start first: the part that lay there may have been another file's.)
            SourceError: the file ended early (its part is kept, to go on from) or is longer than `size` bytes.
        """
        if filename != Path(filename).name:
            raise SourceError(f"{filename!r} is no plain file name", where="store")
        if (stored := self.sound(digest)) is not None:
            return stored
        part = self._part(digest)
        with locked(part.with_suffix(".lock")):
            if (stored := self.path(digest)) is not None:
                return stored
            if size is not None and part.exists() and part.stat().st_size > size:
                part.unlink()
            resumed = part.exists() and part.stat().st_size > 0
            fill(part)
            _check_size(part, filename, size)
            if (found := file_digest(part)) != digest and resumed:
                part.unlink()
                fill(part)
                _check_size(part, filename, size)
                found = file_digest(part)
            if found != digest:
                part.unlink()
                raise HashMismatchError(
                    f"sha256 is {found}, pinned is {digest}; nothing was kept",
                    where=filename,
                    cure="check the pinned hash against the publisher's; if it is right, the copy offered is not",
                )
            return self._admit(part, digest, filename)

    def add(self, file: Path, filename: str) -> Path:
        """Move a file that was made here into the store under its own digest; return where it lies.

        Raises:
            SourceError: `filename` is no plain file name.
        """

        def fill(part: Path) -> None:
            part.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(file, part)

        return self.obtain(file_digest(file), filename, file.stat().st_size, fill)

    def _admit(self, part: Path, digest: str, filename: str) -> Path:
        """Move a checked file to its place: its folder appears with the file in it, or not at all."""
        folder = self._folder(digest)
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = self.root / "partial" / f"{digest}.ready"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        part.chmod(0o444)
        part.rename(staging / filename)
        staging.rename(folder)
        return folder / filename

    def _part(self, digest: str) -> Path:
        return self.root / "partial" / f"{digest}.part"

    def _folder(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise SourceError(f"{digest!r} is no sha256", where="store", cure="give 64 lower-case hexadecimal digits")
        return self.root / "sha256" / digest[:2] / digest


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes, in lower-case hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_size(part: Path, filename: str, size: int | None) -> None:
    found = part.stat().st_size if part.exists() else 0
    if size is None or found == size:
        return
    if found < size:
        raise SourceError(
            f"truncated: {found} of {size} bytes",
            where=filename,
            cure="run the same command again: it goes on from there",
        )
    part.unlink()
    raise SourceError(
        f"longer than the {size} bytes that are pinned; nothing was kept",
        where=filename,
        cure="check the size that the recipe pins",
    )
