"""What a package's own build says when it fails, what of it is counted, and what recipes say of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smwheel import recipe, system
from smwheel.arch import Arch
from smwheel.build import pep517
from smwheel.build.configuring import failure
from smwheel.build.pep517 import count
from smwheel.errors import (
    ArchError,
    BuildError,
    OutOfMemoryError,
    RecipeError,
    SourceError,
    SystemNeedError,
    VerifyError,
)
from smwheel.progress import Reporter
from smwheel.recipe import ArchiveSource, GitSource, SystemNeed
from smwheel.wheels.wheelfile import write_wheel

TOO_OLD = """-- Detecting CXX compile features - done
CMake Error at /srv/smwheel/third-old/CMakeLists.txt:1 (cmake_minimum_required):
  Compatibility with CMake < 3.5 has been removed from CMake.

  Update the VERSION argument <min> value.  Or, use the <min>...<max> syntax
  to tell CMake that the project requires at least <min>.

-- Configuring incomplete, errors occurred!
"""
NOT_GIVEN = """CMake Error at /usr/share/cmake/Modules/FetchContent.cmake:2158 (message):
  FETCHCONTENT_FULLY_DISCONNECTED is set to true, which requires the source
  directory for dependency repo-fmt to already be populated.  This generally
  means it must not be set to true the first time CMake is run in a build
  directory.  The following source directory should already be populated, but
  it doesn't exist:

    /srv/smwheel/work/cmake/_deps/repo-fmt-src

Call Stack (most recent call first):
  CMakeLists.txt:28 (FetchContent_MakeAvailable)
"""
NUMA = """CMake Error at /x/FindPackageHandleStandardArgs.cmake:290 (message):
  Could NOT find NUMA (missing: NUMA_INCLUDE_DIR NUMA_LIBRARY)
Call Stack (most recent call first):
"""
UNIT = """[1/3] Building CUDA object a.cu.o
FAILED: [code=1] csrc/b.cu.o
nvcc -c b.cu
b.cu(3): error: identifier "x" is undefined
[2/3] Building CXX object c.o
ninja: build stopped: subcommand failed.
CMake Error: the last words, which say nothing
"""
KILLED = """FAILED: csrc/b.cu.o
nvcc -c b.cu
smwheel: csrc/b.cu.o: killed for memory even alone
"""


@pytest.mark.parametrize(
    ("text", "kind", "where", "message", "cure"),
    [
        (
            TOO_OLD,
            BuildError,
            "third-old/CMakeLists.txt:1",
            "written for one older than 3.5",
            "CMAKE_POLICY_VERSION_MIN",
        ),
        (
            NOT_GIVEN,
            BuildError,
            "FetchContent",
            "fetches repo-fmt, and the recipe does not give it (it gives a, b)",
            "id =",
        ),
        (NUMA, BuildError, "FindPackage", "configuring did not find NUMA", "[[system]]"),
        (UNIT, BuildError, "unit csrc/b.cu.o", 'identifier "x" is undefined', "compile.log"),
        (KILLED, OutOfMemoryError, "unit csrc/b.cu.o", "killed for memory", "compile.log"),
        (
            "Traceback\nKeyError: 'x'\n",
            BuildError,
            "the package's build",
            "ended with code 7:\nTraceback",
            "compile.log",
        ),
    ],
)
def test_the_innermost_cause(
    tmp_path: Path, text: str, kind: type[BuildError], where: str, message: str, cure: str
) -> None:
    log = tmp_path / "compile.log"
    log.write_text(text)
    error = failure(log, 7, third_party=["b", "a"])
    assert type(error) is kind
    assert where in error.where
    assert message in error.message
    assert cure in error.cure


def test_a_failed_unit_is_told_without_what_others_said(tmp_path: Path) -> None:
    log = tmp_path / "compile.log"
    log.write_text(UNIT)
    assert "Building CXX" not in failure(log, 1, third_party=[]).message


def test_units_are_counted_once_and_trials_of_cmake_never(tmp_path: Path) -> None:
    def ended(unit: str) -> dict[str, object]:
        return {"event": "finished", "unit": unit, "cpu": 1.5}

    units = ["CMakeFiles/cmTC_1.dir/x.cu.o", "CMakeCUDACompilerId.cu", "ops.dir/a.cu.o", "ops.dir/b.cpp.o"]
    compiles = tmp_path / "compiles.jsonl"
    compiles.write_text(
        '{"unit": "CMakeFiles/cmTC_1.dir/x.cu.o", "codes": ["sm_75"]}\n'
        '{"unit": "ops.dir/a.cu.o", "codes": ["sm_90", "sm_120a"]}\n'
        '{"unit": "ops.dir/a.cu.o", "codes": ["sm_90", "sm_120a", "sm_90"]}\n'
    )
    assert count([*map(ended, units), {"event": "waiting"}], compiles) == {
        "units": 2,
        "device_units": 1,
        "device_compilations": 2,
        "device_compilations_by_code": {"sm_120a": 1, "sm_90": 1},
        "cpu_seconds": 3.0,
    }
    assert count([], tmp_path / "nothing")["device_units"] == 0


def test_what_a_build_needs_of_the_system(tmp_path: Path) -> None:
    def need(**values: str) -> SystemNeed:
        return SystemNeed(name="it", apt="it-dev", dnf="it-devel", **values)  # type: ignore[arg-type]

    (tmp_path / "standin_header.h").write_text("")
    found = [need(header="stdio.h"), need(library="libc.so.6"), need(command="sh"), need(library="no.so", stage="run")]
    system.require_needs(found, {})
    system.require_needs([need(header="standin_header.h")], {"CPATH": str(tmp_path)})
    for missing in (need(header="standin_header.h"), need(library="libno.so.7"), need(command="no-such-program")):
        with pytest.raises(SystemNeedError, match="it is needed to build"):
            system.require_needs([missing], {})


def test_an_architecture_that_the_recipe_says_no_targets_for() -> None:
    def site(code: str, targets: dict[str, list[str]]) -> Any:
        resolution = SimpleNamespace(arch=Arch.parse(code), name="demo 1.0")
        return SimpleNamespace(resolution=resolution, build=SimpleNamespace(targets=targets))

    assert pep517._targets(site("120a", {"120": ["a"], "*": ["b"]})) == ["a"]
    assert pep517._targets(site("90a", {"120": ["a"], "*": ["b"]})) == ["b"]
    assert pep517._targets(site("90a", {})) == []
    with pytest.raises(ArchError, match=r"demo 1\.0 is not compiled for sm_90a"):
        pep517._targets(site("90a", {"120": ["a"]}))


def test_a_tree_of_another_version_than_the_recipe_says(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, distribution="demo", version="1.1", tags=["py3-none-any"], files=[("demo.py", b"")])
    prepared: Any = SimpleNamespace(plan=SimpleNamespace(resolution=SimpleNamespace(version="1.0")))
    with pytest.raises(VerifyError, match=r"the source builds version 1.1, and the recipe says 1.0"):
        pep517._finish(prepared, wheel, tmp_path, Reporter())


def test_a_build_system_without_a_table(tmp_path: Path) -> None:
    site: Any = SimpleNamespace(resolution=SimpleNamespace(name="demo 1.0"))
    for text in ("", "[build-system]\nrequires = []\n", "no toml ["):
        (tmp_path / "pyproject.toml").write_text(text)
        with pytest.raises(SourceError, match=r"no usable \[build-system\] table"):
            pep517._backend(tmp_path, site)


SOURCES = """
schema = 1
name = "demo"
summary = "a demo"
license = "MIT"

