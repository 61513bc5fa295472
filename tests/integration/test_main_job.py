"""The main job on real input: FlashInfer's published source, the provisioned CUDA, real nvcc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from smwheel.wheels.fatbin import Kind, code_of

pytestmark = pytest.mark.integration

MODULES = "norm,silu_and_mul,page"
STACK = ["--stack", "torch2.11-cu130"]


def smwheel(*arguments: str, cwd: Path, expect: int = 0) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", "from smwheel.cli import main; main()", *arguments, "--json"],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == expect, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


def libraries(wheel: Path, directory: Path) -> dict[str, Counter[tuple[Kind, str]]]:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return {
        path.stem: Counter({(kind, arch.code): count for (kind, arch), count in code_of(path).items()})
        for path in directory.rglob("*.so")
    }


@pytest.mark.parametrize("arch", ["120a", "90a"])
def test_each_architecture_holds_only_its_own_code(site: Path, tmp_path: Path, arch: str) -> None:
    result = smwheel("build", "flashinfer", "--arch", arch, *STACK, "--modules", MODULES, cwd=site)
    kernels = next(entry for entry in result["wheels"] if entry["holds"])
    assert kernels["level"] == "static"
    found = libraries(site / "wheelhouse" / kernels["file"], tmp_path)
    assert set(found) == set(MODULES.split(","))
    for name, code in found.items():
        assert set(code) == {(Kind.CUBIN, arch)}, f"{name} holds {code}"


def test_an_unchanged_plan_makes_nothing_again(site: Path) -> None:
    first = smwheel("build", "flashinfer", "--arch", "120a", *STACK, "--modules", MODULES, cwd=site)
    events = next((site / ".work").glob("flashinfer-0.6.4-120a-*")) / "log" / "compile.log"
    before = events.read_bytes()
    again = smwheel("build", "flashinfer", "--arch", "120a", *STACK, "--modules", MODULES, cwd=site)
    assert again["wheels"] == first["wheels"]
    assert events.read_bytes() == before


def counts(site: Path, *arguments: str) -> tuple[int, int]:
    (plan,) = smwheel("plan", "flashinfer", "--arch", "120", *STACK, *arguments, cwd=site)["plans"]
    compiled = [unit for unit in plan["units"] if unit["kind"] in ("cuda", "cxx")]
    return len(plan["modules"]), len(compiled)


def test_the_full_set_is_what_upstreams_generators_make(site: Path) -> None:
    """642 modules and about 2,637 units were counted from upstream's own functions, by hand."""
    modules, units = counts(site, "--profile", "full")
    assert modules == pytest.approx(642, rel=0.01)
    assert units == pytest.approx(2637, rel=0.01)


def test_counts_come_from_the_generator(site: Path) -> None:
    """One module fewer asked for is one module fewer counted, with its units."""
    modules, units = counts(site, "--modules", MODULES)
    fewer_modules, fewer_units = counts(site, "--modules", MODULES.replace(",page", ""))
    assert (modules, fewer_modules) == (3, 2)
    assert fewer_units < units


def test_exactly_the_modules_of_a_jit_directory(site: Path, tmp_path: Path) -> None:
    for name in ("norm", "page"):
        (tmp_path / "cached_ops" / name).mkdir(parents=True)
        (tmp_path / "cached_ops" / name / "build.ninja").touch()
    (plan,) = smwheel(
        "plan", "flashinfer", "--arch", "120", *STACK, "--modules-from", str(tmp_path / "cached_ops"), cwd=site
    )["plans"]
    assert {module["name"] for module in plan["modules"]} == {"norm", "page"}
