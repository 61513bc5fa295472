"""verify on the published wheels, and ELF facts against readelf. Downloads as `test_thin_real.py` says.

SMWHEEL_TEST_TORCH may name an environment with torch 2.14.1; without it one is made in the cache (5.5 GB).
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_thin_real import published

from smwheel import plan, recipe, stack
from smwheel.arch import Arch
from smwheel.errors import VerifyError
from smwheel.verify import Expectations, Imports, Level, Status, Verdict, verify_wheel
from smwheel.verify.environment import environment
from smwheel.verify.expectations import from_resolution
from smwheel.verify.subject import Library, Subject
from smwheel.wheels import rules, thin

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

GPU = Arch.parse("120")


def expected(stack_name: str) -> Expectations:
    return from_resolution(plan.resolve(recipe.load("sgl-kernel"), stack.load(stack_name), GPU, strategy="thin"))


def found(verdict: Verdict, code: str) -> str:
    result = next(one for one in verdict.results if one.code == code)
    return "\n".join(map(str, result.problems))


@pytest.fixture(scope="module")
def libraries() -> Iterator[list[Library]]:
    with Subject(published("0.4.10")) as subject:
        yield subject.libraries


def test_facts_equal_what_readelf_says(libraries: list[Library]) -> None:
    assert len(libraries) == 6
    for library in libraries:
        facts = library.facts
        tags = subprocess.run(["readelf", "-dW", library.path], check=True, capture_output=True, text=True).stdout
        assert facts.needed == tuple(re.findall(r"\(NEEDED\).*\[(.*)\]", tags)), library.name
        symbols = subprocess.run(
            ["readelf", "--dyn-syms", "-W", library.path], check=True, capture_output=True, text=True
        ).stdout
        rows = [line.split() for line in symbols.splitlines() if re.match(r" +\d+: ", line)]
        named = [(row[4], row[5], row[6], row[7].partition("@")[0]) for row in rows if len(row) > 7]
        outside = [one for one in named if one[0] != "LOCAL"]
        undefined = {name for bind, _, section, name in outside if section == "UND" and bind != "WEAK"}
        weak = {name for bind, _, section, name in outside if section == "UND" and bind == "WEAK"}
        exported = {name for _, seen, section, name in outside if section != "UND" and seen in ("DEFAULT", "PROTECTED")}
        assert (facts.undefined, facts.weak_undefined, facts.exported) == (undefined, weak, exported), library.name
        needs = subprocess.run(["readelf", "-VW", library.path], check=True, capture_output=True, text=True).stdout
        for space, version in facts.versions.items():
            versions = {tuple(map(int, text.split("."))) for text in re.findall(rf"Name: {space}_([\d.]+) ", needs)}
            assert version == max(versions), library.name


def test_0_3_21_under_the_stack_of_today() -> None:
    """CUDA 12 libraries, torch's names gone, a linux tag, no pin of torch: each told by its own code."""
    verdict = verify_wheel(published("0.3.21"), expected("sglang-0.5.23"))
    assert isinstance(verdict.error(), VerifyError)
    failed = {one.code for one in verdict.having(Status.FAILED)}
    assert failed >= {"W103", "W104", "W107", "W202", "W203", "W301", "W302", "W401", "W404", "W405", "W501", "W701"}
    assert "libcudart.so.12 of CUDA 12, and the stack has CUDA 13" in found(verdict, "W302")
    assert "sgl_kernel/load_utils.py: loads libraries of CUDA 12 by name" in found(verdict, "W302")
    symbols = found(verdict, "W401")
    assert "sgl_kernel/sm100/common_ops.abi3.so: torch ABI: asks torch 2.14.1 for 7 names" in symbols
    assert "all are in torch 2.9.1" in symbols
    assert "c10_cuda_check_implementation" in symbols
    assert "is tagged linux_x86_64" in found(verdict, "W501")
    assert "does not require torch" in found(verdict, "W404")
    assert "libnuma.so.1" in found(verdict, "W301")
    assert "_mscclpp.cpython-310" in found(verdict, "W405")
    assert "include/" in found(verdict, "W107")


def test_0_3_21_fits_torch_2_9_alone() -> None:
    """On CUDA 12.8 the wheel holds sm_120a and pins nothing, and still it is no wheel for torch 2.10."""
    path = published("0.3.21")
    with_2_10 = verify_wheel(path, expected("torch2.10-cu128"))
    missing = found(with_2_10, "W401")
    assert "asks torch 2.10.0 for 2 names" in missing
    assert "c10_cuda_check_implementation" in missing
    assert "MessageLogger" in missing
    assert found(verify_wheel(path, expected("sglang-0.5.9")), "W401") == ""


def test_0_4_10_as_published() -> None:
    verdict = verify_wheel(published("0.4.10"), replace(expected("sglang-0.5.23"), one_python=()))
    failed = {one.code: found(verdict, one.code) for one in verdict.having(Status.FAILED)}
    assert set(failed) == {"W202", "W203", "W405", "W501", "W701", "W702"}
    assert "flash_ops.abi3.so: has no code for sm_120a: it has sm_80, sm_86, sm_90a" in failed["W202"]
    assert "infllm_ops.cpython-310" in failed["W405"]
    assert "manylinux2014_x86_64, and its symbols earn manylinux_2_24_x86_64" in failed["W501"]


def test_0_4_10_cut_to_sm_120_is_proven_and_imports(tmp_path: Path) -> None:
    original = published("0.4.10")
    rule = rules.rules_for(recipe.load("sgl-kernel"), "0.4.10", GPU)
    cut = thin.thin_wheel(original, tmp_path, GPU, rules=rule).wheel
    given = os.environ.get("SMWHEEL_TEST_TORCH")
    imports = Imports(Path(given) / "bin/python" if given else None, print)
    expect = replace(expected("sglang-0.5.23"), against=original)
    verdict = verify_wheel(cut, expect, imports=imports)
    assert [str(one) for one in verdict.results if one.status is not Status.PASSED] == []
    assert verdict.level is Level.IMPORTED
    notes = {one.code: one.notes for one in verdict.results}
    assert "capability 12.0: sgl_kernel/sm100/common_ops.abi3.so" in notes["W603"]
    assert "13 operators registered" in notes["W604"]


def test_an_environment_is_made_once_and_its_size_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMWHEEL_CACHE", str(tmp_path))
    said: list[str] = []
    python = environment(["six==1.16.0"], said.append)
    assert re.search(r"six==1\.16\.0: 1 packages, 0\.00 GB to fetch, about twice that on disk, into ", said[0])
    subprocess.run([python, "-c", "import six"], check=True)
    assert environment(["six==1.16.0"], said.append) == python
    assert len(said) == 1