[versions."1.0"]
strategies = ["compile"]
sources = [{ id = "up", kind = "git", repository = "https://example.org/x", tag = "v1" }]
targets = [{ request = ["120"], code = "120a", why = "so" }]
build = { requirements = "r.txt", source = "up" }

[[versions."1.0".third_party]]
id = "repo-fmt"
kind = "archive"
url = "https://example.org/fmt.tar.gz"
file = "fmt.tar.gz"
sha256 = "%s"
"""


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "recipe.toml").write_text(text % ("a" * 64))
    return f"{tmp_path}/"


def test_sources_of_every_kind(tmp_path: Path) -> None:
    data = recipe.load(write(tmp_path, SOURCES)).version("1.0")
    upstream, third = data.source("up"), data.third_party[0]
    assert isinstance(upstream, GitSource)
    assert isinstance(third, ArchiveSource)
    assert upstream.pin == {"id": "up", "commit": "", "directory": "", "submodules": False}
    assert upstream.title == "https://example.org/x at v1"
    with pytest.raises(RecipeError, match="is no file of a package index"):
        data.file("up")


@pytest.mark.parametrize(
    ("old", "new", "key", "cure"),
    [
        ('tag = "v1"', 'tga = "v1"', "sources.0.tga", "'tag'"),
        ('tag = "v1"', 'commit = "abc"', "sources.0.commit", "correct the value"),
        ('kind = "archive"', 'kind = "wheel"', "third_party.0.kind", "correct the value"),
        ('kind = "archive"\n', "", "third_party.0.kind", "add the key"),
        ('id = "repo-fmt"', 'id = "up"', "1.0", "correct the value"),
    ],
)
def test_what_is_wrong_with_a_source_is_said(tmp_path: Path, old: str, new: str, key: str, cure: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.load(write(tmp_path, SOURCES.replace(old, new)))
    assert f"key versions.{key if key[0].isdigit() else f'1.0.{key}'}:" in caught.value.message
    assert cure in caught.value.cure


def test_the_recipes_that_are_compiled_from_a_repository_never_take_a_branch() -> None:
    for name in recipe.names():
        for version, data in recipe.load(name).versions.items():
            for source in data.sources:
                if isinstance(source, GitSource):
                    assert source.commit or source.tag, f"{name} {version}: {source.id}"
