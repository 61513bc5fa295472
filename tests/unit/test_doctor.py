"""Each fault that doctor knows: an environment that has it, and what is said first. None blames another thing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from environments import GIB, NO_GPU, Place, codes, gpu, kernels, machine, program, shared
from gpufiles import entry, region, region_for
from test_doctor_healthy import GROUP, PUBLIC, SHIM, module, with_flashinfer

from smwheel.arch import Arch
from smwheel.cli.doctor import _show
from smwheel.doctor import Report, examine
from smwheel.doctor.environment import read
from smwheel.doctor.finding import Finding, Level, registered
from smwheel.doctor.report import ORDER
from smwheel.errors import MalformedError
from smwheel.gpu import Process
from smwheel.wheels.wheelfile import write_wheel

WITH_NUMA = {name: Path("/usr/lib") / name for name in ("libcuda.so.1", "libnuma.so.1")}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "env")


def first(report: Report, code: str, *others: str) -> str:
    """Return the first sentence; exactly these findings must have been made, this one first."""
    assert codes(report) == [code, *others], [one.sentence for one in report.findings]
    assert report.findings[0].why
    assert report.findings[0].cure
    return report.sentence


# The origin's box


def test_the_right_code_for_another_torch(place: Place) -> None:
    """A day of rebuilding was spent on this: the installed wheel held sm_120a all the time."""
    place.torch("2.10.0", "12.8").install("sgl-kernel", "0.3.21", kernels("0.3.21", "80", "90a", "120a"))
    report = place.examine(machine(libraries=WITH_NUMA))
    assert first(report, "D501") == (
        "sgl-kernel 0.3.21 cannot be loaded: it was built for torch 2.9.1, and torch 2.10.0 is installed; your wheel "
        "holds sm_120a, the right code for your NVIDIA RTX PRO 6000 (compute capability 12.0), but its torch symbols "
        "are from another torch."
    )
    assert "No architecture is missing" in report.findings[0].why
    assert report.findings[0].cure == (
        f"smwheel build sgl-kernel --arch 120 --stack from:{place.root}  "
        f"# or: {place.root}/bin/python -m ensurepip && {place.root}/bin/python -m pip install torch==2.9.1"
    )
    assert report.exit_code == 19


def test_the_same_beside_a_torch_of_another_cuda(place: Place) -> None:
    place.torch().install("sgl-kernel", "0.3.21", kernels("0.3.21", "80", "90a", "120a"))
    report = place.examine(machine(libraries=WITH_NUMA))
    assert "your wheel holds sm_120a" in first(report, "D501", "D401")
    assert "install --force-reinstall --no-deps sglang-kernel==0.4.10  # or: " in report.findings[0].cure
    assert report.findings[0].cure.endswith("install torch==2.9.1")
    assert "uninstall -y sgl-kernel &&" in report.findings[0].cure


def test_where_the_server_wants_the_other_torch_that_is_the_cure(place: Place) -> None:
    place.torch("2.10.0", "12.8").install("sgl-kernel", "0.3.21", kernels("0.3.21", "120a"))
    place.install("sglang", "0.5.9", requires=["torch==2.9.1", "sgl-kernel==0.3.21"])
    report = place.examine(machine(libraries=WITH_NUMA))
    assert "its torch symbols are from another torch" in first(report, "D501", "D203")
    assert "install 'torch==2.9.1'  # the installed server requires it, too" in report.findings[0].cure


def test_without_a_gpu_the_same_is_said_without_naming_one(place: Place) -> None:
    place.torch("2.10.0", "12.8").install("sgl-kernel", "0.3.21", kernels("0.3.21", "90a", "120a"))
    report = place.examine(NO_GPU)
    assert "your wheel holds sm_90a and sm_120a, but its torch symbols are from another torch" in report.sentence


# GPU code


def test_code_for_another_gpu(place: Place) -> None:
    """A 120a wheel on an H200 is refused before any CUDA error."""
    label = "0.4.10+cu130.sm120a.thin.p16fbee1a"
    place.torch().install("sglang-kernel", label, kernels("0.4.10", "120a", directories=["sm100"]))
    report = place.examine(machine(gpu("90")))
    assert first(report, "D301") == (
        f"sglang-kernel {label} is made for other GPUs: it holds code for sm_120a, and your NVIDIA H200 (compute "
        "capability 9.0) cannot run that."
    )
    assert "smwheel build sgl-kernel --arch 90 " in report.findings[0].cure


def test_the_cure_for_a_wheel_that_is_not_installed_names_no_environment(place: Place, tmp_path: Path) -> None:
    files = kernels("0.4.10", "120a").items()
    tags = ["cp310-abi3-manylinux_2_28_x86_64"]
    made = write_wheel(tmp_path, distribution="sglang-kernel", version="0.4.10", tags=tags, files=files)
    report = place.torch().examine(machine(gpu("90")), wheels=(made,))
    first(report, "D301")
    assert report.findings[0].cure == "smwheel build sgl-kernel --arch 90"


@pytest.mark.parametrize(
    ("card", "cure"),
    [
        ("75", "use another GPU: no version of sgl-kernel supports compute capability 7.5"),
        ("86", "install the published sgl-kernel: its sm_80 runs on compute capability 8.6"),
    ],
)
def test_no_cure_proposes_an_architecture_without_a_recipe(place: Place, card: str, cure: str) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", "120a"))
    report = place.examine(asked=Arch.parse(card))
    first(report, "D301")
    assert report.findings[0].cure == cure


def test_suffix_a_is_for_exactly_its_gpu(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", "120a"))
    assert "it holds code for sm_120a" in first(place.examine(machine(gpu("121"))), "D301")


def test_the_right_code_where_the_loader_never_looks(place: Place) -> None:
    files = kernels("0.4.10", "80", "90a")
    files |= {
        "sgl_kernel/sm120/common_ops.abi3.so": kernels("0.4.10", "120a", directories=["x"])[
            "sgl_kernel/x/common_ops.abi3.so"
        ]
    }
    place.torch().install("sglang-kernel", "0.4.10", files)
    report = place.examine()
    assert "in a file that is never opened there: sgl_kernel/sm120/common_ops.abi3.so" in first(report, "D302")
    assert "opens sgl_kernel/sm100/, and that file holds only sm_80 and sm_90a" in report.findings[0].why


def test_a_cut_wheel_and_gpus_of_two_kinds(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", "120a"))
    report = place.examine(machine(gpu("120", 0), gpu("90", 1)))
    assert "runs on your NVIDIA RTX PRO 6000 (compute capability 12.0) and not on your NVIDIA H200" in first(
        report, "D303"
    )
    assert report.findings[0].cure.startswith("CUDA_VISIBLE_DEVICES=0 ")


def test_ptx_that_the_driver_cannot_compile(place: Place) -> None:
    """PTX version 9.0 is that of CUDA 13.0."""
    ptx = bytearray(entry("120", kind=1))
    ptx[0x18:0x1C] = b"\0\0\x09\0"
    library = shared("", needed=("libcudart.so.13",), fatbin=region(bytes(ptx)))
    place.torch("2.11.0", "13.0").install("anykernels", "1.0", {"anykernels/k.so": library})
    assert codes(place.examine()) == []
    report = place.examine(machine(driver={"version": "570.10", "cuda": "12.8"}))
    assert "D304" in codes(report)
    said = next(one for one in report.findings if one.code == "D304")
    assert "only PTX of CUDA 13.0, which driver 570.10 (CUDA 12.8) cannot compile" in said.sentence


# torch and Python


def test_the_other_string_type(place: Place) -> None:
    old = shared("", asks=["_ZN5torch3jit17parseSchemaOrNameERKSsb"], needed=["libtorch.so"], fatbin=region_for("120a"))
    place.torch().install("sglang-kernel", "0.4.10", {"sgl_kernel/sm100/common_ops.abi3.so": old})
    said = first(place.examine(), "D502")
    assert "its CXX11 ABI differs, it was compiled with _GLIBCXX_USE_CXX11_ABI=0, and torch 2.14.1 with 1" in said


@pytest.mark.parametrize("init", [b"from . import _C\nimport torch\n", b"if 1:\n    from ._C import f\n"])
def test_torch_is_not_imported_first(place: Place, init: bytes) -> None:
    library = shared("", asks=["_ZNK3c105Error4whatEv"], needed=["libc10.so"], fatbin=region_for("120"))
    files = {"anyops/__init__.py": init, "anyops/_C.abi3.so": library}
    place.torch().install("anyops", "1.0", files, requires=["torch"])
    assert first(place.examine(), "D503") == (
        "anyops 1.0 works only after `import torch`: its own `import anyops` loads _C.abi3.so without it."
    )
    assert place.examine().exit_code == 0


def test_torch_imported_by_a_module_in_between_counts(place: Place) -> None:
    library = shared("", asks=["_ZNK3c105Error4whatEv"], needed=["libc10.so"], fatbin=region_for("120"))
    files = {
        "anyops/__init__.py": b"from .first import x\nfrom . import _C\n",
        "anyops/first.py": b"if True:\n    import torch\nx = 1\n",
        "anyops/_C.abi3.so": library,
    }
    place.torch().install("anyops", "1.0", files, requires=["torch"])
    assert codes(place.examine()) == []


def test_a_file_for_another_python(place: Place) -> None:
    files = kernels("0.4.10", *PUBLIC)
    extra = shared("", needed=["libcudart.so.13"], fatbin=region_for("120a"))
    place.torch().install(
        "sglang-kernel", "0.4.10", files | {"sgl_kernel/other.cpython-310-x86_64-linux-gnu.so": extra}
    )
    report = place.examine()
    assert first(report, "D504").endswith("for Python 3.10 alone, and this is Python 3.12.")
    assert report.exit_code == 0


def test_a_file_for_another_python_that_the_package_does_without(place: Place) -> None:
    extra = {"sgl_kernel/infllm_ops.cpython-310-x86_64-linux-gnu.so": shared("", fatbin=region_for("120a"))}
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC) | extra)
    assert codes(place.examine()) == []


# libraries


def test_cuda_majors_mixed(place: Place) -> None:
    library = shared("", needed=["libcudart.so.12", "libnvrtc.so.12"], fatbin=region_for("120a"))
    place.torch().install("sglang-kernel", "0.4.10", {"sgl_kernel/sm100/common_ops.abi3.so": library})
    said = first(place.examine(), "D401")
    assert "is built for CUDA 12, but torch 2.14.1 uses CUDA 13." in said
    assert "Not found will be: libcudart.so.12, libnvrtc.so.12." in said


def test_two_cuda_runtimes(place: Place) -> None:
    library = shared("", needed=["libcudart.so.12"], fatbin=region_for("120a"))
    place.torch().install("sglang-kernel", "0.4.10", {"sgl_kernel/sm100/common_ops.abi3.so": library})
    libraries = WITH_NUMA | {"libcudart.so.12": Path("/usr/lib/libcudart.so.12")}
    said = first(place.examine(machine(libraries=libraries)), "D402")
    assert "libcudart.so.12 is found as /usr/lib/libcudart.so.12" in said


@pytest.mark.parametrize(
    ("library", "cure"),
    [
        ("libnvrtc.so.13", "install 'nvidia-cuda-nvrtc==13.0.*'"),
        ("libcudart.so.13", "install 'nvidia-cuda-runtime==13.0.*'"),
        ("libcublas.so.13", "install 'nvidia-cublas==13.0.*'"),
        ("libnuma.so.1", "apt-get install libnuma1 (Debian, Ubuntu), or dnf install numactl-libs (Fedora, RHEL)"),
        ("libsomething.so.3", "apt-file search libsomething.so.3"),
    ],
)
def test_a_library_is_missing(place: Place, library: str, cure: str) -> None:
    made = shared("", needed=["libtorch.so", library], fatbin=region_for("120a"))
    place.torch().install("sglang-kernel", "0.4.10", {"sgl_kernel/sm100/common_ops.abi3.so": made})
    place.remove(f"nvidia/cu13/lib/{library}")
    report = place.examine()
    assert f"the library {library} is missing (sgl_kernel/sm100/common_ops.abi3.so needs it)" in first(report, "D403")
    assert cure in report.findings[0].cure


def test_a_library_that_lies_where_nobody_looks(place: Place) -> None:
    made = shared("", needed=["libtorch.so", "libcufft.so.12"], fatbin=region_for("120a"))
    place.torch().install("sglang-kernel", "0.4.10", {"sgl_kernel/sm100/common_ops.abi3.so": made})
    place.install("nvidia-cufft", "12.0", {"nvidia/cu13/lib/libcufft.so.12": shared("libcufft.so.12")})
    report = place.examine()
    first(report, "D403")
    assert report.findings[0].cure.startswith(f"export LD_LIBRARY_PATH={place.site}/nvidia/cu13/lib")
    found = machine(variables={"PATH": "", "LD_LIBRARY_PATH": f"{place.site}/nvidia/cu13/lib"})
    assert codes(place.examine(found)) == []


def test_an_rpath_of_its_own_is_followed(place: Place) -> None:
    made = shared("", needed=["libcufft.so.12"], rpath="$ORIGIN/../../nvidia/cu13/lib", fatbin=region_for("120a"))
    place.torch().install("sglang-kernel", "0.4.10", {"sgl_kernel/sm100/common_ops.abi3.so": made})
    place.install("nvidia-cufft", "12.0", {"nvidia/cu13/lib/libcufft.so.12": shared("libcufft.so.12")})
    assert codes(place.examine()) == []


def test_the_drivers_library_is_missing(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC))
    report = place.examine(machine(libraries={}))
    assert first(report, "D403").startswith(
        "libcuda.so.1, the driver's library, is not found, although the GPU is there"
    )


# the machine


def test_a_gpu_without_its_driver_in_a_container_and_outside(place: Place) -> None:
    inside = examine(replace(NO_GPU, container=True, devices=2), place.environment())
    assert "This container cannot use the GPU" in first(inside, "D102")
    assert "--gpus all" in inside.findings[0].cure
    outside = examine(replace(NO_GPU, devices=1), place.environment())
    assert "The NVIDIA driver does not work here" in first(outside, "D102")


def test_a_driver_too_old_for_torchs_cuda(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC))
    said = first(place.examine(machine(driver={"version": "550.54", "cuda": "12.4"})), "D101")
    assert "torch 2.14.1 (CUDA 13.0) needs a driver for CUDA 13, and driver 550.54 supports CUDA up to 12.4" in said
    assert codes(place.examine(machine(driver={"version": "580.10", "cuda": ""}))) == []


def test_memory_that_another_server_holds(place: Place) -> None:
    busy = gpu("120", 0, free=4 * GIB, processes=(Process(4242, "/usr/bin/python3", 90 * GIB),))
    report = place.torch().examine(machine(busy, gpu("120", 1)))
    assert "GPU 0 (NVIDIA RTX PRO 6000) is in use: 92 of 96 GiB of its memory are held by python3 (process 4242)" in (
        first(report, "D103")
    )
    assert report.findings[0].cure.endswith("CUDA_VISIBLE_DEVICES=1")
    assert report.exit_code == 0


def test_shared_memory_of_a_container(place: Place) -> None:
    said = first(place.examine(machine(gpu(index=0), gpu(index=1), shared_memory=64 << 20)), "D104")
    assert "has 64 MiB, too little for a server on 2 GPUs" in said
    assert codes(place.examine(machine(shared_memory=64 << 20))) == []


# what is installed


def test_no_torch(place: Place) -> None:
    place.install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC), requires=["torch==2.14.1"])
    report = place.examine()
    assert "torch is not installed in" in first(report, "D201")
    assert report.findings[0].cure.endswith("install 'torch==2.14.1'")


def test_torch_without_cuda(place: Place) -> None:
    place.torch("2.13.0", "").install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC))
    said = first(place.examine(), "D202")
    assert said == "torch 2.13.0 is the build without CUDA, and sglang-kernel 0.4.10 needs the one with CUDA."
    assert not any("torch" in one or "sglang-kernel" in one for one in place.examine().fine)


def test_an_environment_that_does_not_run(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "python"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'no module named encodings' >&2; exit 1\n")
    broken.chmod(0o755)
    report = examine(machine(), read(tmp_path))
    assert f"{tmp_path} does not work: its Python does not run: no module named encodings" in first(report, "D201")
    broken.write_bytes(b"no program")
    said = first(examine(machine(), read(tmp_path)), "D201")
    assert said.endswith("its Python does not run: Exec format error.")


def test_an_environment_that_is_not_there(tmp_path: Path) -> None:
    report = examine(machine(), read(tmp_path / "missing"))
    assert first(report, "D201") == f"There is no such directory: {tmp_path}/missing."
    assert report.findings[0].cure == f"check the path {tmp_path}/missing"
    assert "looked at nevertheless" not in report.findings[0].why


def test_a_version_that_is_not_the_required_one(place: Place) -> None:
    place.torch("2.11.0", "13.0")
    place.install("sglang", "0.5.23", requires=["sglang-kernel==0.4.10", "torch==2.11.0"])
    place.install("sglang-kernel", "0.4.5", kernels("0.4.5", "120a"))
    place.install("sglang-jit-cache-sm120f", "0.5.23+cu130.sm120f.core.p1a2b3c4d")
    said = first(place.examine(), "D203")
    assert said == "sglang 0.5.23 requires sglang-kernel ==0.4.10, and sglang-kernel 0.4.5 is installed."


def test_a_label_of_ours_satisfies_the_required_version(place: Place) -> None:
    place.torch().install("sglang", "0.5.23", requires=["sglang-kernel==0.4.10", "torch==2.14.1"])
    place.install("sglang-kernel", "0.4.10+cu130.sm120a.thin.p16fbee1a", kernels("0.4.10", "120a"))
    place.install("sglang-jit-cache-sm120f", "0.5.23+cu130.sm120f.core.p1a2b3c4d")
    assert codes(place.examine()) == []


def test_an_editable_install_without_its_library(place: Place, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sgl_kernel").mkdir(parents=True)
    place.torch().install("sglang-kernel", "0.4.10", editable=tree)
    assert f"is installed in place from {tree}, and no compiled library is there" in first(place.examine(), "D204")


def test_files_that_were_overwritten(place: Place) -> None:
    """By an installer that leaves the metadata alone (a copy, --target, another tool)."""
    label = "0.4.10+cu130.sm120a.thin.p16fbee1a"
    place.torch().install("sglang-kernel", label, kernels("0.4.10", "120a", directories=["sm100"]))
    public = kernels("0.4.10", *PUBLIC)["sgl_kernel/sm100/common_ops.abi3.so"]
    assert isinstance(public, bytes)
    (place.site / "sgl_kernel/sm100/common_ops.abi3.so").write_bytes(public)
    report = place.examine()
    assert "1 of its files differ from what was installed, e.g. sgl_kernel/sm100/common_ops.abi3.so" in first(
        report, "D205"
    )
    assert "The wheel made for this GPU was overwritten" in report.findings[0].why


def test_one_byte_changed_in_a_library_of_ours_is_seen(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10+cu130.sm120a.thin.p16fbee1a", kernels("0.4.10", "120a"))
    path = place.site / "sgl_kernel/sm100/common_ops.abi3.so"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    first(place.examine(), "D205")


def test_the_package_under_its_other_name_took_the_files(place: Place) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC))
    place.install("sgl-kernel", "0.3.21", kernels("0.3.21", "120a"))
    report = place.examine(machine(libraries=WITH_NUMA))
    assert report.findings[0].code == "D206"
    assert "sglang-kernel 0.4.10 was overwritten by sgl-kernel 0.3.21: both install the same" in report.sentence


def test_the_public_wheel_in_the_place_of_ours(place: Place, tmp_path: Path) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", *PUBLIC), requires=["torch==2.14.1"])
    mine = write_wheel(
        tmp_path / "house",
        distribution="sglang-kernel",
        version="0.4.10+cu130.sm120a.thin.p16fbee1a",
        tags=["cp310-abi3-manylinux_2_28_x86_64"],
        files=kernels("0.4.10", "120a", directories=["sm100"]).items(),
        headers=[("Requires-Dist", "torch==2.14.*")],
    )
    report = place.examine(wheels=(mine,))
    assert first(report, "D207") == (
        f"{mine.name} is not what is installed: sglang-kernel 0.4.10 is the public wheel of the same package."
    )
    assert report.findings[0].cure.endswith(str(mine))


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("cp310-abi3-manylinux2014_aarch64", "aarch64, this machine is x86_64"),
        ("cp310-abi3-win_amd64", "win_amd64, this machine is x86_64"),
        ("cp311-cp311-linux_x86_64", "another Python (cp311-cp311), this is Python 3.12"),
        ("cp313-abi3-linux_x86_64", "another Python (cp313-abi3), this is Python 3.12"),
        ("cp310-abi3-manylinux_2_28_x86_64", ""),
        ("cp312-cp312-linux_x86_64", ""),
        ("py3-none-any", ""),
    ],
)
def test_a_wheel_for_another_machine(place: Place, tmp_path: Path, tag: str, said: str) -> None:
    files = kernels("0.4.10", *PUBLIC).items()
    made = write_wheel(tmp_path, distribution="sglang-kernel", version="0.4.10", tags=[tag], files=files)
    report = place.torch().examine(wheels=(made,))
    assert codes(report) == (["D210"] if said else [])
    if not said:
        assert report.sentence == (
            "Nothing wrong was found: sglang-kernel 0.4.10 (given with --wheel, not installed) should work in "
            f"{place.root} on compute capability 12.0."
        )
    if said:
        assert report.sentence == f"sglang-kernel 0.4.10: this wheel is for {said}; pip will refuse it."
        assert "install --no-deps sglang-kernel==0.4.10" in report.findings[0].cure


def test_a_wheel_under_the_other_name_of_what_is_installed(place: Place, tmp_path: Path) -> None:
    place.torch().install("sgl-kernel", "0.4.10", kernels("0.4.10", *PUBLIC))
    tags, files = ["cp310-abi3-manylinux_2_28_x86_64"], kernels("0.4.10", *PUBLIC).items()
    made = write_wheel(tmp_path, distribution="sglang-kernel", version="0.4.10", tags=tags, files=files)
    report = place.examine(wheels=(made,))
    assert first(report, "D211") == (
        "sglang-kernel 0.4.10 and sgl-kernel 0.4.10 overwrite each other: both install sgl_kernel/."
    )
    assert "uninstall -y sgl-kernel" in report.findings[0].cure
    assert report.exit_code == 0


def test_packages_of_one_release_apart(place: Place) -> None:
    place.torch().install("flashinfer-python", "0.7.2", {"flashinfer/__init__.py": b""})
    place.install("flashinfer-cubin", "0.7.1")
    place.install("flashinfer-jit-cache", "0.7.2+cu130", {"flashinfer_jit_cache/__init__.py": SHIM})
    variables = {"PATH": "", "FLASHINFER_DISABLE_VERSION_CHECK": "1"}
    report = place.examine(machine(variables=variables))
    assert "flashinfer-cubin 0.7.1 does not belong to flashinfer-python 0.7.2" in first(report, "D208")
    assert "FLASHINFER_DISABLE_VERSION_CHECK=1 hides this" in report.findings[0].why


def test_a_damaged_library(place: Place) -> None:
    files = kernels("0.4.10", *PUBLIC)
    whole = files["sgl_kernel/sm100/common_ops.abi3.so"]
    assert isinstance(whole, bytes)
    place.torch().install("sglang-kernel", "0.4.10", files | {"sgl_kernel/sm100/common_ops.abi3.so": whole[:3000]})
    assert "sgl_kernel/sm100/common_ops.abi3.so cannot be read as a library" in first(place.examine(), "D209")


# serving


def test_modules_of_the_old_kind_break_the_import(place: Place) -> None:
    place.torch().install("flashinfer-python", "0.7.2", {"flashinfer/__init__.py": b""})
    old = {"flashinfer_jit_cache/__init__.py": b"def get_jit_cache_dir(): ...\n"}
    place.install("flashinfer-jit-cache", "0.7.2+cu130", old)
    assert first(place.examine(), "D601") == (
        "flashinfer-jit-cache 0.7.2+cu130 breaks `import flashinfer`: flashinfer_jit_cache has no "
        "get_jit_cache_providers, which flashinfer-python 0.7.2 calls."
    )


def test_a_directory_of_that_name_breaks_the_import(place: Place) -> None:
    with_flashinfer(place)
    (place.site / "flashinfer_jit_cache/__init__.py").unlink()
    report = place.examine()
    assert "D601" in codes(report)
    assert any("it has no __init__.py" in one.sentence for one in report.findings)


def test_modules_with_another_label_than_the_shim(place: Place) -> None:
    with_flashinfer(place)
    files = {"flashinfer_jit_cache_sm120f/jit_cache/norm/norm.so": module("120f")}
    for path in place.site.glob("flashinfer_jit_cache_sm120f-*/*"):
        path.unlink()
    for path in place.site.glob("flashinfer_jit_cache_sm120f-*"):
        path.rmdir()
    place.install("flashinfer-jit-cache-sm120f", "0.7.2+cu130.sm120f.full.p5e6f7a8b", files, entry_points=GROUP)
    assert "is ignored without a word: its version differs from that of flashinfer-jit-cache" in first(
        place.examine(), "D602"
    )


def test_modules_for_another_gpu_are_ignored(place: Place) -> None:
    with_flashinfer(place)
    said = first(place.examine(machine(gpu("90"))), "D602")
    assert "it holds code for sm_120f, and not for your NVIDIA H200 (compute capability 9.0)" in said


def test_modules_without_the_shim_are_ignored(place: Place) -> None:
    with_flashinfer(place)
    place.remove("flashinfer_jit_cache/*")
    (place.site / "flashinfer_jit_cache").rmdir()
    for path in place.site.glob("flashinfer_jit_cache-*/*"):
        path.unlink()
    for path in place.site.glob("flashinfer_jit_cache-*"):
        path.rmdir()
    assert "flashinfer-jit-cache, through which it is asked for, is not installed" in first(place.examine(), "D602")


def test_compiling_while_serving_without_tools(place: Place, tmp_path: Path) -> None:
    place.torch().install("flashinfer-python", "0.7.2", {"flashinfer/__init__.py": b""})
    report = place.examine()
    assert "will fail at the first request that needs a kernel it has to compile: nvcc, ninja and c++ are not here" in (
        first(report, "D603")
    )
    assert report.findings[0].cure == f"smwheel build flashinfer --arch 120 --stack from:{place.root}"


def test_no_command_is_named_that_makes_nothing_for_the_gpu(place: Place) -> None:
    place.torch().install("flashinfer-python", "0.7.2", {"flashinfer/__init__.py": b""})
    report = place.examine(machine(gpu("80")))
    assert "will fail at the first request" in first(report, "D603")
    assert report.findings[0].cure == (
        "install nvcc, ninja and c++: no recipe makes flashinfer-jit-cache-* for compute capability 8.0"
    )


def test_a_second_finding_with_the_same_cure_names_the_first(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.torch()
    report = place.examine()
    one = Finding("D603", Level.FAULT, "One.", "Because.", "smwheel build one", "")
    findings = (one, replace(one, sentence="Two."), replace(one, sentence="Three.", cure="smwheel build three"))
    _show(replace(report, findings=findings))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if "to do" in line]
    assert lines == [
        "to do  smwheel build one",
        "to do  nothing more: what is to do for 1 cures this too",
        "to do  smwheel build three",
    ]


def test_ninja_in_an_environment_that_is_not_activated(place: Place, tmp_path: Path) -> None:
    place.torch().install("flashinfer-python", "0.7.2", {"flashinfer/__init__.py": b""})
    program(place.root / "bin/ninja", "1.13")
    program(tmp_path / "tools/nvcc", "Cuda compilation tools, release 13.0, V13.0.88")
    program(tmp_path / "tools/g++", "")
    report = place.examine(machine(variables={"PATH": str(tmp_path / "tools")}))
    assert "will not find ninja: it is in" in first(report, "D606")


def test_an_assembler_that_does_not_know_the_gpu(place: Place) -> None:
    place.torch()
    program(place.site / "triton/backends/nvidia/bin/ptxas", "Cuda compilation tools, release 12.4, V12.4.99")
    report = place.examine()
    assert "Triton cannot compile for your NVIDIA RTX PRO 6000" in first(report, "D604")
    assert report.findings[0].cure.startswith("TRITON_PTXAS_PATH=")
    assert codes(place.examine(machine(gpu("90")))) == []
    program(place.site / "triton/backends/nvidia/bin/ptxas-blackwell", "Cuda compilation tools, release 12.9, V12.9.86")
    assert codes(place.examine()) == []


def test_the_cuda_compiler_of_another_major(place: Place, tmp_path: Path) -> None:
    place.torch().install("flashinfer-python", "0.7.2", {"flashinfer/__init__.py": b""})
    program(tmp_path / "tools/nvcc", "Cuda compilation tools, release 12.8, V12.8.93")
    for name in ("ninja", "g++"):
        program(tmp_path / "tools" / name, "")
    said = first(place.examine(machine(variables={"PATH": str(tmp_path / "tools")})), "D605")
    assert "would compile kernels with CUDA 12.8" in said


# the whole


def test_a_fault_hides_no_other_and_the_cause_comes_first(place: Place) -> None:
    place.torch().install("sgl-kernel", "0.3.21", kernels("0.3.21", "80", "90a"))
    assert codes(place.examine(machine(gpu("120"), driver={"cuda": "12.8"}))) == [
        "D101",
        "D501",
        "D301",
        "D401",
        "D403",
    ]


def test_a_wheel_is_judged_as_if_it_were_installed(place: Place, tmp_path: Path) -> None:
    place.torch("2.10.0", "12.8")
    made = write_wheel(
        tmp_path,
        distribution="sgl-kernel",
        version="0.3.21",
        tags=["cp310-abi3-manylinux2014_x86_64"],
        files=kernels("0.3.21", "120a").items(),
    )
    report = place.examine(machine(libraries=WITH_NUMA), wheels=(made,))
    assert "your wheel holds sm_120a" in first(report, "D501")
    made.write_bytes(made.read_bytes()[:1000])
    with pytest.raises(MalformedError):
        place.examine(wheels=(made,))


def test_every_finding_has_its_place_in_the_order() -> None:
    assert set(registered()) | {"D701"} == set(ORDER)
    assert len(ORDER) == len(set(ORDER))


def test_what_cannot_be_looked_at_is_said_and_stops_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.torch().install("sglang-kernel", "0.4.10", kernels("0.4.10", "120a"))
    info = next(place.site.glob("sglang_kernel-*.dist-info"))
    (info / "RECORD").unlink()
    report = place.examine(asked=Arch.parse("120"))
    assert any("it has no RECORD" in one for one in report.unseen)
