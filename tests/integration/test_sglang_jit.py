"""SGLang's published wheel, one of its kernels really compiled, and its own loader asked for it in every way.

No torch and no GPU: torch is stood in for, as in the generator. SGLang's cache, loader and plugin registry, tvm-ffi
and the library are the real ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from smwheel import stack as stacks
from smwheel.arch import Arch
from smwheel.build.sandbox import namespaces_unusable
from smwheel.builder import Wish, build_all
from smwheel.pipeline import Options, make_site
from smwheel.progress import Reporter
from smwheel.wheels.fatbin import Kind, code_of

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
RECIPE = HERE.parents[1] / "recipes/sglang-jit"
VERSIONS = {"torch": "2.14.1"}


@dataclass(frozen=True)
class World:
    """What a server consists of: SGLang's tree, Python, our unpacked wheel, and how SGLang is asked."""

    folder: Path
    tree: Path
    python: Path
    toolkit: Path
    wheel: Path
    specs: tuple[dict[str, Any], ...]
    suffix: str = "f"
    seen_toolkit: str = "/nonexistent"
    search_path: str = "/nonexistent"
    versions: tuple[tuple[str, str], ...] = tuple(VERSIONS.items())
    wrapper: tuple[str, ...] = ()

    def ask(self, **environment: str) -> tuple[list[str], str]:
        """Return SGLang's problem with each module (empty: found), and what was logged."""
        infos = self.folder / "versions"
        shutil.rmtree(infos, ignore_errors=True)
        for name, version in self.versions:
            info = infos / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        request = self.folder / "request.json"
        asked = {
            "recipe": str(RECIPE),
            "tree": str(self.tree),
            "cuda_home": self.seen_toolkit,
            "suffix": self.suffix,
            "specs": list(self.specs),
        }
        request.write_text(json.dumps(asked))
        variables = {
            "PATH": self.search_path,
            "HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(map(str, (infos, self.wheel, self.tree))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LD_LIBRARY_PATH": str(self.toolkit / "lib"),
            "SGLANG_JIT_CACHE_DIR": str(self.folder / "empty-cache"),
            "SGLANG_CRASH_ON_JIT_COMPILE": "1",
        }
        done = subprocess.run(
            [*self.wrapper, self.python, HERE / "sglang_lookup.py", request],
            env=variables | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    def changed(self, path: str) -> World:
        """Return a world whose SGLang tree differs in one file: a comment more."""
        tree = self.folder / "changed"
        shutil.rmtree(tree, ignore_errors=True)
        _mirror(self.tree, tree, Path(path))
        target = tree / path
        text = target.read_text()
        target.unlink()
        target.write_text(f"{text}\n{'#' if path.endswith('.py') else '//'} changed\n")
        return replace(self, tree=tree)


def _mirror(source: Path, copy: Path, path: Path) -> None:
    """Make `copy` of links to `source`, but with real directories along `path` and below its kernels."""
    copy.mkdir(parents=True)
    first, rest = path.parts[0], Path(*path.parts[1:])
    for child in source.iterdir():
        if child.name == first and child.name == "jit":
            shutil.copytree(child, copy / child.name)
        elif child.name == first:
            _mirror(child, copy / child.name, rest)
        else:
            (copy / child.name).symlink_to(child)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("sglang-jit")
    options = Options(work=folder / "work", wheelhouse=folder / "wheelhouse", jobs=1)
    wish = Wish(("sglang-jit",), Arch.parse("120"), stacks.load("sglang-0.5.23"), modules=("clamp_position_int64*",))
    outcome = build_all(wish, options, Reporter())
    assert not outcome.failures
    site = make_site(wish.resolve("sglang-jit"), options, Reporter())
    wheel = folder / "wheel"
    with zipfile.ZipFile(options.wheelhouse / outcome.entries[-1].file) as archive:
        archive.extractall(wheel)
    base = json.loads((RECIPE / "sets/base.json").read_text())["specs"]
    specs = tuple(spec for spec in base if spec["module_args"] == ["clamp_position", "int64_t"])
    return World(folder, site.tree.path, site.environment.python, site.toolchain.home, wheel, specs)


def test_the_wheel_holds_one_cubin_of_the_architecture_and_no_path_of_the_machine(built: World) -> None:
    (library,) = built.wheel.glob("sglang_jit_cache_sm120f/store/*/*.so")
    assert dict(code_of(library)) == {(Kind.CUBIN, Arch.parse("120f")): 1}
    assert str(built.folder).encode() not in library.read_bytes()
    assert b"/srv/smwheel" not in library.read_bytes()


def test_it_is_found_without_compilers(built: World) -> None:
    assert built.ask()[0] == [""]
    assert not (built.folder / "empty-cache").exists()


def test_it_is_not_there_with_the_plugin_off(built: World) -> None:
    (problem,), _ = built.ask(SGLANG_PLUGINS="another")
    assert "no usable cached build" in problem


def test_forced_recompilation_is_honoured(built: World) -> None:
    (problem,), _ = built.ask(SGLANG_JIT_FORCE_RECOMPILE="1")
    assert "no usable cached build" in problem


def test_another_nvcc_and_compiler_change_nothing(built: World) -> None:
    tools = built.folder / "tools/bin"
    tools.mkdir(parents=True, exist_ok=True)
    for name, text in (("nvcc", "Cuda compilation tools, release 12.8, V12.8.93"), ("c++", "g++ (Other) 15.2.0")):
        (tools / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tools / name).chmod(0o755)
    other = replace(built, suffix="a", seen_toolkit=str(tools.parent), search_path=f"{tools}:/usr/bin:/bin")
    assert other.ask()[0] == [""]


def test_an_include_path_that_another_package_adds_changes_nothing(built: World) -> None:
    include = built.folder / "deep_gemm/include"
    include.mkdir(parents=True, exist_ok=True)
    specs = tuple(spec | {"include_paths": [*spec["include_paths"], str(include)]} for spec in built.specs)
    assert replace(built, specs=specs).ask()[0] == [""]


@pytest.mark.skipif(bool(namespaces_unusable(network=True)), reason="no namespaces here")
def test_it_is_found_on_a_read_only_mount(built: World) -> None:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
    script = f"PATH=/usr/sbin:/usr/bin:/sbin:/bin; {mount}"
    unshare = shutil.which("unshare")
    assert unshare is not None
    wrapper = (unshare, "--mount", *user, "/bin/sh", "-c", script, "sh", str(built.wheel))
    assert replace(built, wrapper=wrapper).ask()[0] == [""]


@pytest.mark.parametrize(("name", "version"), [("torch", "2.13.0"), ("apache-tvm-ffi", "0.1.12"), ("sglang", "0.5.24")])
def test_another_version_is_a_miss_with_one_warning(built: World, name: str, version: str) -> None:
    other = replace(built, versions=tuple((VERSIONS | {name: version}).items()))
    (problem,), log = other.ask()
    assert "no usable cached build" in problem
    warnings = [line for line in log.splitlines() if line.startswith("WARNING sglang-jit-cache")]
    assert len(warnings) == 1
    assert f"{name} " in warnings[0]
    assert f"{version} is installed" in warnings[0]


@pytest.mark.parametrize(
    "path",
    [
        "sglang/kernels/jit/csrc/elementwise/clamp_position.cuh",
        "sglang/kernels/jit/include/sgl_kernel/utils.cuh",
        "sglang/kernels/jit/utils/compile/toolchain.py",
    ],
)
def test_a_changed_source_is_a_miss_with_a_warning(built: World, path: str) -> None:
    (problem,), log = built.changed(path).ask()
    assert "no usable cached build" in problem
    assert f"compiled from other sources: {path.replace('sglang/kernels/jit', 'kernels')} has changed" in log


def test_a_flipped_byte_is_a_miss_with_a_warning(built: World) -> None:
    wheel = built.folder / "flipped"
    shutil.copytree(built.wheel, wheel)
    (library,) = wheel.glob("sglang_jit_cache_sm120f/store/*/*.so")
    content = bytearray(library.read_bytes())
    content[len(content) // 2] ^= 1
    library.write_bytes(content)
    (problem,), log = replace(built, wheel=wheel).ask()
    assert "no usable cached build" in problem
    assert "is not the file that was built" in log


def test_a_second_build_makes_the_same_library(built: World) -> None:
    again = Options(work=built.folder / "another/work", wheelhouse=built.folder / "another/wheelhouse", jobs=1)
    wish = Wish(("sglang-jit",), Arch.parse("120"), stacks.load("sglang-0.5.23"), modules=("clamp_position_int64*",))
    assert not build_all(wish, again, Reporter()).failures
    (first,) = (built.folder / "wheelhouse").glob("*.whl")
    (second,) = again.wheelhouse.glob("*.whl")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
