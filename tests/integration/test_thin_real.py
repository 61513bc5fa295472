"""inspect and thin on the published wheels: 1.3 GB to download, 5.5 GB more for torch, both kept in the cache.

SMWHEEL_TEST_WHEELS may name a directory that holds the wheels, SMWHEEL_TEST_TORCH an environment with torch 2.14.1.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from packaging.version import Version

from smwheel import recipe
from smwheel.arch import Arch
from smwheel.paths import cache_dir
from smwheel.verify.environment import driver_stub, environment
from smwheel.wheels import rules, thin
from smwheel.wheels.compare import compare
from smwheel.wheels.elf import read_elf
from smwheel.wheels.fatbin import Kind, code_of, list_entries
from smwheel.wheels.inspect import inspect
from smwheel.wheels.wheelfile import Wheel

pytestmark = pytest.mark.integration

GPU = Arch.parse("120")
TORCH = "2.14.1"


def published(version: str) -> Path:
    """Return the wheel that the recipe pins, downloaded once."""
    source = recipe.load("sgl-kernel").version(version).source("wheel")
    directory = Path(os.environ.get("SMWHEEL_TEST_WHEELS") or cache_dir() / "test-wheels")
    path = directory / source.file
    if not path.exists():
        what = f"{source.project}=={version}"
        tags = ["--python-version", "310", "--abi", "abi3", "--platform", "manylinux2014_x86_64"]
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *tags]
        subprocess.run([*command, "-d", directory, what], check=True)
    assert hashlib.file_digest(path.open("rb"), "sha256").hexdigest() == source.sha256
    return path


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cuobjdump")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", directory]
    subprocess.run([*command, "nvidia-cuda-cuobjdump"], check=True)
    return next(directory.glob("nvidia/*/bin/cuobjdump"))


@pytest.fixture(scope="module", params=["0.4.10", "0.3.21"])
def thinned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, thin.Report]:
    original = published(request.param)
    rule = rules.rules_for(recipe.load("sgl-kernel"), request.param, GPU)
    return original, thin.thin_wheel(original, tmp_path_factory.mktemp("thin"), GPU, rules=rule)


@pytest.mark.parametrize("version", ["0.4.10", "0.3.21"])
def test_architectures_and_counts_are_cuobjdumps(version: str, cuobjdump: Path, tmp_path: Path) -> None:
    """In every file; of the suffix f it prints nothing."""
    with Wheel(published(version)) as wheel:
        names = [name for name in wheel.members if re.search(r"\.so(\.\d+)*$", name)]
        wheel.extract(tmp_path, names)
    listed = {library.name: library.code for library in inspect(str(published(version))).libraries}
    for name in names:
        command = [cuobjdump, "--list-elf", "--list-ptx", tmp_path / name]
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        theirs = Counter(re.findall(r"\.(sm_\d+a?)\.(cubin|ptx)\s", text))
        kinds = {Kind.CUBIN: "cubin", Kind.PTX: "ptx"}
        ours = Counter[tuple[str, str]]()
        for (kind, arch), number in code_of(tmp_path / name).items():
            ours[arch.sm.rstrip("f"), kinds[kind]] += number
        assert ours == theirs, name
        assert listed[name] == code_of(tmp_path / name), name


def test_sizes(thinned: tuple[Path, thin.Report]) -> None:
    original, report = thinned
    size = report.wheel.stat().st_size
    if "0.4.10" in original.name:
        assert size <= 6_000_000
        with Wheel(report.wheel) as wheel:
            assert sum(info.file_size for info in wheel.members.values()) <= 22_000_000
    else:
        assert size <= 34_000_000


def test_what_was_kept_is_the_originals(thinned: tuple[Path, thin.Report]) -> None:
    original, report = thinned
    assert compare(original, report.wheel) == []


def test_cubins_tools_and_symbols_of_the_cut_files(thinned: tuple[Path, thin.Report], tmp_path: Path) -> None:
    """Cubins by sha256; readelf says nothing that it did not say before; the dynamic facts are the original's."""
    original, report = thinned
    names = [file.name for file in report.files if file.action == "cut"]
    assert len(names) >= 2
    for side, path in (("old", original), ("new", report.wheel)):
        with Wheel(path) as wheel:
            wheel.extract(tmp_path / side, names)
    for name in names:
        old, new = tmp_path / "old" / name, tmp_path / "new" / name
        assert digests(new) == [one for one in digests(old) if one[0] == "sm_120a"]
        assert complaints(new) == complaints(old)
        assert read_elf(new) == read_elf(old)


