"""What in an ELF file points to GPU code, and how it must change when the code moves.

nvcc makes one record for each region, in `.nvFatBinSegment`, whose pointer the dynamic loader relocates; the CUDA
runtime finds regions through these records alone. Exactly that is understood here; anything else that points to
GPU code is a reason not to move it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smwheel.wheels.image import (
    PT_DYNAMIC,
    SHT_DYNSYM,
    SHT_REL,
    SHT_RELA,
    SHT_RELR,
    SHT_SYMTAB,
    Buffer,
    Image,
    Section,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RECORD_SECTION = ".nvFatBinSegment"
# e_machine → the relocation that adds the load address to its addend.
RELATIVE = {62: 8, 183: 1027}

_RECORD = struct.Struct("<IIQQ")
_RECORD_MAGIC = 0x466243B1
_RECORD_PLAIN = 1  # 2: relocatable device code
_RELA = struct.Struct("<QQq")
_SYMBOL = struct.Struct("<IBBHQQ")
_WORD = struct.Struct("<Q")
_STT_TLS, _SHN_UNDEF, _SHN_ABS = 6, 0, 0xFFF1  # symbols whose value is no address in the file
_DT_RELA, _DT_RELR = 7, 36
# DT_REL, and Android's packed tables.
_UNREAD_TAGS = {17, 0x6000000F, 0x60000011}


class CannotCutError(Exception):
    """The file holds something that cutting does not understand; the message says what. `cut` catches it."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A relocated pointer: its address, what it points to, and where the relocation's addend lies in the file."""

    place: int
    target: int
    addend: int | None


def moved_pointers(image: Image, buffer: Buffer, section: Section, moves: Mapping[int, int]) -> dict[int, bytes]:
    """Return the changes (offset in the file → bytes) that make every pointer into `section` follow its region.

    `moves` maps the old address of each region to the new one.

    Raises:
        CannotCutError: pointers, records and regions do not match one to one, or have an unknown form.

    """
    changes: dict[int, bytes] = {}
    inside = [
        pointer
        for pointer in pointers(image, buffer)
        if section.address <= pointer.target < section.address + section.size
    ]
    for pointer in inside:
        if pointer.target not in moves:
            raise CannotCutError(f"something points into the middle of GPU code, to {pointer.target:#x}")
        offset = image.offset_of(pointer.place)
        if offset is None:
            raise CannotCutError("a pointer to GPU code lies outside the file")
        value = _WORD.unpack_from(buffer, offset)[0]
        # With an addend the place itself may hold 0 (lld) or the same value (GNU ld); the loader overwrites it.
        if value not in ((pointer.target,) if pointer.addend is None else (0, pointer.target)):
            raise CannotCutError("a pointer to GPU code does not hold what its relocation says")
        if value:
            changes[offset] = _WORD.pack(moves[pointer.target])
        if pointer.addend is not None:
            changes[pointer.addend] = _WORD.pack(moves[pointer.target])
    places = sorted(pointer.place for pointer in inside)
    if places != sorted(_records(image, buffer)) or sorted(p.target for p in inside) != sorted(moves):
        raise CannotCutError("regions of GPU code and the pointers to them do not match one to one")
    return changes


def moved_symbols(image: Image, buffer: Buffer, section: Section, moves: Mapping[int, int]) -> dict[int, bytes]:
    """Return the changes that make local symbols in `section` follow their regions.

    Raises:
        CannotCutError: a symbol is exported, or names something other than a region.

    """
    changes: dict[int, bytes] = {}
    for table in image.sections:
        if table.kind not in (SHT_SYMTAB, SHT_DYNSYM):
            continue
        for index, symbol in enumerate(_SYMBOL.iter_unpack(buffer[table.offset : table.end])):
            kind, defined, value = symbol[1] & 0xF, symbol[3], symbol[4]
            if kind == _STT_TLS or defined in (_SHN_UNDEF, _SHN_ABS):
                continue
            if not section.address <= value < section.address + section.size:
                continue
            if table.kind == SHT_DYNSYM or value not in moves:
                raise CannotCutError("a symbol names a place in GPU code")
            changes[table.offset + index * _SYMBOL.size + 8] = _WORD.pack(moves[value])
    return changes


def _records(image: Image, buffer: Buffer) -> list[int]:
    """Return the addresses of the pointers in the records."""
    places = []
    for section in image.sections:
        if section.name != RECORD_SECTION:
            continue
        for index, record in enumerate(_RECORD.iter_unpack(buffer[section.offset : section.end])):
            magic, version, _, _ = record
            if magic != _RECORD_MAGIC:
                raise CannotCutError("a record of the CUDA runtime has an unknown form")
            if version != _RECORD_PLAIN:
                raise CannotCutError("relocatable device code: not shown to launch after a cut")
            places.append(section.address + index * _RECORD.size + 8)
    return places


def pointers(image: Image, buffer: Buffer) -> Iterator[Pointer]:
    """Yield every pointer that the loader relocates by the load address alone."""
    tables = {section.address for section in image.sections if section.loaded}
    for tag, value in _dynamic(image, buffer):
        if tag in _UNREAD_TAGS:
            raise CannotCutError("it has relocations in a form that is not read")
        if tag in (_DT_RELA, _DT_RELR) and value not in tables:
            raise CannotCutError("its relocations lie outside the sections")
    for section in image.sections:
        if not section.loaded:
            continue
        if section.kind == SHT_REL:
            raise CannotCutError("it has relocations without addends")
        if section.kind == SHT_RELA:
            data = buffer[section.offset : section.end]
            yield from _rela(data, section.offset, RELATIVE[image.machine])
        if section.kind == SHT_RELR:
            yield from _relr(image, buffer, buffer[section.offset : section.end])


def _rela(data: Buffer, start: int, relative: int) -> Iterator[Pointer]:
    """Yield the pointers of a table with addends.

    Relocations against a symbol are left out: that no symbol lies in GPU code is checked with the symbols.
    """
    for index, (place, info, addend) in enumerate(_RELA.iter_unpack(data)):
        if info == relative:
            yield Pointer(place, addend, start + index * _RELA.size + 16)


def _relr(image: Image, buffer: Buffer, data: Buffer) -> Iterator[Pointer]:
    """Yield the pointers of a table of packed relative relocations: their values stand in place only."""
    base = 0
    for (word,) in _WORD.iter_unpack(data):
        if word & 1:
            places = [base + 8 * bit for bit in range(63) if word >> (bit + 1) & 1]
            base += 63 * 8
        else:
            places = [word]
            base = word + 8
        for place in places:
            offset = image.offset_of(place)
            if offset is None:
                raise CannotCutError("a relocation applies to a place outside the file")
            yield Pointer(place, _WORD.unpack_from(buffer, offset)[0], None)


def _dynamic(image: Image, buffer: Buffer) -> Iterator[tuple[int, int]]:
    """Yield tags and values of the dynamic segment."""
    for segment in image.segments:
        if segment.kind == PT_DYNAMIC:
            yield from struct.iter_unpack("<QQ", buffer[segment.offset : segment.end])
