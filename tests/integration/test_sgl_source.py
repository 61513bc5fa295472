"""A package of the shape of sgl-kernel, compiled from source: each way to fail without its cure, then the builds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import standin
from pyproject_hooks import BackendUnavailable, BuildBackendHookCaller

from smwheel.build import pep517
from smwheel.build.pep517 import build_pep517, compile_wheel
from smwheel.errors import BuildEnvironmentError, BuildError, RecipeError, SmwheelError, SystemNeedError, VerifyError
from smwheel.pipeline import Prepared
from smwheel.progress import Reporter
from smwheel.verify import Imports, Status, verify_wheel
from smwheel.verify.expectations import from_resolution
from smwheel.wheelhouse import Entry, Wheelhouse
from smwheel.wheels.wheelfile import Wheel

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import governor_cgroup

pytestmark = pytest.mark.integration

REPORTER = Reporter()
UNITS = 4
"""Sources with GPU code in each of the two common_ops targets; flash_ops has one."""
GENCODES = 8
"""Architectures that upstream's list has with CUDA 13."""

NUMA_NEED = """[[versions."1.0".system]]
name = "libnuma's headers"
header = "numa.h"
apt = "libnuma-dev"
dnf = "numactl-devel"
"""


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> standin.Standin:
    return standin.make(tmp_path_factory.mktemp("standin"))


@pytest.fixture(scope="module")
def built(
    upstream: standin.Standin, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Prepared, Entry]]:
    """Return a function that builds the wheel for an architecture, once."""

    @cache
    def build(arch: str) -> tuple[Prepared, Entry]:
        prepared = upstream.prepare(upstream.recipe(), arch, tmp_path_factory.mktemp(f"build-{arch}"))
        (entry,) = build_pep517(prepared, REPORTER)
        return prepared, entry

    return build


def failing(upstream: standin.Standin, tmp_path: Path, changes: dict[str, str]) -> SmwheelError:
    """Return the error that a build ends with when the recipe is changed."""
    with pytest.raises(SmwheelError) as caught:
        build_pep517(upstream.prepare(upstream.recipe(tmp_path.name, changes=changes), "120", tmp_path), REPORTER)
    return caught.value


def wheel_of(prepared: Prepared, entry: Entry) -> Path:
    return Path(prepared.site.options.wheelhouse) / entry.file


# The eight ways to fail, each without its cure first.


def test_1_without_scikit_build_core_nothing_begins(upstream: standin.Standin, tmp_path: Path) -> None:
    prepared = upstream.prepare(upstream.recipe(), "120", tmp_path)
    # Upstream's own way, with a Python that lacks it:
    source = tmp_path / "source"
    subprocess.run(["cp", "-r", prepared.site.tree.path, source], check=True)
    hooks = BuildBackendHookCaller(str(source), "scikit_build_core.build", python_executable=sys.executable)
    with pytest.raises(BackendUnavailable):
        hooks.build_wheel(str(tmp_path))
    # Ours says so before anything is started:
    found = upstream.recipe("lacking")
    lock = found.directory / "requirements.txt"
    lines = lock.read_text().split("scikit-build-core==")
    lock.write_text(lines[0] + lines[1].partition("\n")[2].partition("\n")[2])
    object.__setattr__(prepared.site.resolution, "recipe", found)
    with pytest.raises(BuildEnvironmentError, match=r"asks for scikit-build-core>=0.10 .* locks none"):
        build_pep517(prepared, REPORTER)


def test_2_numa_is_not_found(upstream: standin.Standin, tmp_path: Path) -> None:
    hidden = "/usr/include;/usr/lib/x86_64-linux-gnu;/usr/lib/aarch64-linux-gnu"
    without = {
        NUMA_NEED: "",
        f'CMAKE_PREFIX_PATH = "{upstream.numa}"': f'CMAKE_IGNORE_PATH = "{hidden}"',
        f':{upstream.numa}/lib"': '"',
        f'CPATH = "{upstream.numa}/include"': "",
    }
    error = failing(upstream, tmp_path / "undeclared", without)
    assert isinstance(error, BuildError)
    assert "configuring did not find NUMA" in error.message
    assert "numalib" in error.where or "FindPackage" in error.where
    # Declared, it is named before anything is fetched, with what to install:
    declared = failing(upstream, tmp_path / "declared", {'header = "numa.h"': 'header = "numa-is-not-here.h"'})
    assert isinstance(declared, SystemNeedError)
    assert "libnuma's headers is needed to build" in declared.message
    assert "libnuma-dev" in declared.cure


