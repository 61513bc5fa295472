"""doctor on the published packages. Downloads as `test_thin_real.py` says; 3 GB of disk while it runs.

SMWHEEL_TEST_TORCH may name an environment with torch 2.14.1; without it one is made in the cache (5.5 GB), the same
that the tests of thin and verify use.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_thin_real import published

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from environments import NO_GPU, Place, codes, gpu, machine

from smwheel import recipe
from smwheel.arch import Arch
from smwheel.doctor import Report, examine
from smwheel.doctor.environment import read
from smwheel.doctor.machine import look
from smwheel.verify.environment import driver_stub, environment
from smwheel.wheels import published as facts
from smwheel.wheels import rules, thin
from smwheel.wheels.elf import read_elf
from smwheel.wheels.wheelfile import Wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

LIBRARIES = {name: Path("/usr/lib") / name for name in ("libcuda.so.1", "libnuma.so.1")}


@pytest.fixture(scope="module")
def torch() -> Path:
    given = os.environ.get("SMWHEEL_TEST_TORCH")
    return Path(given) if given else environment(["torch==2.14.1"], print).parent.parent


@pytest.fixture(scope="module")
def unpacked() -> Iterator[dict[str, Path]]:
    """The published wheels, and one cut to sm_120a, as installers unpack them."""
    with tempfile.TemporaryDirectory(prefix="doctor-") as work:
        found = {}
        for version in ("0.4.10", "0.3.21"):
            found[version] = Path(work) / version
            with Wheel(published(version)) as wheel:
                wheel.extract(found[version])
        rule = rules.rules_for(recipe.load("sgl-kernel"), "0.4.10", Arch.parse("120"))
        label = "0.4.10+cu130.sm120a.thin.p16fbee1a"
        cut = thin.thin_wheel(published("0.4.10"), Path(work), Arch.parse("120"), rules=rule, version=label).wheel
        found["cut"] = Path(work) / "cut"
        with Wheel(cut) as wheel:
            wheel.extract(found["cut"])
        yield found


def joined(root: Path, *parts: Path) -> Path:
    """A virtual environment that holds what lies in these directories, by links; earlier ones win."""
    venv.create(root, with_pip=False)
    site = next(root.glob("lib/python3*/site-packages"))
    for part in parts:
        for path in part.iterdir():
            if not (site / path.name).exists():
                (site / path.name).symlink_to(path)
    return root


def site_of(environment: Path) -> Path:
    return next(environment.glob("lib/python3*/site-packages"))


def examined(root: Path, *gpus: str, **more: object) -> Report:
    cards = [gpu(code, index) for index, code in enumerate(gpus or ("120",))]
    return examine(machine(*cards, libraries=LIBRARIES), read(root), **more)  # type: ignore[arg-type]


def test_0_3_21_beside_the_torch_of_today(torch: Path, unpacked: dict[str, Path], tmp_path: Path) -> None:
    report = examined(joined(tmp_path / "env", unpacked["0.3.21"], site_of(torch)))
    assert report.sentence == (
        "sgl-kernel 0.3.21 cannot be loaded: it was built for torch 2.9.1, and torch 2.14.1 is installed; your wheel "
        "holds sm_120a, the right code for your NVIDIA RTX PRO 6000 (compute capability 12.0), but its torch symbols "
        "are from another torch."
    )
    assert codes(report) == ["D501", "D401"]
    assert "sglang-kernel==0.4.10  # or: " in report.findings[0].cure


def test_0_3_21_beside_torch_2_10(unpacked: dict[str, Path], tmp_path: Path) -> None:
    """On its own CUDA: nothing but torch's names is wrong."""
    place = Place(tmp_path / "torch").torch("2.10.0", "12.8")
    report = examined(joined(tmp_path / "env", unpacked["0.3.21"], place.site))
    assert codes(report) == ["D501"]
    assert "built for torch 2.9.1, and torch 2.10.0 is installed" in report.sentence
    assert "for 2 C++ names" in report.findings[0].why


def test_0_3_21_on_its_own_torch_is_healthy(unpacked: dict[str, Path], tmp_path: Path) -> None:
    place = Place(tmp_path / "torch").torch("2.9.1", "12.8")
    root = joined(tmp_path / "env", unpacked["0.3.21"], place.site)
    assert codes(examined(root)) == []
    slim = examine(machine(), read(root))
    assert codes(slim) == ["D403"]
    assert "the library libnuma.so.1 is missing" in slim.sentence
    assert "apt-get install libnuma1" in slim.findings[0].cure


