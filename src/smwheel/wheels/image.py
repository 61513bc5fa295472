"""The tables of an ELF file that say where everything lies: header, segments, sections; to read and to write back.

Reading facts from ELF files is `elf.py`'s and pyelftools' work. What is here is what moving bytes inside a file
needs, and what finding GPU code in a file of a gigabyte, or of 100,000 sections, needs to be fast. Little-endian
ELF64 only: CUDA has no other hosts. Source of the layout: the System V ABI, chapters 4 and 5.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import astuple, dataclass
from typing import Self

from smwheel.errors import MalformedError

Buffer = bytes | bytearray | memoryview | mmap.mmap

PT_NULL, PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_PHDR = 0, 1, 2, 3, 4, 6
PF_W = 2
SHT_PROGBITS, SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL, SHT_DYNSYM, SHT_RELR = 1, 2, 4, 8, 9, 11, 19
SHF_WRITE, SHF_ALLOC = 1, 2
ET_DYN = 3
MAGIC = b"\x7fELF\x02\x01"

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SHN_XINDEX = 0xFFFF
_PN_XNUM = 0xFFFF
_SECTION_TABLE_FIELD = 0x28


@dataclass(slots=True)
class Segment:
    """A program header; the fields in the file's order."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    size: int
    memory: int
    align: int

    @property
    def end(self) -> int:
        """The file offset behind its last byte."""
        return self.offset + self.size


@dataclass(slots=True)
class Section:
    """A section header; the fields after `name` in the file's order."""

    name: str
    name_offset: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    item: int

    @property
    def end(self) -> int:
        """The file offset behind its last byte."""
        return self.offset + (0 if self.kind == SHT_NOBITS else self.size)

    @property
    def loaded(self) -> bool:
        """Whether it is part of the program's memory."""
        return bool(self.flags & SHF_ALLOC)


@dataclass(slots=True)
class Image:
    """All tables of one file; change them, then `tables` gives what to write where."""

    kind: int
    machine: int
    segment_table: int
    section_table: int
    segments: list[Segment]
    sections: list[Section]

    @classmethod
    def read(cls, buffer: Buffer, *, where: str) -> Self:
        """Read the tables of a file.

        Raises:
            MalformedError: not little-endian ELF64, or a table lies outside the file.

        """
        sections = read_sections(buffer, where=where)
        header = _HEADER.unpack_from(buffer)
        table, size, number = header[5], header[9], header[10]
        if number == _PN_XNUM or (number and size != _SEGMENT.size):
            raise malformed(where, 0x36, f"{number} program headers of {size} bytes each cannot be read")
        if table + number * _SEGMENT.size > len(buffer):
            raise malformed(where, table, "the program headers reach beyond the end of the file")
        segments = [Segment(*fields) for fields in _SEGMENT.iter_unpack(buffer[table : table + number * _SEGMENT.size])]
        return cls(header[1], header[2], table, header[6], segments, sections)

    def offset_of(self, address: int) -> int | None:
        """Return where an address lies in the file; None if no segment loads it from there."""
        for segment in self.segments:
            if segment.kind == PT_LOAD and 0 <= address - segment.address < segment.size:
                return segment.offset + address - segment.address
        return None

    def tables(self) -> list[tuple[int, bytes]]:
        """Return offset and bytes of each table, and of the header's pointer to the sections."""
        segments = b"".join(_SEGMENT.pack(*astuple(segment)) for segment in self.segments)
        sections = b"".join(_SECTION.pack(*astuple(section)[1:]) for section in self.sections)
        return [
            (_SECTION_TABLE_FIELD, struct.pack("<Q", self.section_table)),
            (self.segment_table, segments),
            (self.section_table, sections),
        ]


def read_sections(buffer: Buffer, *, where: str) -> list[Section]:
    """Read the section table, however many sections there are.

    Raises:
        MalformedError: not little-endian ELF64, or the table is missing or lies outside the file.

    """
    if len(buffer) < _HEADER.size or bytes(buffer[:4]) != MAGIC[:4]:
        raise malformed(where, 0, "neither an ELF file nor a fat binary")
    ident, *_, table, _, _, _, _, size, number, names_index = _HEADER.unpack_from(buffer)
    if ident[:6] != MAGIC:
        raise malformed(where, 4, "not a little-endian 64-bit ELF file")
    if table == 0 or size != _SECTION.size:
        raise malformed(where, _SECTION_TABLE_FIELD, "no section table: where GPU code lies cannot be told")
    if table + size > len(buffer):
        raise malformed(where, table, "the section table lies beyond the end of the file: it is cut short")
    first = _SECTION.unpack_from(buffer, table)
    number = number or first[5]  # more sections than 16 bits hold: counted in the first header
    names_index = first[6] if names_index == _SHN_XINDEX else names_index
    if table + number * size > len(buffer):
        raise malformed(where, table, f"the table of {number} sections reaches beyond the end of the file")
    if names_index >= number:
        raise malformed(where, 0x3E, "the section that holds the sections' names does not exist")
    headers = list(_SECTION.iter_unpack(buffer[table : table + number * size]))
    _, kind, _, _, start, length, *_ = headers[names_index]
    if kind == SHT_NOBITS or start + length > len(buffer):
        raise malformed(where, start, "the sections' names lie beyond the end of the file")
    names = bytes(buffer[start : start + length]) + b"\0"
    return [Section(_name(names, fields[0]), *fields) for fields in headers]


def _name(names: bytes, offset: int) -> str:
    return names[offset : names.find(b"\0", offset)].decode("ascii", "replace")


def malformed(where: str, offset: int, message: str) -> MalformedError:
    """Return the error for a file that breaks its format at an offset."""
    return MalformedError(
        message,
        where=f"{where}, offset {offset:#x}",
        cure="get the file again and compare its hash; if it is right, report it: the format may be new",
    )