def test_3_cmake_4_refuses_an_old_project(upstream: standin.Standin, tmp_path: Path) -> None:
    error = failing(upstream, tmp_path, {'CMAKE_POLICY_VERSION_MINIMUM = "3.5"\n': ""})
    assert isinstance(error, BuildError)
    assert "refuses a project that was written for one older than 3.5" in error.message
    assert "CMAKE_POLICY_VERSION_MINIMUM" in error.cure


def test_4_an_editable_install_has_no_library_in_its_package(built: Callable[[str], tuple[Prepared, Entry]]) -> None:
    prepared, entry = built("120")
    site = prepared.site
    hooks = BuildBackendHookCaller(
        str(site.work / "source"),
        "scikit_build_core.build",
        # The governor has ended; its launcher, which the build directory remembers, is told not to look for it.
        runner=pep517._Runner(site, site.variables | {"SMWHEEL_GOVERNED": "1"}, site.work / "log" / "editable.log"),
        python_executable=site.sandbox.inside(site.environment.python),
    )
    editable = site.work / "editable"
    editable.mkdir()
    # The same build directory, so that nothing is compiled again.
    with pep517._exchanging_in(site.work / "tmp"):
        name = hooks.build_editable(site.sandbox.inside(editable), pep517._settings(site, pep517.CMAKE_BACKEND))
    with Wheel(editable / name) as wheel:
        # The package is imported from its source tree, where the loader looks beside itself and finds no library.
        assert "standin_kernel/__init__.py" not in wheel.members
    assert not list((site.work / "source" / "python").rglob("*.so"))
    with Wheel(wheel_of(prepared, entry)) as wheel:
        assert {"standin_kernel/__init__.py", "standin_kernel/sm100/common_ops.abi3.so"} <= set(wheel.members)


def test_5_every_architecture_twice_or_one_once(
    upstream: standin.Standin, tmp_path: Path, built: Callable[[str], tuple[Prepared, Entry]]
) -> None:
    all_targets = upstream.recipe("all-targets", changes={'"*" = ["common_ops_sm100_build"]': '"*" = []'})
    theirs = compile_wheel(upstream.prepare(all_targets, "120", tmp_path), REPORTER, policy=standin.EVERYTHING).counts
    prepared, _ = built("120")
    evidence = Wheelhouse(prepared.site.options.wheelhouse).root / "evidence"
    (document,) = evidence.rglob("build.json")
    ours = json.loads(document.read_text())
    print(json.dumps({"upstream's way": theirs, "ours": ours}, indent=1))
    assert theirs["device_units"] == 2 * UNITS + 1
    assert theirs["device_compilations"] == 2 * UNITS * GENCODES + 1
    assert ours["device_units"] == ours["device_compilations"] == UNITS
    assert ours["device_compilations_by_code"] == {"sm_120a": UNITS}
    assert ours["cpu_seconds"] < theirs["cpu_seconds"]


def test_6_memory_runs_out_or_is_governed(upstream: standin.Standin, tmp_path: Path) -> None:
    upstream.recipe()
    command = [sys.executable, str(Path(standin.__file__)), str(upstream.root)]
    # Upstream's way wants some 20 GiB at once; the largest unit takes half a GiB. So 2 GiB leave neither to chance.
    with governor_cgroup.limited(2 << 30, "smwheel-standin") as group:
        plain = subprocess.run(
            group.command([*command, str(tmp_path / "plain"), "upstream"]), capture_output=True, text=True, check=False
        )
        assert plain.returncode != 0
        group.settle()
        killed = group.kills
        assert killed > 0
        governed = subprocess.run(
            group.command([*command, str(tmp_path / "governed"), "ours"]), capture_output=True, text=True, check=False
        )
        assert governed.returncode == 0, governed.stderr
        assert group.kills == killed, [
            path.read_text() for path in tmp_path.glob("governed/work/*/governor/summary.json")
        ]
    assert json.loads(governed.stdout)["device_compilations"] == UNITS


