"""CUDA 13.0 made from the package registry: it compiles, links, and its product is looked at.

The tree is made in the user's cache, so that a second run downloads nothing (105 MB the first time).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from smwheel.arch import Arch
from smwheel.errors import ToolchainError
from smwheel.paths import cache_dir
from smwheel.system import require_compiler
from smwheel.toolchain import Toolchain, describe, find, probe
from smwheel.wheels.elf import read_elf
from smwheel.wheels.fatbin import Kind, code_of

pytestmark = pytest.mark.integration

SOURCE = """\
#include <cuda.h>
#include <cub/cub.cuh>
__global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }
extern "C" int go(float *x) { twice<<<1, 32>>>(x); return cuInit(0); }
"""


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return seek(cache_dir())


def seek(cache: Path, **options: object) -> Toolchain:
    return find(
        cuda_home=None,
        components=["nvcc", "cccl", "cudart"],
        headers=["cub/cub.cuh", "cuda.h"],
        libraries=["cudart", "cuda"],
        version_spec="==13.0.*",
        cache_root=cache,
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture(autouse=True)
def _no_cuda_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)


def test_a_provisioned_toolkit_compiles_and_links(toolchain: Toolchain, tmp_path: Path) -> None:
    """As FlashInfer and torch extensions link: lib64, lib64/stubs, a linker that leaves away what is not needed."""
    (tmp_path / "t.cu").write_text(SOURCE)
    compiler, home = require_compiler(), toolchain.home
    subprocess.run(
        [toolchain.nvcc, "-ccbin", compiler.cxx, "-c", "-Xcompiler", "-fPIC", Arch.parse("120a").gencode, "t.cu"],
        check=True,
        cwd=tmp_path,
    )
    subprocess.run(
        [compiler.cxx, "-shared", "-Wl,--as-needed", "t.o", f"-L{home}/lib64", f"-L{home}/lib64/stubs",
         "-lcudart", "-lcuda", "-o", "t.so"],
        check=True,
        cwd=tmp_path,
    )  # fmt: skip
    assert {"libcuda.so.1", "libcudart.so.13"} <= set(read_elf(tmp_path / "t.so").needed)
    assert set(code_of(tmp_path / "t.so")) == {(Kind.CUBIN, Arch.parse("120a"))}


@pytest.mark.parametrize("arch", ["120a", "120f", "90a"])
def test_the_probe_passes_for_what_the_toolkit_knows(toolchain: Toolchain, arch: str) -> None:
    probe(toolchain, Arch.parse(arch), require_compiler().cxx)


def test_what_is_there_is_found_without_a_network_and_costs_nothing(toolchain: Toolchain) -> None:
    assert seek(cache_dir(), offline=True) == toolchain
    described = describe(
        cuda_home=None, components=toolchain.components, version_spec="==13.0.*", cache_root=cache_dir()
    )
    assert (described.download, described.disk, described.home) == (0, 0, toolchain.home)
    assert described.fingerprint == toolchain.fingerprint


def test_a_damaged_tree_is_made_anew_from_the_store(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(cache_dir() / "store")
    copy = seek(tmp_path, offline=True)
    assert copy.fingerprint == toolchain.fingerprint
    (copy.home / "bin/ptxas").unlink()
    shutil.rmtree(copy.home / "include")
    again = seek(tmp_path, offline=True)
    assert (again.home / "bin/ptxas").stat().st_size == (toolchain.home / "bin/ptxas").stat().st_size
    probe(again, Arch.parse("120a"), require_compiler().cxx)


def test_a_toolkit_whose_stub_is_empty_is_found_out(toolchain: Toolchain, tmp_path: Path) -> None:
    """What `--as-needed` silently drops: the probe looks at NEEDED."""
    home = tmp_path / "cuda"
    home.mkdir()
    for child in toolchain.home.iterdir():
        (home / child.name).symlink_to(child)
    (home / "lib64").unlink()
    shutil.copytree(toolchain.home / "lib", home / "lib64", symlinks=True, ignore=lambda *_: ["stubs"])
    (home / "lib64/stubs").mkdir()
    subprocess.run(
        ["gcc", "-shared", "-x", "c", "-", "-Wl,-soname,libcuda.so.1", "-o", home / "lib64/stubs/libcuda.so"],
        input=b"int cuInitialise(void) { return 0; }",
        check=True,
    )
    given = Toolchain(home, toolchain.version, "--cuda-home", toolchain.nvcc, (), "")
    with pytest.raises(ToolchainError, match=r"does not ask for libcuda\.so\.1"):
        probe(given, Arch.parse("120a"), require_compiler().cxx)