@pytest.mark.parametrize("card", ["120", "90", "80"])
def test_0_4_10_with_the_torch_of_today_is_healthy(
    torch: Path, unpacked: dict[str, Path], tmp_path: Path, card: str
) -> None:
    report = examined(joined(tmp_path / "env", unpacked["0.4.10"], site_of(torch)), card)
    assert codes(report) == []
    assert "sglang-kernel 0.4.10" in report.sentence


def test_a_cut_wheel_is_healthy_on_its_gpu_and_refused_on_others(
    torch: Path, unpacked: dict[str, Path], tmp_path: Path
) -> None:
    root = joined(tmp_path / "env", unpacked["cut"], site_of(torch))
    assert codes(examined(root)) == []
    other = examined(root, "90")
    assert codes(other) == ["D301"]
    assert "is made for other GPUs: it holds code for sm_120a, and your NVIDIA H200" in other.sentence
    assert codes(examined(root, "120", "90")) == ["D303"]


def test_a_library_of_the_public_wheel_over_ours(torch: Path, unpacked: dict[str, Path], tmp_path: Path) -> None:
    library = "sgl_kernel/sm100/common_ops.abi3.so"
    with Wheel(next(unpacked["cut"].parent.glob("*.whl"))) as wheel:
        wheel.extract(tmp_path / "site")
    (tmp_path / "site" / library).write_bytes((unpacked["0.4.10"] / library).read_bytes())
    report = examined(joined(tmp_path / "env", tmp_path / "site", site_of(torch)))
    assert codes(report) == ["D205"]
    assert library in report.sentence


def test_the_real_import_and_its_innermost_error(
    torch: Path, unpacked: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = joined(tmp_path / "env", unpacked["0.4.10"], site_of(torch))
    without = examine(NO_GPU, read(root), imports=True)
    if "libcuda.so.1" not in look().libraries:
        assert codes(without) == ["D701"]
        assert "libcuda.so.1: cannot open shared object file" in without.sentence
    library = unpacked["0.4.10"] / "sgl_kernel/sm100/common_ops.abi3.so"
    asked = {name for name in read_elf(library).undefined if re.match(r"cu[A-Z]", name)}
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver_stub(asked, tmp_path / "driver")))
    report = examine(NO_GPU, read(root), imports=True)
    assert codes(report) == []
    assert "`import sgl_kernel` works (sglang-kernel 0.4.10)" in report.fine


def test_the_real_import_of_0_3_21_is_explained_by_what_was_seen_before(
    torch: Path, unpacked: dict[str, Path], tmp_path: Path
) -> None:
    root = joined(tmp_path / "env", unpacked["0.3.21"], site_of(torch))
    report = examine(replace(machine(), libraries=LIBRARIES), read(root), imports=True)
    said = {one.code: one for one in report.findings}
    assert report.findings[0].code == "D501"
    assert said["D701"].why.startswith(("That is what D401 says", "That is what D501 says"))


def test_torch_without_cuda(unpacked: dict[str, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "site"]
    subprocess.run([*command, "torch==2.13.0+cpu"], check=True)
    assert codes(examined(joined(tmp_path / "bare", tmp_path / "site"))) == []
    report = examined(joined(tmp_path / "env", unpacked["0.4.10"], tmp_path / "site"))
    assert codes(report) == ["D202", "D203"]
    assert report.sentence == (
        "torch 2.13.0 is the build without CUDA, and sglang-kernel 0.4.10 needs the one with CUDA."
    )


def test_flashinfer_without_compiled_modules(torch: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "site"]
    subprocess.run([*command, "flashinfer-python==0.6.4"], check=True)
    root = joined(tmp_path / "env", tmp_path / "site", site_of(torch))
    report = examined(root)
    assert codes(report) == ["D603"]
    assert report.sentence.startswith("flashinfer-python 0.6.4 will fail at the first request")
    modules = Place(tmp_path / "modules")
    modules.install("flashinfer-jit-cache", "0.7.2+cu130", {"flashinfer_jit_cache/__init__.py": b""})
    apart = examined(joined(tmp_path / "apart", tmp_path / "site", site_of(torch), modules.site))
    assert codes(apart) == ["D208"]


@pytest.mark.parametrize("version", ["0.4.10", "0.3.21"])
def test_recorded_facts_are_those_of_the_published_wheel(version: str) -> None:
    package = recipe.load("sgl-kernel")
    data = package.version(version).thin
    assert data is not None
    recorded = facts.read(package.directory / data.published)
    assert facts.observe(published(version), sha256=recorded.sha256) == recorded
