"""Take a shared object out of a stream (a member of a wheel) without the GPU code that is not wanted.

The result is a sparse file of the original's size: everything is at its place, and the payloads left out are holes
that take neither disk nor time. Reading a file's facts needs none of the payloads, thinning only those kept, and
neither then has to write, or hold in memory, a gigabyte that nobody looks at.

A stream shows the section table last, so on the way regions are recognised by their form. Afterwards the ordinary
parser reads the file, and every hole must be exactly one of the payloads it finds: a false guess is noticed, and the
file is then taken out whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from smwheel.errors import MalformedError
from smwheel.wheels import fatbin
from smwheel.wheels.fatbin import ENTRY_HEADER_MIN, REGION_HEADER_SIZE, REGION_MAGIC, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


def unpack(
    stream: Callable[[], Iterable[bytes]], path: Path, leave_out: Callable[[Entry], bool], *, where: str
) -> None:
    """Write the file that `stream()` yields to `path`, with holes for the payloads that `leave_out` says.

    `stream` is called a second time if a guess was wrong. Files that are not ELF are written as they are.

    Raises:
        MalformedError: the stream is damaged, or the file does not follow its format.

    """
    with path.open("wb") as file:
        holes = _Sieve(iter(stream()), file, leave_out, where).run()
    if holes and not _true_holes(path, holes):
        with path.open("wb") as file:
            for piece in stream():
                file.write(piece)


def _true_holes(path: Path, holes: list[tuple[int, int]]) -> bool:
    """Return whether each hole (offset, size) is the payload of an entry that the parser finds."""
    try:
        entries = fatbin.list_entries(path)
    except MalformedError:
        return False
    return set(holes) <= {(entry.payload_offset, entry.payload_size) for entry in entries}


class _Sieve:
    """Copies a stream to a file, front to back, seeking over what is left out."""

    def __init__(self, pieces: Iterator[bytes], file: BinaryIO, leave_out: Callable[[Entry], bool], where: str) -> None:
        self._pieces = pieces
        self._file = file
        self._leave_out = leave_out
        self._where = where
        self._data = b""
        self._at = 0  # in `_data`
        self._offset = 0  # of `_data` in the file
        self._holes: list[tuple[int, int]] = []

    def run(self) -> list[tuple[int, int]]:
        """Copy everything; return the holes as (offset, size)."""
        if self._peek(4) == b"\x7fELF":
            while self._find_region():
                self._region()
        while self._peek(1):
            self._copy(len(self._data) - self._at)
        self._file.truncate()
        return self._holes

    @property
    def _position(self) -> int:
        return self._offset + self._at

    def _peek(self, size: int) -> bytes:
        """Return the next bytes without taking them; fewer at the end of the stream."""
        while len(self._data) - self._at < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._offset += self._at
            self._data = self._data[self._at :] + piece
            self._at = 0
        return self._data[self._at : self._at + size]

    def _copy(self, size: int) -> None:
        """Write the next bytes to the file."""
        while size > 0 and (part := self._next(size)):
            self._file.write(part)
            size -= len(part)

    def _skip(self, size: int) -> None:
        """Make a hole of the next bytes."""
        self._holes.append((self._position, size))
        while size > 0 and (part := self._next(size)):
            self._file.seek(len(part), 1)
            size -= len(part)

    def _next(self, size: int) -> memoryview:
        self._peek(1)
        part = memoryview(self._data)[self._at : self._at + size]
        self._at += len(part)
        return part

    def _find_region(self) -> bool:
        """Copy up to the next bytes that look like a region's start; False at the end."""
        while len(self._peek(len(REGION_MAGIC))) == len(REGION_MAGIC):
            found = self._data.find(REGION_MAGIC, self._at)
            if found < 0:
                self._copy(len(self._data) - self._at - len(REGION_MAGIC) + 1)
                continue
            self._copy(found - self._at)
            if self._position % 8 == 0:
                return True
            self._copy(1)
        return False

    def _region(self) -> None:
        """Copy a region's headers and what is wanted of its entries; stop early if it is none after all."""
        header = self._peek(REGION_HEADER_SIZE)
        end = self._position + REGION_HEADER_SIZE + int.from_bytes(header[8:], "little")
        self._copy(REGION_HEADER_SIZE)
        while self._position < end:
            try:
                entry = fatbin.read_entry(self._peek(ENTRY_HEADER_MIN), self._position, where=self._where)
            except MalformedError:
                return
            if entry.end > end:
                return
            self._copy(entry.header_size)
            if self._leave_out(entry):
                self._skip(entry.payload_size)
            else:
                self._copy(entry.payload_size)
