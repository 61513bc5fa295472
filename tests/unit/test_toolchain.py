"""Which toolkit is used, what a given one is checked for, the lock, the repairs, and the causes of a failed probe."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from smwheel.arch import Arch
from smwheel.errors import ToolchainError
from smwheel.system import require_compiler
from smwheel.toolchain import Toolchain, describe, find, probe
from smwheel.toolchain.lock import load
from smwheel.toolchain.probe import explain
from smwheel.toolchain.provision import is_complete
from smwheel.toolchain.repairs import driver_symbols, link_lib64, link_unversioned, make_driver_stub
from smwheel.wheels.elf import read_elf

if TYPE_CHECKING:
    from collections.abc import Callable

CUDA_H = """
#define CUDA_VERSION {number}
#define cuMemAlloc                          cuMemAlloc_v2
    #define cuMemcpyHtoD                    __CUDA_API_PTDS(cuMemcpyHtoD_v2)
#define cuStreamQuery                       __CUDA_API_PTSZ(cuStreamQuery)
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
CUresult CUDAAPI
    cuLaunchKernel(CUfunction f);
"""


@pytest.fixture(autouse=True)
def _no_cuda_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)


@pytest.fixture
def toolkit(tmp_path: Path) -> Callable[..., Path]:
    """Make a toolkit whose nvcc only says its version."""

    def make(version: str = "13.0.88", headers: int = 13000) -> Path:
        home = tmp_path / f"cuda-{version}"
        release = ".".join(version.split(".")[:2])
        for program in ("bin/cudafe++", "bin/ptxas", "bin/fatbinary", "bin/nvlink", "nvvm/bin/cicc", "bin/nvcc"):
            (home / program).parent.mkdir(parents=True, exist_ok=True)
            (home / program).write_text(f"#!/bin/sh\necho 'release {release}, V{version}'\n")
            (home / program).chmod(0o755)
        for header in ("cuda_runtime.h", "crt/host_config.h", "cublas_v2.h", "cccl/cub/cub.cuh"):
            (home / "include" / header).parent.mkdir(parents=True, exist_ok=True)
            (home / "include" / header).touch()
        (home / "include/cuda.h").write_text(CUDA_H.format(number=headers))
        (home / "lib64/stubs").mkdir(parents=True)
        for library in ("libcudart.so", "stubs/libcuda.so", "libcudadevrt.a"):
            (home / "lib64" / library).touch()
        return home

    return make


def seek(cuda_home: Path | None, cache: Path, **options: object) -> Toolchain:
    defaults = {"components": ["nvcc"], "version_spec": "==13.0.*", "offline": True}
    return find(cuda_home=cuda_home, cache_root=cache, **(defaults | options))  # type: ignore[arg-type]


def test_a_given_toolkit_is_used_and_checked(toolkit: Callable[..., Path], tmp_path: Path) -> None:
    home = toolkit()
    found = seek(home, tmp_path, headers=["cub/cub.cuh", "cublas_v2.h"], libraries=["cudart", "cuda", "cudadevrt"])
    assert (found.home, found.version, found.origin) == (home, "13.0.88", "--cuda-home")
    assert found.nvcc == home / "bin/nvcc"


def test_every_missing_header_and_library_is_listed(toolkit: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        seek(
            toolkit(),
            tmp_path,
            headers=["cublasLt.h", "cublas_v2.h", "curand_kernel.h"],
            libraries=["cublas", "cudart"],
        )
    assert "lacks 3 headers and libraries: cublasLt.h, curand_kernel.h, libcublas.so" in caught.value.message


def test_cuda_home_comes_after_the_option(
    toolkit: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = toolkit(), toolkit("13.0.48")
    monkeypatch.setenv("CUDA_HOME", str(second))
    assert seek(None, tmp_path).origin == "CUDA_HOME"
    assert seek(None, tmp_path).home == second
    assert seek(first, tmp_path).home == first


def test_an_nvcc_on_path_is_never_used(
    toolkit: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(toolkit() / "bin"), prepend=":")
    described = describe(cuda_home=None, components=["nvcc"], version_spec="==13.0.*", cache_root=tmp_path)
    assert described.origin == "provisioned"
    assert described.home.is_relative_to(tmp_path / "toolchains")


def test_a_wrong_version_is_named_with_the_wanted_one(toolkit: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"CUDA 12\.8\.93, and this plan needs ==13\.0\.\*"):
        seek(toolkit("12.8.93", 12080), tmp_path)


def test_headers_of_another_release_than_nvcc_are_refused(toolkit: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"headers are of CUDA 12\.8, its nvcc is of 13\.0"):
        seek(toolkit(headers=12080), tmp_path)


def test_what_is_no_toolkit_is_said(toolkit: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no bin/nvcc"):
        seek(tmp_path, tmp_path)
    home = toolkit()
    (home / "bin/ptxas").unlink()
    (home / "nvvm/bin/cicc").unlink()
    with pytest.raises(ToolchainError, match="programs: bin/ptxas, nvvm/bin/cicc"):
        seek(home, tmp_path)


def test_an_nvcc_that_does_not_run_is_said(toolkit: Callable[..., Path], tmp_path: Path) -> None:
    home = toolkit()
    for text in ("#!/bin/sh\nexit 1\n", "not a program"):
        (home / "bin/nvcc").write_text(text)
        with pytest.raises(ToolchainError, match="nvcc --version"):
            seek(home, tmp_path)


def test_a_cuda_that_the_registry_lacks_says_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        describe(cuda_home=None, components=["nvcc"], version_spec="==12.8.*", cache_root=tmp_path)
    assert "--cuda-home" in caught.value.cure


def test_a_component_that_does_not_exist_is_said_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="cudnn") as caught:
        describe(cuda_home=None, components=["cudnn"], version_spec="==13.0.*", cache_root=tmp_path)
    assert "nvcc" in caught.value.cure


def test_sizes_are_known_before_anything_is_fetched(tmp_path: Path) -> None:
    few, many = (
        describe(cuda_home=None, components=names, version_spec="==13.0.*", cache_root=tmp_path)
        for names in (["nvcc", "cccl", "cudart"], ["nvcc", "cccl", "cudart", "cublas"])
    )
    assert 90e6 < few.download < 130e6
    assert few.download < few.disk < 500e6
    assert many.download > few.download + 400e6
    assert not any("cublas" in name for name in few.wheels)
    assert few.home != many.home


def test_what_is_in_the_store_is_not_counted_as_download(tmp_path: Path) -> None:
    names = ["nvcc", "cccl", "cudart"]
    wheels = load().select(names)
    for wheel in wheels[1:]:
        folder = tmp_path / "store/sha256" / wheel.sha256[:2] / wheel.sha256
        folder.mkdir(parents=True)
        (folder / wheel.filename).touch()
    described = describe(cuda_home=None, components=names, version_spec="==13.0.*", cache_root=tmp_path)
    assert described.download == wheels[0].size


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_lock_is_whole_for_each_machine(machine: str) -> None:
    lock = load(machine)
    wheels = lock.select(lock.components)
    assert len(wheels) == len(lock.wheels)
    assert all(machine in wheel.filename for wheel in wheels)
    assert len({wheel.sha256 for wheel in wheels}) == len(wheels)


def test_a_machine_without_wheels_is_said() -> None:
    with pytest.raises(ToolchainError, match="riscv64"):
        load("riscv64")


def test_a_tree_that_lost_or_changed_a_file_is_not_complete(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc")
    assert not is_complete(tmp_path, "k")
    (tmp_path / ".complete").write_text('{"key": "k", "files": {"a": 3}}')
    assert is_complete(tmp_path, "k")
    assert not is_complete(tmp_path, "other")
    (tmp_path / "a").write_text("ab")
    assert not is_complete(tmp_path, "k")
    (tmp_path / ".complete").write_text("{")
    assert not is_complete(tmp_path, "k")


def test_libraries_get_the_names_that_linking_wants(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("libcudart.so.13", "libnvrtc-builtins.so.13.0", "libcudart_static.a"):
        (tmp_path / "lib" / name).touch()
    link_lib64(tmp_path)
    link_unversioned(tmp_path / "lib")
    assert (tmp_path / "lib64/libcudart.so").readlink() == Path("libcudart.so.13")
    assert (tmp_path / "lib64/libnvrtc-builtins.so").exists()


def test_the_drivers_functions_are_read_from_its_header() -> None:
    assert driver_symbols(CUDA_H) == [
        "cuInit", "cuLaunchKernel", "cuMemAlloc", "cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds",
        "cuStreamQuery", "cuStreamQuery_ptsz",
    ]  # fmt: skip


def test_the_drivers_stub_survives_as_needed(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    many = "".join(f"CUresult CUDAAPI cuFunction{number}(void);\n" for number in range(500))
    (tmp_path / "include/cuda.h").write_text(CUDA_H + many)
    make_driver_stub(tmp_path, require_compiler())
    facts = read_elf(tmp_path / "lib/stubs/libcuda.so")
    assert facts.soname == "libcuda.so.1"
    assert {"cuInit", "cuMemAlloc_v2", "cuFunction499"} <= facts.exported
    assert facts.needed == ()


def test_a_header_with_too_few_functions_makes_no_stub(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cuda.h").write_text(CUDA_H)
    with pytest.raises(ToolchainError, match="only 8 driver functions"):
        make_driver_stub(tmp_path, require_compiler())


@pytest.mark.parametrize(
    ("output", "message", "cure"),
    [
        (
            "error: -- unsupported GNU version! gcc versions later than 15 are not supported!",
            "too new for this nvcc: gcc 15 is its newest",
            "g++-15",
        ),
        (
            "error: -- unsupported clang version! clang version must be less than 21 and greater than 3.2 .",
            "clang 20 is its newest",
            "clang++-20",
        ),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_121f'", "does not know 121f", "CUDA 12.9"),
        ("ptxas fatal   : Value 'sm_121f' is not defined for option 'gpu-name'", "does not know 121f", "CUDA 12.9"),
        (
            'math.h(79): error: exception specification is incompatible with that of previous function "cospi"',
            "both declare cospi",
            "CUDA 13.0",
        ),
        ("probe.cu:1:10: fatal error: cuda.h: No such file or directory", "cuda.h not found", "complete"),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "-lcuda not found", "complete"),
        ("something new\nits last line", "its last line", ""),
    ],
)
def test_a_failed_probe_is_explained(tmp_path: Path, output: str, message: str, cure: str) -> None:
    toolchain = Toolchain(tmp_path, "13.0.88", "--cuda-home", tmp_path / "bin/nvcc", (), "")
    error = explain(output, toolchain, Arch.parse("121f"), Path("/usr/bin/g++"))
    assert message in str(error)
    assert cure in error.cure


def test_a_probe_looks_at_the_product_not_at_the_exit_code(tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    toolchain = Toolchain(tmp_path, "13.0.88", "--cuda-home", nvcc, (), "")
    nvcc.write_text("#!/bin/sh\nexit 0\n")
    nvcc.chmod(0o755)
    with pytest.raises(ToolchainError, match="no output"):
        probe(toolchain, Arch.parse("120a"), Path("g++"))
    empty = tmp_path / "empty.so"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", empty], check=True)
    nvcc.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {empty} "$2"\n')
    with pytest.raises(ToolchainError, match="no GPU code"):
        probe(toolchain, Arch.parse("120a"), Path("g++"))
