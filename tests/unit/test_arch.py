"""Architectures: spellings, families, CUDA versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from smwheel.arch import Arch, known
from smwheel.errors import ArchError


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("120", "120"), ("12.0", "120"), ("12.0a", "120a"), ("sm_120a", "120a"), ("compute_120f", "120f"),
        ("SM_90A", "90a"), ("9.0", "90"), ("sm89", "89"), (" 121f ", "121f"), ("10.3a", "103a"),
    ],
)  # fmt: skip
def test_every_spelling(text: str, code: str) -> None:
    assert Arch.parse(text).code == code


@pytest.mark.parametrize(
    ("text", "hint"),
    [("125", "120"), ("sm_12O", "12"), ("120x", "120"), ("", "known"), ("89a", "write 89"),
     ("90f", "write 90"), ("12.0;9.0", "120"), ("1200", "120"), ("blackwell", "known")],
)  # fmt: skip
def test_unknown_names_the_nearest(text: str, hint: str) -> None:
    with pytest.raises(ArchError) as caught:
        Arch.parse(text)
    assert hint in caught.value.cure


def test_spellings_for_each_tool() -> None:
    arch = Arch.parse("120f")
    assert arch.gencode == "-gencode=arch=compute_120f,code=sm_120f"
    assert (arch.dotted, arch.capability, arch.cmake) == ("12.0f", "12.0", "120f-real")


@pytest.mark.parametrize(
    ("code", "gpu", "loads"),
    [
        ("120a", "120", True), ("120a", "121", False), ("120f", "121", True), ("121f", "120", False),
        ("120", "121", True), ("121", "120", False), ("90", "120", False), ("100f", "103", True),
        ("100f", "110", False), ("100f", "120", False), ("80", "86", True), ("86", "80", False),
        ("90a", "90", True),
    ],
)  # fmt: skip
def test_what_loads_on_what(code: str, gpu: str, loads: bool) -> None:
    assert Arch.parse(code).loads_on(Arch.parse(gpu)) is loads


@pytest.mark.parametrize(
    ("ptx", "gpu", "runs"),
    [
        ("80", "120", True),
        ("120", "90", False),
        ("90a", "120", False),
        ("120f", "121", True),
        ("90a", "90", True),
    ],
)
def test_where_ptx_runs(ptx: str, gpu: str, runs: bool) -> None:
    assert Arch.parse(ptx).ptx_runs_on(Arch.parse(gpu)) is runs


def test_cuda_needed() -> None:
    assert Arch.parse("120a").first_cuda == Version("12.8")
    assert Arch.parse("120f").first_cuda == Version("12.9")
    Arch.parse("120a").require_cuda(Version("12.8"))
    with pytest.raises(ArchError, match=r"sm_120f needs CUDA 12\.9"):
        Arch.parse("120f").require_cuda(Version("12.8"))


@given(st.sampled_from(known()))
def test_every_known_arch_reads_back_from_each_spelling(arch: Arch) -> None:
    for text in (arch.code, arch.sm, arch.compute, arch.dotted):
        assert Arch.parse(text) == arch
    assert arch.loads_on(arch)
