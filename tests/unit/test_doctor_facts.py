"""What doctor reads: GPUs by nvidia-smi, the machine, and environments of each kind."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest
from environments import Place, program, shared

from smwheel import gpu
from smwheel.arch import Arch
from smwheel.doctor import environment, machine
from smwheel.doctor.knowledge import data_for, load, recipe_of
from smwheel.errors import UsageError

SMI = """#!/bin/sh
case "$*" in
  *--query-gpu*) cat <<'END'
0, GPU-aaa, NVIDIA RTX PRO 6000 Blackwell, 12.0, 97887, 97000, 580.95.05
1, GPU-bbb, NVIDIA H200, 9.0, 143771, 1024, 580.95.05
END
  ;;
  *--query-compute-apps*) echo 'GPU-bbb, 4242, /opt/env/bin/python3, 140000'; echo 'GPU-bbb, 4243, [N/A], [N/A]' ;;
  *) echo '| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0     |' ;;
esac
"""
MIB = 1 << 20


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tools/nvidia-smi"
    path.parent.mkdir()
    path.write_text(SMI)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


def test_gpus_driver_and_who_holds_memory(smi: Path) -> None:
    driver = gpu.read()
    assert (driver.version, driver.cuda, driver.problem) == ("580.95.05", "13.0", "")
    assert [(one.index, one.name, one.arch) for one in driver.gpus] == [
        (0, "NVIDIA RTX PRO 6000 Blackwell", Arch.parse("120")),
        (1, "NVIDIA H200", Arch.parse("90")),
    ]
    assert driver.gpus[0].free == 97000 * MIB
    assert driver.gpus[1].processes == (
        gpu.Process(4242, "/opt/env/bin/python3", 140000 * MIB),
        gpu.Process(4243, "[N/A]", 0),
    )
    with pytest.raises(UsageError, match="several architectures: 90, 120"):
        gpu.the_architecture()


@pytest.mark.parametrize(
    ("banner", "cuda"),
    [("CUDA Version: 12.8 ", "12.8"), ("CUDA UMD Version: 13.1", "13.1"), ("CUDA Version : 13.0", "13.0"), ("", "")],
)
def test_spellings_of_the_drivers_cuda(smi: Path, banner: str, cuda: str) -> None:
    smi.write_text(SMI.replace("CUDA Version: 13.0", banner))
    assert gpu.read().cuda == cuda


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9", "status 9"),
        ("exit 0", "lists no GPU"),
        ("echo garbage", "lists no GPU"),
    ],
)
def test_a_driver_that_does_not_answer(smi: Path, script: str, problem: str) -> None:
    smi.write_text(f"#!/bin/sh\n{script}\n")
    assert problem in gpu.read().problem
    assert gpu.architectures() == []


def test_a_machine_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.read().problem == "there is no nvidia-smi on PATH"
    with pytest.raises(UsageError, match="no GPU is visible"):
        gpu.the_architecture()


def test_this_machine_is_looked_at() -> None:
    seen = machine.look()
    assert "libc.so.6" in seen.libraries
    assert seen.program("sh")
    assert seen.shared_memory is None or seen.shared_memory > 0


def test_nvidia_devices_on_the_bus(tmp_path: Path) -> None:
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert machine._devices(tmp_path) == 1
    assert machine._devices(tmp_path / "missing") == 0


def test_where_nvcc_is_looked_for(tmp_path: Path) -> None:
    for home in ("home", "usual"):
        program(tmp_path / home / "bin/nvcc", "Cuda compilation tools, release 12.9, V12.9.86")
    program(tmp_path / "path/nvcc", "")
    variables = {"CUDA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    usual = tmp_path / "usual"
    assert machine.Machine(variables=variables, cuda_home=usual).nvcc == tmp_path / "home/bin/nvcc"
    assert machine.Machine(variables={"PATH": variables["PATH"]}, cuda_home=usual).nvcc == tmp_path / "path/nvcc"
    assert machine.Machine(cuda_home=usual).nvcc == tmp_path / "usual/bin/nvcc"
    assert machine.Machine(cuda_home=tmp_path).nvcc is None
    assert machine.release_of(tmp_path / "home/bin/nvcc") == "12.9"
    assert machine.release_of(tmp_path / "missing") == ""


# environments


def test_a_virtual_environment_by_directory_and_by_interpreter(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    by_directory = environment.read(tmp_path / "env")
    by_interpreter = environment.read(tmp_path / "env/bin/python")
    assert by_directory == by_interpreter
    assert by_directory.version == sys.version_info[:2]
    assert any(site.is_relative_to(tmp_path) for site in by_directory.sites)
    assert by_directory.torch is None


def test_relative_paths_are_those_of_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / ".venv", with_pip=False)
    monkeypatch.chdir(tmp_path)
    whole = environment.read(tmp_path / ".venv")
    assert whole.problem == ""
    assert environment.read(Path(".venv")) == whole
    assert environment.read(Path(".venv/bin/python")) == whole
    assert whole.python == tmp_path / ".venv/bin/python"


def test_packages_beside_an_environment_count_as_they_do_for_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    other = Place(tmp_path / "other").torch()
    monkeypatch.setenv("PYTHONPATH", str(other.site))
    found = environment.read(tmp_path / "env")
    assert found.torch is not None
    assert "torch" in found.distributions


def test_a_directory_of_packages_without_an_interpreter(tmp_path: Path) -> None:
    place = Place(tmp_path / "env").torch()
    assert environment.read(place.root).sites == (place.site,)
    assert environment.read(place.site).sites == (place.site,)
    assert "no Python interpreter" in environment.read(tmp_path).problem


def test_an_environment_without_pip_gets_it_first(tmp_path: Path) -> None:
    place = Place(tmp_path / "env")
    python = place.root / "bin/python"
    assert place.environment().pip == f"{python} -m ensurepip && {python} -m pip"
    place.install("pip", "26.0", {"pip/__init__.py": b""})
    assert place.environment().pip == f"{python} -m pip"


def test_torch_is_told_by_its_files(tmp_path: Path) -> None:
    place = Place(tmp_path / "env").torch("2.10.0", "12.8")
    torch = place.environment().torch
    assert torch is not None
    assert (torch.version, torch.local, torch.cuda, torch.cuda_major) == ("2.10.0", "cu128", "12.8", 12)
    assert torch.symbols.wheel.startswith("torch-2.10.0")
    without = Place(tmp_path / "cpu").torch("2.13.0", "").environment().torch
    assert without is not None
    assert (without.cuda, without.cuda_major) == ("", None)


def test_a_torch_of_ones_own_is_read_from_its_libraries(tmp_path: Path) -> None:
    place = Place(tmp_path / "env").torch()
    text = (place.site / "torch/version.py").read_text()
    (place.site / "torch/version.py").write_text(text.replace("2.14.1+cu130", "2.14.1+gitabc"))
    (place.site / "torch/lib/libc10.so").write_bytes(shared("libc10.so", brings=["_ZN3c104mineEv"]))
    torch = place.environment().torch
    assert torch is not None
    assert torch.symbols.exported["libc10.so"] >= {"_ZN3c104mineEv"}


def test_the_active_environment_is_meant_when_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert environment.default() == tmp_path
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.default() == Path(sys.executable)
    program(tmp_path / "python3", "")
    assert environment.default() == tmp_path / "python3"


def test_torch_is_never_imported() -> None:
    code = "import sys; from smwheel.cli import main; import smwheel.doctor; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# what is known


def test_the_data_names_recipes_that_exist_and_nearest_versions_are_taken() -> None:
    known = load()
    for package in known.packages:
        assert recipe_of(package.recipe).versions
    sgl = known.package("sglang-kernel")
    assert sgl is not None
    recipe = recipe_of("sgl-kernel")
    assert data_for(sgl, "0.4.7+cu130") is recipe.versions["0.4.5"]
    assert data_for(sgl, "9.0") is recipe.versions["0.4.10"]
    assert data_for(sgl, "0.1") is recipe.versions["0.3.21"]
    assert known.bringer("libnvrtc.so.12") == "nvidia-cuda-nvrtc-cu12"
    assert known.bringer("libtvm_ffi.so") == "apache-tvm-ffi"
    assert known.bringer("libnothing.so.1") == ""
