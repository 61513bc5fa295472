"""CUDA fat binaries: what GPU code an ELF file holds, read without running or decompressing anything.

An ELF file made by nvcc carries its GPU code in the sections `.nv_fatbin` and, in relocatable-device-code
builds, `__nv_relfatbin`. A section is a run of *regions* with zero bytes between them; a region is a 16-byte
header and *entries*, each one cubin (machine code), PTX text or LTO-IR for one architecture. NVIDIA does not
document the layout; it was established on files of CUDA 11.8 to 13.2 and compared with `cuobjdump`. All is
little endian.

Nothing here trusts its input: every malformed file gives one MalformedError that names the file and the
offset, and memory is bounded by the number of entries (or, for a decompressed payload, by MAX_PAYLOAD).
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

import lz4.block
import zstandard

from smwheel.arch import Arch, Suffix
from smwheel.wheels.image import SHT_NOBITS, Buffer, Section, malformed, read_sections

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Compression = Literal["", "lz4", "zstd"]

SECTION_NAMES = (".nv_fatbin", "__nv_relfatbin")

REGION_MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
REGION_HEADER_SIZE = 16
ENTRY_HEADER_MIN = 64

# The most bytes that one payload may claim to hold when decompressed: ten times the largest cubin seen.
MAX_PAYLOAD = 1 << 30
# A zstd frame may ask its reader for a window of this size at most (what the command-line tool allows, too).
MAX_ZSTD_WINDOW = 1 << 27
# LZ4 cannot make a byte into more than this many.
LZ4_MAX_RATIO = 255

FLAG_LZ4 = 0x2000
FLAG_ZSTD = 0x8000
FLAG_ARCH_SPECIFIC = 0x100000
FLAG_FAMILY_SPECIFIC = 0x200000

_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_REGION_SIZE = struct.Struct("<Q")


class Kind(IntEnum):
    """What an entry is; the value is the one in the file."""

    PTX = 1
    CUBIN = 2
    LTOIR = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One cubin, PTX text or LTO-IR module; all sizes and offsets in bytes, offsets from the file's start.

    `compressed_size` and `uncompressed_size` are 0 for a payload that is stored as it is. `payload_size` is
    what the payload takes in the file, padding included.
    """

    kind: Kind
    arch: Arch
    offset: int
    header_size: int
    payload_size: int
    compressed_size: int
    uncompressed_size: int
    flags: int

    @property
    def size(self) -> int:
        """Header and payload: what the entry takes in the file."""
        return self.header_size + self.payload_size

    @property
    def payload_offset(self) -> int:
        """Where the payload starts in the file."""
        return self.offset + self.header_size

    @property
    def end(self) -> int:
        """Where the next entry, or the region's end, is."""
        return self.offset + self.size

    @property
    def compression(self) -> Compression:
        """How the payload is stored: "" as it is, "lz4" (a raw block) or "zstd" (one frame)."""
        if self.kind is Kind.LTOIR or not self.compressed_size:
            return ""  # LTO-IR is flagged zstd but is none: its format is the compiler's own
        if self.flags & FLAG_ZSTD:
            return "zstd"
        return "lz4" if self.flags & FLAG_LZ4 else ""


@dataclass(frozen=True, slots=True)
class Region:
    """A run of entries that one fat-binary record points to; offset and size in bytes within the file."""

    section: str
    offset: int
    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Header and entries."""
        return REGION_HEADER_SIZE + sum(entry.size for entry in self.entries)

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.offset + self.size


def list_entries(path: Path) -> list[Entry]:
    """Return every entry of an ELF file (`.so`, `.o`) or a bare fat binary, in file order.

    The file is mapped, not read. A file without GPU code gives an empty list.

    Raises:
        MalformedError: the file is neither, or does not follow its format.

    """
    with mapped(path) as buffer:
        return [entry for region in read_regions(buffer, where=str(path)) for entry in region.entries]


def code_of(path: Path) -> Counter[tuple[Kind, Arch]]:
    """Count a file's GPU code by kind and architecture, e.g. `{(CUBIN, 120a): 35}`; see list_entries."""
    return count(list_entries(path))


def count(entries: list[Entry]) -> Counter[tuple[Kind, Arch]]:
    """Count entries by kind and architecture."""
    return Counter((entry.kind, entry.arch) for entry in entries)


@contextmanager
def mapped(path: Path) -> Iterator[Buffer]:
    """Map a file for reading; an empty file gives empty bytes."""
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            yield buffer


def read_regions(buffer: Buffer, *, where: str) -> list[Region]:
    """Return the regions of a whole file: ELF, or a bare fat binary of `nvcc --fatbin`; `where` names it.

    Raises:
        MalformedError: see list_entries.

    """
    if bytes(buffer[: len(REGION_MAGIC)]) == REGION_MAGIC:
        return read_section(buffer, 0, len(buffer), where=where)
    return [
        region
        for section in find_sections(buffer, where=where)
        for region in read_section(buffer, section.offset, section.end, name=section.name, where=where)
    ]


def find_sections(buffer: Buffer, *, where: str) -> list[Section]:
    """Return the sections that hold GPU code, in the order of the section table (none: an empty list).

    Raises:
        MalformedError: the file is not little-endian ELF64, or its section table is missing or outside it.

    """
    sections = [section for section in read_sections(buffer, where=where) if section.name in SECTION_NAMES]
    for section in sections:
        if section.kind == SHT_NOBITS:
            message = f"section {section.name} has no bytes: this is a debug file without its content"
            raise malformed(where, section.offset, message)
        if section.end > len(buffer):
            message = f"section {section.name} of {section.size} bytes reaches beyond the end of the file"
            raise malformed(where, section.offset, message)
    return sections


