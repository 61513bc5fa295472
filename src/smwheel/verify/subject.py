"""The wheel under examination: read once from end to end, its shared objects laid out for a closer look."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from smwheel.errors import MalformedError
from smwheel.paths import cache_dir
from smwheel.wheels.elf import ElfFacts, is_elf, read_elf
from smwheel.wheels.fatbin import Entry, find_sections, list_entries, mapped
from smwheel.wheels.wheelfile import Wheel, record_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smwheel.verify.importing import Importer


@dataclass(frozen=True)
class Library:
    """One shared object of the wheel; `name` is its path in there, `path` where its bytes lie now."""

    name: str
    path: Path

    @property
    def base(self) -> str:
        """The last part of its name."""
        return self.name.rpartition("/")[2]

    @cached_property
    def facts(self) -> ElfFacts:
        """What it asks for.

        Raises:
            MalformedError: it is damaged.

        """
        return read_elf(self.path, where=self.name)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Its GPU code.

        Raises:
            MalformedError: it is damaged.

        """
        return tuple(list_entries(self.path))

    @cached_property
    def has_fat_binary(self) -> bool:
        """Whether it has a section for GPU code, be it empty.

        Raises:
            MalformedError: it is damaged.

        """
        with mapped(self.path) as buffer:
            return bool(find_sections(buffer, where=self.name))


class Subject:
    """An open wheel whose every member was read: digests, sizes, and shared objects as files.

    Use as a context manager; the files live in the cache until it ends.
    """

    def __init__(self, path: Path) -> None:
        self.wheel = Wheel(path)
        self.path = path
        self.digests: dict[str, tuple[str, int]] = {}
        self.damaged: dict[str, MalformedError] = {}
        self.libraries: list[Library] = []
        self.importer: Importer | None = None

    def __enter__(self) -> Self:
        base = cache_dir() / "verify"
        base.mkdir(parents=True, exist_ok=True)
        self._directory = tempfile.TemporaryDirectory(dir=base, prefix="wheel-")
        self.directory = Path(self._directory.name)
        for index, name in enumerate(self.wheel.members):
            self._scan(name, self.directory / f"{index}.so")
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()
        self.wheel.__exit__()

    def _scan(self, name: str, path: Path) -> None:
        pieces = self.wheel.stream(name)
        try:
            first = next(pieces, b"")
            if not is_elf(first):
                self.digests[name] = record_digest(_chain(first, pieces))
                return
            with path.open("wb") as file:
                self.digests[name] = record_digest(_chain(first, pieces), file.write)
            self.libraries.append(Library(name, path))
        except MalformedError as error:
            self.damaged[name] = error

    @cached_property
    def sha256(self) -> str:
        """Sha256 (hex) of the wheel."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def text(self, name: str) -> str:
        """Return a small text member, undecodable bytes replaced."""
        return self.wheel.read(name).decode("utf-8", "replace")

    def member_name(self, where: str) -> str:
        """Return the member that the place of an error lies in."""
        for library in self.libraries:
            if where.startswith(str(library.path)):
                return library.name + where.removeprefix(str(library.path))
        return where.removeprefix(f"{self.path}:").removeprefix(str(self.path))


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
