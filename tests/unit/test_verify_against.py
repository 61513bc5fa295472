"""A cut wheel against its original."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from wheelmaker import GOOD, OPS, ops, problems, wheel

from smwheel.arch import Arch
from smwheel.verify import Expectations, Status, verify_wheel
from smwheel.wheels.fatbin import list_entries
from smwheel.wheels.thin import thin_wheel
from smwheel.wheels.wheelfile import Wheel, rewrite_wheel

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMWHEEL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return wheel(tmp_path, [(OPS, ops(tmp_path / "so", "80", "120a", "90a"))], version="1.0")


@pytest.fixture
def thinned(tmp_path: Path, original: Path) -> Path:
    return thin_wheel(original, tmp_path / "thin", Arch.parse("120")).wheel


def pinned(original: Path) -> Expectations:
    return replace(GOOD, against=original, original=hashlib.sha256(original.read_bytes()).hexdigest())


def changed(path: Path, tmp_path: Path, offset: int) -> Path:
    """The wheel with one byte of its library flipped, everything else (RECORD too) consistent."""
    with Wheel(path) as opened:
        opened.extract(tmp_path / "x", [OPS])
    library = tmp_path / "x" / OPS
    data = bytearray(library.read_bytes())
    data[offset] ^= 1
    library.write_bytes(data)
    return rewrite_wheel(path, tmp_path / "changed", replace={OPS: library})


def test_a_cut_wheel_is_proven(original: Path, thinned: Path) -> None:
    verdict = verify_wheel(thinned, pinned(original))
    assert [one.code for one in verdict.having(Status.PASSED) if one.code.startswith("W8")] == ["W801", "W802"]
    assert verdict.error() is None


def test_without_the_original_it_is_not(original: Path, thinned: Path) -> None:
    verdict = verify_wheel(thinned, replace(pinned(original), against=None))
    assert {one.code for one in verdict.having(Status.NOT_MADE)} == {"W801", "W802"}


def test_another_original_than_the_pinned_one(original: Path, thinned: Path) -> None:
    assert "pinned is 00" in problems(thinned, "W801", replace(pinned(original), original="0" * 64))[0].message


def test_one_flipped_byte_inside_a_kept_cubin(tmp_path: Path, original: Path, thinned: Path) -> None:
    with Wheel(thinned) as opened:
        opened.extract(tmp_path / "y", [OPS])
    entry = list_entries(tmp_path / "y" / OPS)[0]
    path = changed(thinned, tmp_path, entry.payload_offset + 3)
    found = problems(path, "W802", pinned(original))
    assert [one.file for one in found] == [OPS]
    assert "sm_120a code is not the original's" in found[0].message
    assert problems(path, "W101", pinned(original)) == []


def test_one_flipped_byte_outside_the_gpu_code(tmp_path: Path, original: Path, thinned: Path) -> None:
    with Wheel(thinned) as opened:
        opened.extract(tmp_path / "y", [OPS])
    text = (tmp_path / "y" / OPS).read_bytes().index(b"made_for_a_test")
    found = problems(changed(thinned, tmp_path, text), "W802", pinned(original))
    assert "outside the GPU code" in found[0].message