def digests(path: Path) -> list[tuple[str, str]]:
    data = path.read_bytes()
    return [
        (entry.arch.sm, hashlib.sha256(data[entry.payload_offset : entry.end]).hexdigest())
        for entry in list_entries(path)
    ]


def complaints(path: Path) -> list[str]:
    run = subprocess.run(["readelf", "-aW", path], capture_output=True, text=True, check=True)
    return [line for line in (run.stdout + run.stderr).splitlines() if "arning" in line or "rror:" in line]


def test_version_passes_the_check_that_sglang_makes() -> None:
    """It compares the installed distribution's version with a minimum, by packaging's rules."""
    assert Version("0.4.10+cu130.sm120a.thin") >= Version("0.4.10")
    assert Version("0.4.10+cu130.sm120a.thin.p1a2b3c4d") >= Version("0.4.10")


OUTCOMES = """
import importlib, importlib.metadata, json, pkgutil, sys
import torch
import sgl_kernel

root, outcomes = sys.argv[1], {}
names = [m.name for m in pkgutil.walk_packages(sgl_kernel.__path__, "sgl_kernel.", onerror=lambda name: None)]
for name in sorted(names):
    try:
        importlib.import_module(name)
        outcomes[name] = "imported"
    except BaseException as error:
        outcomes[name] = f"{type(error).__name__}: {error}".replace(root, "ROOT")
from sgl_kernel.flash_attn import is_fa3_supported
for capability in ((12, 0), (9, 0)):
    torch.cuda.get_device_capability = lambda device=None, it=capability: it
    is_fa3_supported.cache_clear()
    outcomes[f"is_fa3_supported on {capability}"] = is_fa3_supported()
outcomes["ops"] = sorted(str(s) for s in torch._C._jit_get_all_schemas() if s.name.startswith("sgl_kernel"))
outcomes["opened"] = sgl_kernel.common_ops.__file__.replace(root, "ROOT")
for name in ("fwd", "fwd_kvcache_mla", "sparse_prefill_fwd"):
    outcomes[f"{name} on CUDA"] = torch._C._dispatch_has_kernel_for_dispatch_key(f"sgl_kernel::{name}", "CUDA")
outcomes["distributions"] = sorted(d.metadata["Name"] for d in importlib.metadata.distributions(path=[root]))
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def torch() -> Path:
    """Return an interpreter with torch: the one that `verify` imports this wheel with."""
    given = os.environ.get("SMWHEEL_TEST_TORCH")
    return Path(given) / "bin" / "python" if given else environment([f"torch=={TORCH}"], print)


def test_every_submodule_imports_as_in_the_original(torch: Path, tmp_path: Path) -> None:
    original = published("0.4.10")
    rule = rules.rules_for(recipe.load("sgl-kernel"), "0.4.10", GPU)
    report = thin.thin_wheel(original, tmp_path, GPU, rules=rule)
    results = []
    for side, wheel in (("original", original), ("thinned", report.wheel)):
        root = tmp_path / side
        with Wheel(wheel) as opened:
            opened.extract(root)
        asked = {name for path in root.rglob("*.so") for name in read_elf(path).undefined if re.match(r"cu[A-Z]", name)}
        stub = driver_stub(asked, tmp_path / f"{side}-driver")
        variables = {**os.environ, "PYTHONPATH": str(root), "LD_LIBRARY_PATH": str(stub)}
        command = [torch, "-W", "ignore", "-c", OUTCOMES, root]
        run = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert run.returncode == 0, run.stderr[-2000:]
        results.append(json.loads(run.stdout))
    before, after = results
    assert after == before
    assert before["sgl_kernel.flash_attn"] == "imported"
    assert before["sgl_kernel.flash_mla"] == "imported"
    assert before["is_fa3_supported on (12, 0)"] is False
    assert before["opened"] == "ROOT/sgl_kernel/sm100/common_ops.abi3.so"
    assert len(before["ops"]) >= 88


REFUSES = """
import torch
from sgl_kernel import flash_ops
try:
    flash_ops._refusing("fwd")()
except RuntimeError as error:
    print(error)
"""


def test_call_of_a_stub_tells_the_true_reason(torch: Path, tmp_path: Path) -> None:
    package = tmp_path / "sgl_kernel"
    package.mkdir()
    (package / "__init__.py").touch()
    stub = recipe.load("sgl-kernel").directory / "stubs" / "0.4.10" / "flash_ops.py"
    (package / "flash_ops.py").write_bytes(stub.read_bytes())
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [torch, "-W", "ignore", "-c", REFUSES], env=variables, capture_output=True, text=True, check=True
    )
    assert "holds no machine code for the GPU that this wheel is made for" in run.stdout