def test_7_code_that_the_loader_never_opens_is_refused(upstream: standin.Standin, tmp_path: Path) -> None:
    error = failing(upstream, tmp_path, {'"*" = ["common_ops_sm100_build"]': '"*" = ["common_ops_sm90_build"]'})
    assert isinstance(error, VerifyError)
    assert "W205" in error.message
    assert "which it never opens there" in error.message


def test_8_torch_must_be_imported_first(built: Callable[[str], tuple[Prepared, Entry]]) -> None:
    prepared, entry = built("120")
    verdict = verify_wheel(
        wheel_of(prepared, entry),
        from_resolution(prepared.plan.resolution),
        imports=Imports(prepared.site.environment.python),
    )
    results = {result.code: result for result in verdict.results}
    assert verdict.error() is None, verdict.error()
    assert all(result.status is Status.PASSED for result in verdict.results)
    assert verdict.level == "imported"
    assert "mapped" in " ".join(results["W601"].notes)
    assert "sm100/common_ops" in " ".join(results["W603"].notes)
    # The library itself, without torch before it:
    site = prepared.site.work / "unpacked"
    with Wheel(wheel_of(prepared, entry)) as wheel:
        wheel.extract(site)
    library = site / "standin_kernel" / "sm100" / "common_ops.abi3.so"
    load = f"import ctypes; ctypes.CDLL({str(library)!r})"
    python = str(prepared.site.environment.python)
    failed = subprocess.run([python, "-c", load], capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert "cannot open shared object file" in failed.stderr


# What else must hold.


@pytest.mark.parametrize(("arch", "directory", "flash"), [("121", "sm100", False), ("90", "sm90", True)])
def test_other_architectures_of_the_same_recipe(
    built: Callable[[str], tuple[Prepared, Entry]], arch: str, directory: str, flash: bool
) -> None:
    prepared, entry = built(arch)
    verdict = verify_wheel(
        wheel_of(prepared, entry),
        from_resolution(prepared.plan.resolution),
        imports=Imports(prepared.site.environment.python),
    )
    assert verdict.error() is None, verdict.error()
    assert entry.holds[f"{arch}a"] >= UNITS
    with Wheel(wheel_of(prepared, entry)) as wheel:
        members = set(wheel.members)
    assert f"standin_kernel/{directory}/common_ops.abi3.so" in members
    assert ("standin_kernel/flash_ops.abi3.so" in members) is flash
    assert ("standin_kernel/flash_ops.py" in members) is not flash


def test_a_forgotten_third_party_is_named(upstream: standin.Standin, tmp_path: Path) -> None:
    table = f"""[[versions."1.0".third_party]]
id = "repo-oldlib"
kind = "git"
repository = "{upstream.git}/oldlib"
commit = "{upstream.commits["oldlib"]}"
"""
    error = failing(upstream, tmp_path, {table: ""})
    assert isinstance(error, BuildError)
    assert "fetches repo-oldlib, and the recipe does not give it (it gives repo-numalib)" in error.message


def test_a_third_party_without_a_pin_is_not_fetched(upstream: standin.Standin, tmp_path: Path) -> None:
    error = failing(upstream, tmp_path, {f'commit = "{upstream.commits["oldlib"]}"\n': ""})
    assert isinstance(error, RecipeError)
    assert "repo-oldlib says neither commit nor tag" in error.message


def test_the_private_copy_alone_is_written(built: Callable[[str], tuple[Prepared, Entry]]) -> None:
    prepared, _ = built("120")
    assert (prepared.site.work / "third" / "repo-numalib" / "generated.h").is_file()
    assert not (prepared.site.third_party["repo-numalib"].path / "generated.h").exists()


def test_a_finished_plan_is_not_built_again(built: Callable[[str], tuple[Prepared, Entry]]) -> None:
    prepared, entry = built("120")
    assert build_pep517(prepared, REPORTER) == [entry]
