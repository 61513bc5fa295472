from __future__ import annotations

import random
from typing import TYPE_CHECKING

import gpufiles
import pytest

from smwheel.wheels import fatbin
from smwheel.wheels.skeleton import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def fat(*codes: str) -> bytes:
    entries = [gpufiles.entry(code, random.Random(code).randbytes(50_000)) for code in codes]
    return gpufiles.elf_with(gpufiles.region(*entries), gpufiles.region(*entries[:1]))


@pytest.mark.parametrize("size", [7, 64, 1000, 1 << 20])
def test_leaves_holes_for_what_is_not_wanted_and_nothing_else(tmp_path: Path, size: int) -> None:
    data = fat("80", "90a", "120a")
    path = tmp_path / "x.so"
    unpack(lambda: pieces(data, size), path, lambda entry: entry.arch.code != "120a", where="x")
    expected = bytearray(data)
    for entry in fatbin.list_entries(path):
        if entry.arch.code != "120a":
            expected[entry.payload_offset : entry.payload_offset + entry.payload_size] = bytes(entry.payload_size)
    assert path.read_bytes() == bytes(expected)
    assert path.stat().st_blocks * 512 < len(data) - 100_000


def test_file_that_ends_in_a_hole_keeps_its_size(tmp_path: Path) -> None:
    data = fat("80")
    cut = data[: len(data) - 100]  # the section table is gone: no hole can be confirmed
    unpack(lambda: pieces(cut, 1000), tmp_path / "x.so", lambda _: True, where="x")
    assert (tmp_path / "x.so").read_bytes() == cut


@pytest.mark.parametrize("lead", [b"", b"\x7fELF"])
def test_bytes_that_only_look_like_a_region_are_kept(tmp_path: Path, lead: bytes) -> None:
    """A tool that makes fat binaries holds a region's first bytes in its own code."""
    decoy = gpufiles.region(gpufiles.entry("80", b"x" * 4000))
    data = gpufiles.ElfMaker().add(".rodata", decoy).add(".nv_fatbin", gpufiles.region_for("80")).build()
    if not lead:
        data = b"not ELF" + bytes(9) + decoy
    unpack(lambda: pieces(data, 512), tmp_path / "x.so", lambda _: True, where="x")
    assert (tmp_path / "x.so").read_bytes() == data


def test_unaligned_or_broken_lookalikes_are_passed_over(tmp_path: Path) -> None:
    odd = b"..." + fatbin.REGION_MAGIC + b"\xff" * 60 + fatbin.REGION_MAGIC * 3
    data = gpufiles.ElfMaker().add(".rodata", odd).add(".nv_fatbin", gpufiles.region_for("80", "90")).build()
    unpack(lambda: pieces(data, 100), tmp_path / "x.so", lambda _: True, where="x")
    assert [entry.arch.code for entry in fatbin.list_entries(tmp_path / "x.so")] == ["80", "90"]
    assert (tmp_path / "x.so").stat().st_size == len(data)
