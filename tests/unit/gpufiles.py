"""Makes small fat binaries and ELF files that hold them, byte by byte, for tests and fuzzing."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import lz4.block
import zstandard

if TYPE_CHECKING:
    import random

FLAGS = {"": 0x11, "a": 0x100011, "f": 0x200011}
CUBIN, PTX, LTOIR = 2, 1, 8


def entry(
    code: str,
    payload: bytes = b"machine code",
    *,
    kind: int = CUBIN,
    compress: str = "",
    header_size: int = 64,
    flags: int = 0,
) -> bytes:
    """One entry for e.g. `120a`; its payload is padded to 8 bytes."""
    number, suffix = int(code.rstrip("af")), code.lstrip("0123456789")
    flags |= FLAGS[suffix]
    stored, uncompressed = payload, 0
    if compress:
        uncompressed = len(payload)
        if compress == "zstd":
            stored, flags = zstandard.compress(payload), flags | 0x8000
        else:
            stored, flags = lz4.block.compress(payload, store_size=False), flags | 0x2000
    compressed = len(stored) if compress else 0
    stored += bytes(-len(stored) % 8)
    header = struct.pack(
        "<HHIQIIHHIIIQQQ",
        *(kind, 0x0101, header_size, len(stored), compressed, 0, 8, 1, number, 0, 0, flags, 0, uncompressed),
    )
    return header + bytes(header_size - len(header)) + stored


def region(*entries: bytes) -> bytes:
    """A region of these entries."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def region_for(*codes: str) -> bytes:
    """A region with one cubin for each of `codes`, every payload different."""
    return region(*(entry(code, f"machine code for {code}. ".encode() * 9) for code in codes))


@dataclass
class ElfMaker:
    """A little-endian ELF64 file of named sections, with no segments: for reading only."""

    sections: list[tuple[str, bytes, int]] = field(default_factory=list)

    def add(self, name: str, content: bytes, kind: int = 1) -> ElfMaker:
        """Add a section; kind 1 is PROGBITS, 8 is NOBITS."""
        self.sections.append((name, content, kind))
        return self

    def build(self) -> bytes:
        """Return the file's bytes."""
        names = b"\0" + b"".join(name.encode() + b"\0" for name, _, _ in self.sections) + b".shstrtab\0"
        body, headers = bytearray(64), bytearray(64)
        for name, content, kind in [*self.sections, (".shstrtab", names, 3)]:
            body += bytes(-len(body) % 16)
            where = names.index(b"\0" + name.encode() + b"\0") + 1
            headers += struct.pack("<IIQQQQIIQQ", where, kind, 2, len(body), len(body), len(content), 0, 0, 8, 0)
            if kind != 8:
                body += content
        body += bytes(-len(body) % 8)
        number = len(headers) // 64
        header = (b"\x7fELF\x02\x01\x01".ljust(16, b"\0"), 3, 62, 1, 0, 0, len(body), 0, 64, 0, 0, 64)
        body[:64] = struct.pack("<16sHHIQQQIHHHHHH", *header, number, number - 1)
        return bytes(body + headers)


def elf_with(*regions: bytes, relocatable: bytes = b"") -> bytes:
    """An ELF file whose `.nv_fatbin` holds these regions, each aligned to 8 bytes."""
    section = b"".join(part + bytes(-len(part) % 8) for part in regions)
    maker = ElfMaker().add(".text", b"\xc3" * 32).add(".nv_fatbin", section)
    if relocatable:
        maker.add("__nv_relfatbin", relocatable)
    return maker.build()


EXTREME = (
    0,
    1,
    7,
    8,
    63,
    64,
    0x7F,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 62,
    (1 << 63) - 1,
    (1 << 64) - 1,
)


def mutate(source: random.Random, data: bytes) -> bytes:
    """Change a few bytes, put an extreme number somewhere, cut the end off, or move a part."""
    result = bytearray(data)
    for _ in range(source.randint(1, 3)):
        match source.randrange(5):
            case 0 | 1:
                result[source.randrange(len(result))] ^= 1 << source.randrange(8)
            case 2 | 3:
                layout = source.choice("HIQ")
                offset = source.randrange(0, max(1, len(result) - 8), 2)
                value = source.choice(EXTREME) & ((1 << 8 * struct.calcsize(layout)) - 1)
                struct.pack_into("<" + layout, result, offset, value)
            case _:
                start = source.randrange(len(result))
                del result[start : start + source.randint(1, 64)]
        if len(result) < 16:
            break
    return bytes(result)
