"""The command line: what is asked for wrongly gets a sentence, a cure and an exit code of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from smwheel.errors import (
    ArchError,
    NetworkError,
    PartialError,
    RecipeError,
    SystemNeedError,
    ToolchainError,
    UsageError,
)  # fmt: skip

NO_GPU = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}


def smwheel(*arguments: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CXX", "CC")}
    return subprocess.run(
        [sys.executable, "-c", "from smwheel.cli import main; main()", *arguments],
        env=clean | NO_GPU | {"SMWHEEL_CACHE": str(cache), "COLUMNS": "200"} | environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=cache,
    )


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence", "cure"),
    [
        (["flashinfr", "--arch", "120"], UsageError, "there is no recipe 'flashinfr'", "did you mean flashinfer"),
        (["flashinfer", "--arch", "125"], ArchError, "no GPU architecture '125' is known", "120"),
        (["flashinfer", "--arch", "120", "--stack", "sglang-5"], UsageError, "no stack 'sglang-5'", "sglang-0.5"),
        (["flashinfer", "--arch", "120", "--profile", "cor"], UsageError, "no profile 'cor'", "core"),
        (["flashinfer", "--arch", "75"], ArchError, "nothing to build for 75", "it knows"),
        (["flashinfer", "--arch", "120", "--strategy", "fast"], UsageError, "no strategy 'fast'", "compile"),
        (["flashinfer", "--arch", "120", "--memory", "lots"], UsageError, "'lots' is no size", "24G"),
        (["flashinfer", "--arch", "120f", "--stack", "torch2.10-cu128"], ArchError, "sm_120f needs CUDA 12.9", "120"),
        (["flashinfer", "--arch", "120", "--modules", ""], UsageError, "names no modules", "norm"),
        (["flashinfer", "--arch", "120", "--memory", "9" * 400 + "G"], UsageError, "is no size", "24G"),
        (["sgl-kernel", "--arch", "120", "--wheelhouse", "/dev/null"], SystemNeedError, "/dev/null", "look at"),
        (["flashinfer"], UsageError, "no GPU is visible here", "ARCH=120"),
        (["flashinfer", "--arch", "120", "--cuda-home", "/nowhere"], ToolchainError, "/nowhere", ""),
        (["flashinfer", "--arch", "120", "--offline"], NetworkError, "offline", "smwheel fetch"),
    ],
)  # fmt: skip
def test_bad_input(tmp_path: Path, arguments: list[str], kind: type, sentence: str, cure: str) -> None:
    done = smwheel("build", *arguments, cache=tmp_path)
    assert done.returncode == kind.exit_code, done.stderr
    assert sentence in done.stdout + done.stderr
    assert cure in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    as_json = smwheel("build", *arguments, "--json", cache=tmp_path)
    assert as_json.returncode == kind.exit_code
    assert kind.kind in as_json.stdout


def test_a_toolkit_that_lacks_parts_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    cuda = tmp_path / "cuda"
    (cuda / "bin").mkdir(parents=True)
    (cuda / "include").mkdir()
    for tool in ("nvvm/bin/cicc", "bin/ptxas", "bin/fatbinary", "bin/cudafe++", "bin/nvlink", "bin/crt/link.stub"):
        (cuda / tool).parent.mkdir(parents=True, exist_ok=True)
        (cuda / tool).touch(mode=0o755)
    for header in ("cuda.h", "cuda_runtime.h", "crt/host_config.h"):
        (cuda / "include" / header).parent.mkdir(exist_ok=True)
        (cuda / "include" / header).write_text("#define CUDA_VERSION 13000\n#define CUDART_VERSION 13000\n")
    nvcc = cuda / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    done = smwheel("build", "flashinfer", "--arch", "120", "--cuda-home", str(cuda), cache=tmp_path)
    assert done.returncode == ToolchainError.exit_code, done.stderr
    assert "cublasLt.h" in done.stderr, done.stderr
    assert "libcuda.so" in done.stderr
    assert not (tmp_path / "store").exists()


def test_no_compiler_is_the_first_thing_said(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    done = smwheel("build", "flashinfer", "--arch", "120", cache=tmp_path, PATH=str(tools))
    assert done.returncode == SystemNeedError.exit_code, done.stderr
    assert "apt-get install" in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_disk_that_is_too_small_is_said_before_the_download(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "small", str(small)], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        done = smwheel("build", "flashinfer", "--arch", "120", cache=small)
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert done.returncode == SystemNeedError.exit_code, done.stderr
    assert "of disk are needed" in done.stderr
    assert "free" in done.stderr


def test_no_network(tmp_path: Path) -> None:
    done = smwheel(
        "build", "sgl-kernel", "--arch", "120", cache=tmp_path, PIP_CONFIG_FILE="/dev/null", PIP_FIND_LINKS="",
        PIP_INDEX_URL="http://127.0.0.1:9/simple/", PIP_NO_INPUT="1",
    )  # fmt: skip
    assert done.returncode == NetworkError.exit_code, done.stderr
    assert "sglang_kernel-0.4.10" in done.stderr
    assert not list(tmp_path.glob("store/sha256/*"))


def shipped(tmp_path: Path) -> Path:
    """A copy of what a checkout holds of recipes, to be spoilt."""
    root = Path(__file__).resolve().parents[2]
    copy = tmp_path / "checkout"
    copy.mkdir(exist_ok=True)
    subprocess.run(["cp", "-r", f"{root}/recipes", f"{root}/src", f"{copy}/"], check=True)
    return copy


def test_a_misspelt_key_in_a_recipe(tmp_path: Path) -> None:
    copy = shipped(tmp_path)
    recipe = copy / "recipes" / "sgl-kernel" / "recipe.toml"
    good = recipe.read_text()
    recipe.write_text(good.replace("torch_pin", "torch_pinn"))
    done = smwheel("plan", "sgl-kernel", "--arch", "120", cache=tmp_path, PYTHONPATH=f"{copy}/src")
    assert done.returncode == RecipeError.exit_code, done.stderr
    assert "torch_pinn" in done.stdout
    assert "did you mean 'torch_pin'?" in done.stdout
    assert "recipe.toml" in done.stdout


def test_one_recipe_that_cannot_be_built_stops_no_other(tmp_path: Path) -> None:
    done = smwheel("plan", "--arch", "120", "--stack", "sglang-0.5.9", "flashinfer", "sgl-kernel", "--json",
                   cache=tmp_path)  # fmt: skip
    plans = {plan["recipe"]: plan for plan in json.loads(done.stdout)["plans"]}
    assert plans["flashinfer"]["error"]["error"] == "usage"
    assert plans["sgl-kernel"]["error"] is None
    assert done.returncode == PartialError.exit_code


def test_a_cuda_12_stack_says_what_to_pass_and_prints_the_rest(tmp_path: Path) -> None:
    done = smwheel("plan", "flashinfer", "--arch", "120", "--stack", "torch2.10-cu128", cache=tmp_path)
    assert done.returncode == ToolchainError.exit_code
    assert "--cuda-home" in done.stdout
    assert "means sm_120a" in done.stdout
    assert "flashinfer_python-0.6.4.tar.gz" in done.stdout


def test_archs_and_recipes_as_json(tmp_path: Path) -> None:
    archs = json.loads(smwheel("archs", "--json", cache=tmp_path).stdout)["archs"]
    assert {"arch": "120f", "capability": "12.0", "cuda": ">=12.9"}.items() <= next(
        row for row in archs if row["arch"] == "120f"
    ).items()
    listed = json.loads(smwheel("recipes", "--json", cache=tmp_path).stdout)
    assert (
        "core" in next(row for row in listed["recipes"] if row["name"] == "flashinfer")["versions"]["0.7.2"]["profiles"]
    )
    assert listed["stacks"]["sglang-0.5.23"]["default"] is True
