"""Imports of small packages, with a stand-in for torch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from gpufiles import region_for
from sofiles import make_so
from wheelmaker import GOOD, OPS, wheel

from smwheel.arch import Arch
from smwheel.verify import Expectations, Imports, Level, Result, Status, verify_wheel
from smwheel.verify.environment import driver_stub
from smwheel.wheels.elf import read_elf

# Registers the operators that the libraries on its path would; knows no GPU.
TORCH = """
class ops:
    class ops:
        rmsnorm = 1
class cuda:
    pass
"""
LOADER = """
import torch, ctypes, glob, os
major = torch.cuda.get_device_capability() if hasattr(torch.cuda, "get_device_capability") else (0, 0)
where = os.path.join(os.path.dirname(__file__), "sm90" if major == (9, 0) else "sm100")
found = glob.glob(where + "/common_ops.*")
if not found:
    raise ImportError("could not load any common_ops library")
ctypes.CDLL(found[0])
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMWHEEL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter whose environment has the stand-in for torch."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "torch.py").write_text(TORCH)
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def library(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "common_ops.abi3.so"
    return make_so(path, asks=["cuInit"], needed=["libcuda.so.1"], fatbin=region_for("120a"))


def made(tmp_path: Path, init: str) -> Path:
    return wheel(tmp_path, files=[("ops/__init__.py", init.encode()), (OPS, library(tmp_path / "so"))])


def result(path: Path, code: str, python: Path, expect: Expectations = GOOD) -> Result:
    verdict = verify_wheel(path, expect, imports=Imports(python))
    return next(one for one in verdict.results if one.code == code)


def test_a_package_that_works(tmp_path: Path, python: Path) -> None:
    expect = replace(GOOD, ops=("ops::rmsnorm",))
    verdict = verify_wheel(made(tmp_path, LOADER), expect, imports=Imports(python))
    results = {one.code: one for one in verdict.results if one.code.startswith("W6")}
    assert {one.status for one in results.values()} == {Status.PASSED}
    assert f"mapped {OPS}" in results["W601"].notes[0]
    assert results["W602"].notes == ("works without torch imported before",)
    assert results["W603"].notes[0] == f"capability 12.0: {OPS}"
    assert "capability 9.0: none (ImportError: could not load" in results["W603"].notes[1]
    assert verdict.asked is Level.IMPORTED


def test_static_checks_alone_do_not_prove_imports(tmp_path: Path, python: Path) -> None:
    verdict = verify_wheel(made(tmp_path, LOADER), GOOD)
    assert not [one for one in verdict.results if one.code.startswith("W6")]


def test_works_only_after_torch(tmp_path: Path, python: Path) -> None:
    """extension-cpp PR#127: the tests had torch loaded already."""
    path = made(
        tmp_path, "import sys\nif 'torch' not in sys.modules: raise ImportError('libtorch_cuda.so: cannot open')\n"
    )
    assert result(path, "W601", python).status is Status.PASSED
    without = result(path, "W602", python)
    assert without.status is Status.PASSED
    assert without.notes == ("works only after import torch; without: ImportError: libtorch_cuda.so: cannot open",)


def test_without_torch_it_must_fail_clearly(tmp_path: Path, python: Path) -> None:
    path = made(tmp_path, "import sys\nif 'torch' not in sys.modules: raise KeyError('x')\n")
    assert "no clear reason: KeyError" in result(path, "W602", python).problems[0].message


def test_the_innermost_cause_is_named(tmp_path: Path, python: Path) -> None:
    """sglang#18203, odysseus PR#6257: the package hides what the loader said."""
    code = (
        "import ctypes\ntry:\n    ctypes.CDLL('libcudart.so.12')\nexcept OSError as error:\n"
        "    raise ImportError('CRITICAL: reinstall me') from error\n"
    )
    message = result(made(tmp_path, code), "W601", python).problems[0].message
    assert "OSError: libcudart.so.12: cannot open shared object file" in message
    assert "shown as ImportError: CRITICAL: reinstall me" in message


def test_a_crash_is_told(tmp_path: Path, python: Path) -> None:
    path = made(tmp_path, "import os\nos.kill(os.getpid(), 11)\n")
    assert "ended by SIGSEGV" in result(path, "W601", python).problems[0].message
    assert "SIGSEGV" in result(path, "W602", python).problems[0].message


def test_a_hang_is_told(tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smwheel.verify.importing.TIMEOUT", 0.5)
    path = made(tmp_path, "import time\ntime.sleep(60)\n")
    assert "did not end within 0.5 s" in result(path, "W601", python).problems[0].message


def test_the_loader_picks_another_file(tmp_path: Path, python: Path) -> None:
    wrong = LOADER.replace('"sm100"', '"sm120"')
    files = [("ops/__init__.py", wrong.encode())]
    files += [(f"ops/{name}/common_ops.abi3.so", library(tmp_path / "so")) for name in ("sm100", "sm120")]  # type: ignore[misc]
    path = wheel(tmp_path, files=files)
    message = result(path, "W603", python).problems[0].message
    assert message == ("capability 12.0: ops/sm120/common_ops.abi3.so; the rule says ops/sm100/common_ops.*")


def test_a_missing_operator(tmp_path: Path, python: Path) -> None:
    found = result(made(tmp_path, LOADER), "W604", python, replace(GOOD, ops=("ops::rmsnorm", "ops::gone")))
    assert found.problems[0].message == "1 operators are not registered: ops::gone"


def test_no_interpreter(tmp_path: Path) -> None:
    found = result(made(tmp_path, LOADER), "W601", tmp_path / "none")
    assert found.status is Status.NOT_MADE
    assert "cannot be started" in found.reason


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ('print(\'{"asked": 2, "found": 2}\')', Status.PASSED, "asked for 2, found 2"),
        ('print(\'{"asked": 0, "found": 0}\')', Status.FAILED, "asked for nothing"),
        (
            'print(\'{"asked": 2, "found": 1, "modules": [{"module": "a", "problem": "gone"}]}\')',
            Status.FAILED,
            "a: gone",
        ),
        ('print(\'{"asked": 1, "found": 1}\'); raise SystemExit(3)', Status.FAILED, "status 3"),
        (
            "import sys; assert sys.argv[1:] == ['--gpu', '12.0']; import ops; print('{\"asked\": 1, \"found\": 1}')",
            Status.PASSED,
            "asked for 1",
        ),
        ("raise ValueError('broken')", Status.NOT_MADE, "ValueError: broken"),
        ("print([])", Status.NOT_MADE, "no JSON object"),
    ],
)
def test_the_recipes_own_check(tmp_path: Path, python: Path, code: str, status: Status, said: str) -> None:
    script = tmp_path / "check.py"
    script.write_text(code)
    found = result(made(tmp_path, LOADER), "W605", python, replace(GOOD, script=script))
    assert found.status is status
    assert said in " ".join([*found.notes, *map(str, found.problems), found.reason])


def test_the_driver_stub_exports_what_is_asked_for(tmp_path: Path) -> None:
    facts = read_elf(driver_stub(["cuInit", "cuLaunchKernel"], tmp_path) / "libcuda.so.1")
    assert facts.soname == "libcuda.so.1"
    assert facts.exported >= {"cuInit", "cuLaunchKernel"}


def test_no_compiler_for_the_stub(tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path, LOADER)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    found = result(path, "W601", python, replace(GOOD, arch=Arch.parse("120a")))
    assert found.status is Status.NOT_MADE
    assert "no C compiler" in found.reason
