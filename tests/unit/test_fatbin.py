from __future__ import annotations

import random
import struct
import tracemalloc
from collections import Counter
from typing import TYPE_CHECKING

import gpufiles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smwheel.arch import Arch
from smwheel.errors import MalformedError
from smwheel.wheels import fatbin
from smwheel.wheels.fatbin import Kind

if TYPE_CHECKING:
    from pathlib import Path


def cubin(code: str) -> tuple[Kind, Arch]:
    return (Kind.CUBIN, Arch.parse(code))


@pytest.fixture
def fat() -> bytes:
    return gpufiles.elf_with(
        gpufiles.region_for("80", "90a", "100f", "120a"),
        gpufiles.region(
            gpufiles.entry("90", b".version 8.5\n" * 20, kind=gpufiles.PTX, compress="zstd", header_size=104),
            gpufiles.entry("120a", b"cubin" * 100, compress="lz4", header_size=120),
            gpufiles.entry("120", b"ir" * 100, kind=gpufiles.LTOIR, flags=0x18000),
        ),
        relocatable=gpufiles.region_for("120a"),
    )


def test_reads_every_entry_of_both_sections(tmp_path: Path, fat: bytes) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(fat)
    expected = Counter([cubin(code) for code in ("80", "90a", "100f", "120a", "120a", "120a")])
    expected[Kind.PTX, Arch.parse("90")] += 1
    expected[Kind.LTOIR, Arch.parse("120")] += 1
    assert fatbin.code_of(path) == expected


def test_offsets_and_sizes_point_at_the_payload(fat: bytes) -> None:
    first, second, rdc = fatbin.read_regions(fat, where="x")
    assert [region.section for region in (first, second, rdc)] == [
        ".nv_fatbin",
        ".nv_fatbin",
        "__nv_relfatbin",
    ]
    for entry in first.entries:
        payload = fat[entry.payload_offset : entry.payload_offset + entry.payload_size]
        assert payload.startswith(f"machine code for {entry.arch}.".encode())
    assert fat[first.offset : first.offset + 8] == fatbin.REGION_MAGIC
    assert first.end <= second.offset < first.end + 8
    assert [entry.header_size for entry in second.entries] == [104, 120, 64]


def test_decompresses_on_request(fat: bytes) -> None:
    ptx, code, ir = fatbin.read_regions(fat, where="x")[1].entries
    assert (ptx.compression, code.compression, ir.compression) == ("zstd", "lz4", "")
    assert fatbin.read_payload(fat, ptx, where="x") == b".version 8.5\n" * 20
    assert fatbin.read_payload(fat, code, where="x") == b"cubin" * 100
    assert fatbin.read_payload(fat, ir, where="x") == b"ir" * 100


def test_bare_fat_binary_and_file_without_code(tmp_path: Path) -> None:
    bare, plain = tmp_path / "x.fatbin", tmp_path / "x.so"
    bare.write_bytes(gpufiles.region_for("75", "120f"))
    plain.write_bytes(gpufiles.ElfMaker().add(".text", b"\xc3").build())
    assert fatbin.code_of(bare) == Counter([cubin("75"), cubin("120f")])
    assert fatbin.code_of(plain) == Counter()


def test_empty_region_is_no_code() -> None:
    (region,) = fatbin.read_regions(gpufiles.elf_with(gpufiles.region()), where="x")
    assert region.entries == ()
    assert region.size == 16


def broken(fat: bytes, offset: int, layout: str, value: int) -> bytes:
    data = bytearray(fat)
    struct.pack_into(layout, data, offset, value)
    return bytes(data)


SECTION = 96  # where gpufiles.elf_with puts .nv_fatbin


@pytest.mark.parametrize(
    ("offset", "layout", "value", "message", "place"),
    [
        (SECTION, "<I", 7, "neither a region of GPU code", SECTION),
        (SECTION + 8, "<Q", 1 << 63, "beyond its section", SECTION),
        (SECTION + 16, "<H", 3, "unknown kind 3", SECTION + 16),
        (SECTION + 20, "<I", 8, "64 is the least", SECTION + 16),
        (SECTION + 20, "<I", 0xFFFFFFFF, "beyond its region", SECTION + 16),
        (SECTION + 24, "<Q", (1 << 64) - 1, "beyond its region", SECTION + 16),
        (SECTION + 32, "<I", 0xFFFFFFFF, "compressed bytes in a payload", SECTION + 16),
        (SECTION + 16 + 0x1C, "<I", 7, "architecture 7", SECTION + 16),
        (SECTION + 16 + 0x28, "<Q", 0x300000, "both architecture- and family-specific", SECTION + 16),
        (SECTION + 8, "<Q", 40, "header is cut short", SECTION + 16),
        (4, "<B", 1, "not a little-endian 64-bit", 4),
        (40, "<Q", 0, "no section table", 40),
        (60, "<H", 5000, "beyond the end of the file", None),
        (62, "<H", 99, "does not exist", 0x3E),
    ],
)
def test_malformed_is_one_error_that_names_the_offset(
    offset: int, layout: str, value: int, message: str, place: int | None
) -> None:
    data = broken(gpufiles.elf_with(gpufiles.region_for("90")), offset, layout, value)
    with pytest.raises(MalformedError, match=message) as caught:
        fatbin.read_regions(data, where="lib.so")
    assert caught.value.where.startswith("lib.so, offset 0x")
    if place is not None:
        assert caught.value.where == f"lib.so, offset {place:#x}"


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20])
def test_what_is_no_elf_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(data)
    with pytest.raises(MalformedError, match="neither an ELF file"):
        fatbin.list_entries(path)


def test_debug_file_without_content_is_not_taken_for_one_without_code() -> None:
    data = gpufiles.ElfMaker().add(".nv_fatbin", bytes(64), kind=8).build()
    with pytest.raises(MalformedError, match="debug file"):
        fatbin.read_regions(data, where="x")


@pytest.mark.parametrize("compress", ["zstd", "lz4"])
@pytest.mark.parametrize("claimed", [0, 1, 499, 501, 1 << 20, 1 << 62])
def test_wrong_uncompressed_size_is_refused_in_little_memory(compress: str, claimed: int) -> None:
    packed = gpufiles.entry("90", b"x" * 500, compress=compress)
    data = broken(gpufiles.region(packed), 16 + 0x38, "<Q", claimed)
    (region,) = fatbin.read_regions(data, where="x")
    tracemalloc.start()
    with pytest.raises(MalformedError):
        fatbin.read_payload(data, region.entries[0], where="x")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@given(st.binary(max_size=400))
def test_any_bytes_behind_the_magic_give_regions_or_the_error(tail: bytes) -> None:
    look(fatbin.REGION_MAGIC + tail)


def test_mutated_files_give_regions_or_the_error(fat: bytes) -> None:
    source = random.Random(20261130)
    failed = sum(look(gpufiles.mutate(source, fat)) for _ in range(3000))
    assert 500 < failed < 3000, "mutations should both pass and fail"


def look(data: bytes) -> bool:
    """Read everything; whether the one permitted error came."""
    try:
        for region in fatbin.read_regions(data, where="x"):
            for entry in region.entries:
                fatbin.read_payload(data, entry, where="x")
    except MalformedError:
        return True
    return False