def read_section(buffer: Buffer, start: int, end: int, *, where: str, name: str = "") -> list[Region]:
    """Return the regions between two offsets; every byte between them must be zero.

    Raises:
        MalformedError: something in the section is no region, or a region does not follow the format.

    """
    regions = []
    while (start := _skip_zeros(buffer, start, end)) < end:
        region = _read_region(buffer, start, end, name, where)
        regions.append(region)
        start = region.end
    return regions


def read_payload(buffer: Buffer, entry: Entry, *, where: str) -> bytes:
    """Return an entry's payload, decompressed: a cubin (an ELF file), PTX text, or LTO-IR as it is stored.

    Raises:
        MalformedError: it does not decompress to exactly the size that the entry states, or states more than
            MAX_PAYLOAD.

    """
    size = entry.compressed_size or entry.payload_size
    data = bytes(buffer[entry.payload_offset : entry.payload_offset + size])
    if len(data) != size:
        raise malformed(where, entry.payload_offset, "the payload reaches beyond the end of the file")
    if not entry.compression:
        return data
    if entry.uncompressed_size > MAX_PAYLOAD:
        raise malformed(where, entry.offset, f"a payload claims {entry.uncompressed_size} bytes when decompressed")
    try:
        if entry.compression == "zstd":
            return _unzstd(data, entry.uncompressed_size)
        return _unlz4(data, entry.uncompressed_size)
    except (ValueError, zstandard.ZstdError, lz4.block.LZ4BlockError) as error:
        message = f"a {entry.compression} payload does not decompress: {error}"
        raise malformed(where, entry.payload_offset, message) from None


def read_entry(header: bytes, offset: int, *, where: str) -> Entry:
    """Decode one entry's header (its first 64 bytes), which lies at `offset` of the file.

    Raises:
        MalformedError: the header is cut short or holds a value that no compiler writes.

    """
    if len(header) < ENTRY_HEADER_MIN:
        raise malformed(where, offset, "an entry's header is cut short")
    fields = _ENTRY.unpack_from(header)
    kind, _, header_size, payload_size, compressed_size, _, _, _, number, _, _, flags, _, uncompressed = fields
    if kind not in Kind._value2member_map_:
        raise malformed(where, offset, f"an entry is of unknown kind {kind}")
    if header_size < ENTRY_HEADER_MIN:
        raise malformed(where, offset, f"an entry's header claims {header_size} bytes; 64 is the least")
    if compressed_size > payload_size:
        raise malformed(where, offset, f"{compressed_size} compressed bytes in a payload of {payload_size}")
    if not 10 <= number <= 999:
        raise malformed(where, offset, f"an entry is for architecture {number}, which cannot be")
    arch = Arch(number // 10, number % 10, _suffix(flags, offset, where))
    return Entry(Kind(kind), arch, offset, header_size, payload_size, compressed_size, uncompressed, flags)


def _read_region(buffer: Buffer, offset: int, limit: int, name: str, where: str) -> Region:
    if bytes(buffer[offset : offset + len(REGION_MAGIC)]) != REGION_MAGIC:
        raise malformed(where, offset, "neither a region of GPU code nor padding")
    if offset + REGION_HEADER_SIZE > limit:
        raise malformed(where, offset, "a region's header is cut short")
    end = offset + REGION_HEADER_SIZE + _REGION_SIZE.unpack_from(buffer, offset + 8)[0]
    if end > limit:
        raise malformed(where, offset, f"a region reaches {end - limit} bytes beyond its section")
    entries = []
    position = offset + REGION_HEADER_SIZE
    while position < end:
        header = bytes(buffer[position : min(position + ENTRY_HEADER_MIN, end)])
        entry = read_entry(header, position, where=where)
        if entry.end > end:
            raise malformed(where, position, f"an entry reaches {entry.end - end} bytes beyond its region")
        entries.append(entry)
        position = entry.end
    return Region(name, offset, tuple(entries))


def _suffix(flags: int, offset: int, where: str) -> Suffix:
    match bool(flags & FLAG_ARCH_SPECIFIC), bool(flags & FLAG_FAMILY_SPECIFIC):
        case True, True:
            raise malformed(where, offset, "an entry is both architecture- and family-specific")
        case True, False:
            return "a"
        case False, True:
            return "f"
        case _:
            return ""


def _skip_zeros(buffer: Buffer, position: int, end: int) -> int:
    """Return the place of the next byte that is not zero, or `end`."""
    step = 16
    while position < end:
        chunk = bytes(buffer[position : min(position + step, end)])
        stripped = chunk.lstrip(b"\0")
        if stripped:
            return position + len(chunk) - len(stripped)
        position += len(chunk)
        step = min(step * 16, 1 << 20)
    return end


def _unzstd(data: bytes, size: int) -> bytes:
    """Decompress one frame in steps: what a frame says of its own size is not believed."""
    reader = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW).stream_reader(data)
    parts: list[bytes] = []
    total = 0
    while part := reader.read(1 << 20):
        total += len(part)
        if total > size:
            break
        parts.append(part)
    if total != size:
        raise ValueError(f"not the {size} bytes stated")
    return b"".join(parts)


def _unlz4(data: bytes, size: int) -> bytes:
    """Decompress a raw block; it is given the stated size as its buffer, so that must be possible at all."""
    if size > len(data) * LZ4_MAX_RATIO:
        raise ValueError(f"{len(data)} bytes cannot hold the {size} stated")
    result: bytes = lz4.block.decompress(data, uncompressed_size=size)
    if len(result) != size:
        raise ValueError(f"{len(result)} bytes, not the {size} stated")
    return result
