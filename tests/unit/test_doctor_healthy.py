"""Environments with nothing wrong: no complaint, on machines with and without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from environments import NO_GPU, Place, codes, gpu, kernels, machine, program, shared
from gpufiles import region_for

from smwheel.arch import Arch

PUBLIC = ("80", "89", "90", "90a", "100f", "120a")
SHIM = b"def get_jit_cache_providers():\n    return ()\n"
GROUP = "[flashinfer.jit_cache.providers]\nsm120 = flashinfer_jit_cache_sm120f:provider\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "env")


def module(arch: str) -> bytes:
    return shared("", needed=("libtvm_ffi.so", "libcudart.so.13"), fatbin=region_for(arch))


def with_flashinfer(place: Place) -> None:
    """FlashInfer 0.7.2 with the compiled modules that smwheel makes for it."""
    label = "0.7.2+cu130.sm120f.core.p1a2b3c4d"
    place.torch()
    place.install("apache-tvm-ffi", "0.1.11", {"tvm_ffi/lib/libtvm_ffi.so": shared("libtvm_ffi.so")})
    place.install("flashinfer-python", "0.7.2", {"flashinfer/__init__.py": b""}, requires=["torch", "apache-tvm-ffi"])
    place.install("flashinfer-jit-cache", label, {"flashinfer_jit_cache/__init__.py": SHIM})
    files = {
        "flashinfer_jit_cache_sm120f/__init__.py": b"",
        "flashinfer_jit_cache_sm120f/jit_cache/norm/norm.so": module("120f"),
    }
    place.install("flashinfer-jit-cache-sm120f", label, files, entry_points=GROUP)


@pytest.mark.parametrize("card", ["120", "90", "80"])
def test_todays_stack_with_the_public_wheel(place: Place, card: str) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC), requires=["torch==2.14.1"])
    report = place.examine(machine(gpu(card)))
    assert codes(report) == []
    assert report.exit_code == 0
    assert report.sentence == f"Nothing wrong was found in {place.root} (sglang-kernel 0.4.10)."
    assert report.unseen == ()


def test_the_same_without_a_gpu_says_what_was_not_looked_at(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC), requires=["torch==2.14.1"])
    report = place.examine(NO_GPU)
    assert codes(report) == []
    assert report.exit_code == 0
    assert report.sentence == (
        f"No fault was found in {place.root} (sglang-kernel 0.4.10), but whether the code fits a GPU was not judged: "
        "no GPU here and no --arch."
    )
    assert report.unseen[0].endswith("Whether the code fits a GPU was not judged; say which with --arch 120.")
    assert report.unseen[1] == (
        "Importing sglang-kernel 0.4.10 was not tried: this machine has no NVIDIA driver (libcuda.so.1)."
    )
    assert codes(place.examine(NO_GPU, asked=Arch.parse("120"))) == []


def test_a_wheel_cut_to_this_gpu(place: Place) -> None:
    files = kernels("0.4.10", "120a", directories=["sm100"])
    place.torch().install("sglang-kernel", "0.4.10+cu130.sm120a.thin.p16fbee1a", files, requires=["torch==2.14.*"])
    assert codes(place.examine()) == []


def test_the_old_stack_on_its_own_torch(place: Place) -> None:
    place.torch("2.9.1", "12.8").install("sgl-kernel", "0.3.21", kernels("0.3.21", "80", "90a", "100a", "120a"))
    libraries = {name: Path("/usr/lib") / name for name in ("libcuda.so.1", "libnuma.so.1")}
    assert codes(place.examine(machine(libraries=libraries))) == []


def test_flashinfer_with_modules_made_for_it(place: Place) -> None:
    with_flashinfer(place)
    assert codes(place.examine()) == []
    assert codes(place.examine(machine(gpu("121")))) == []


def test_flashinfer_0_6_with_modules_made_for_it(place: Place) -> None:
    place.torch("2.11.0", "13.0")
    place.install("apache-tvm-ffi", "0.1.6", {"tvm_ffi/lib/libtvm_ffi.so": shared("libtvm_ffi.so")})
    place.install("flashinfer-python", "0.6.4", {"flashinfer/__init__.py": b""})
    files = {
        "flashinfer_jit_cache/__init__.py": b"def get_jit_cache_dir(): ...\n",
        "flashinfer_jit_cache/jit_cache/norm/norm.so": module("120a"),
    }
    place.install("flashinfer-jit-cache", "0.6.4+cu130.sm120a.core.p1a2b3c4d", files)
    assert codes(place.examine()) == []


def test_flashinfer_that_compiles_with_all_its_tools(place: Place, tmp_path: Path) -> None:
    place.torch().install("flashinfer-python", "0.7.2", {"flashinfer/__init__.py": b""})
    program(tmp_path / "cuda/bin/nvcc", "Cuda compilation tools, release 13.0, V13.0.88")
    for name in ("ninja", "g++"):
        program(tmp_path / "bin" / name, "")
    tools = {"PATH": str(tmp_path / "bin"), "CUDA_HOME": str(tmp_path / "cuda")}
    assert codes(place.examine(machine(variables=tools))) == []


def test_torch_alone_and_nothing_at_all(place: Place, tmp_path: Path) -> None:
    assert codes(place.torch().examine()) == []
    bare = Place(tmp_path / "bare")
    assert bare.examine(NO_GPU).sentence == f"Nothing wrong was found in {bare.root}, which holds no kernel packages."


def test_torch_without_cuda_and_no_kernels(place: Place) -> None:
    assert codes(place.torch("2.13.0", "").examine(NO_GPU)) == []


def test_a_package_with_variants_for_several_cudas(place: Place) -> None:
    """Packages that bring one library for each CUDA load one that fits: the others are no fault."""
    variants = {
        f"anybytes/lib_cuda{major}.so": shared("", needed=(f"libcudart.so.{major}",), fatbin=region_for("90", "120"))
        for major in (12, 13)
    }
    place.torch().install("anybytes", "1.0", variants, requires=["torch>=2"])
    assert codes(place.examine()) == []


def test_what_other_packages_hold_for_other_gpus_is_no_fault(place: Place) -> None:
    """Servers bring packages for other GPUs along (FlashMLA, DeepEP), and never load them on this one."""
    library = shared("", needed=("libcudart.so.13",), fatbin=region_for("90a", "100a"))
    place.torch().install("flash-other", "1.0", {"flash_other/k.so": library}, requires=["torch"])
    report = place.examine()
    assert codes(report) == []
    assert len(report.unseen) == 1
    assert report.unseen[0].startswith(
        "whether anything uses flash-other 1.0 here: it holds code for sm_90a and sm_100a, and none for your NVIDIA RTX"
    )
    assert codes(place.examine(machine(gpu("120", 0), gpu("90", 1)))) == []


def test_what_other_packages_find_by_themselves_is_no_fault(place: Place) -> None:
    """Libraries in the environment that a package loads by paths of its own, and files taken out of it."""
    library = shared("", needed=("libnvJitLink.so.13", "libavutil.so.58"), fatbin=region_for("120"))
    place.torch().install("anyarrays", "1.0", {"anyarrays/k.so": library, "anyarrays/tests/t.py": b""})
    place.install("nvidia-nvjitlink", "13.0", {"nvidia/cu13/lib/libnvJitLink.so.13": shared("libnvJitLink.so.13")})
    place.remove("anyarrays/tests/t.py")
    assert codes(place.examine()) == []


def test_an_import_of_a_library_that_may_fail_is_no_fault(place: Place) -> None:
    library = shared("", asks=["_ZNK3c105Error4whatEv"], needed=["libc10.so"], fatbin=region_for("120"))
    init = b"try:\n    from . import _C\nexcept ImportError:\n    pass\nif TYPE_CHECKING:\n    from . import _C\n"
    files = {"anyops/__init__.py": init, "anyops/_C.abi3.so": library}
    place.torch().install("anyops", "1.0", files, requires=["torch"])
    assert codes(place.examine()) == []


def test_one_module_built_for_several_pythons_is_no_fault(place: Place) -> None:
    made = shared("", fatbin=region_for("120"))
    files = {f"anyops/_C.cpython-3{minor}-x86_64-linux-gnu.so": made for minor in (10, 11, 12)}
    place.torch().install("anyops", "1.0", files | {"anyops/_D.abi3.so": made}, requires=["torch"])
    assert codes(place.examine()) == []
