"""The plugin of the sglang-jit wheels: what it finds, and every case in which it must not give a library."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

RECIPE = Path(__file__).parents[2] / "recipes/sglang-jit"
VERSIONS = {"sglang": "0.5.23", "apache-tvm-ffi": "0.1.11", "torch": "2.14.1+cu130"}


def load_plugin() -> ModuleType:
    """Import the plugin's source under the name that its wheel gives it."""
    spec = importlib.util.spec_from_file_location(
        "sglang_jit_cache_demo", RECIPE / "plugin/__init__.py", submodule_search_locations=[str(RECIPE / "plugin")]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


plugin = load_plugin()
identity: Any = importlib.import_module("sglang_jit_cache_demo.identity")
store: Any = importlib.import_module("sglang_jit_cache_demo.store")


class World:
    """A server's environment with one prebuilt module: sources, store, versions, and what SGLang would say."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.kernels = folder / "site/sglang/kernels/jit"
        self.store = folder / "site/sglang_jit_cache_demo/store"
        self.header = self.kernels / "include/a.cuh"
        self.versions = dict(VERSIONS)
        self.loaded: list[str] = []
        self.hooks: list[tuple[Any, ...]] = []
        self.force = False
        self.arch = SimpleNamespace(major=12, minor=0)
        self.torch = SimpleNamespace(version=SimpleNamespace(cuda="13.0"))
        for path, text in ((self.header, "header"), (self.kernels / "csrc/k.cuh", "kernel")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.spec = SimpleNamespace(
            module_name="sgl_kernel_jit_k_64",
            module_args=("k", "64"),
            cpp_files=(),
            cuda_files=(str(self.kernels / "csrc/k.cuh"),),
            cpp_wrappers=(),
            cuda_wrappers=(("run", "K<64>::run"),),
            cflags=("-std=c++20",),
            cuda_cflags=("-DSGL_CUDA_ARCH=1200", "-O3"),
            ldflags=("-L/usr/local/cuda/lib64/stubs",),
            header_only=True,
        )
        self._stand_in()
        self._fill()

    def _stand_in(self) -> None:
        def load_module(path: str) -> None:
            self.loaded.append(path)
            if b"broken" in Path(path).read_bytes():
                raise OSError("invalid ELF header")

        def version(name: str) -> str:
            if name not in self.versions:
                raise metadata.PackageNotFoundError(name)
            return self.versions[name]

        registry = SimpleNamespace(register=lambda *arguments: self.hooks.append(arguments))
        modules = {
            "sglang.srt.environ": SimpleNamespace(
                envs=SimpleNamespace(SGLANG_JIT_FORCE_RECOMPILE=SimpleNamespace(get=lambda: self.force))
            ),
            "sglang.srt.plugins.hook_registry": SimpleNamespace(
                HookRegistry=registry, HookType=SimpleNamespace(AROUND="around")
            ),
            "sglang.kernels.jit.utils.arch": SimpleNamespace(get_jit_cuda_arch=lambda: self.arch),
            "tvm_ffi": SimpleNamespace(load_module=load_module),
            "torch": self.torch,
        }
        for name, module in modules.items():
            self.patch.setitem(sys.modules, name, module)
        for name in ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.kernels", "sglang.kernels.jit"):
            self.patch.setitem(sys.modules, name, ModuleType(name))
        self.patch.setattr(store, "version", version)
        places = {"sglang.kernels.jit": self.kernels}
        self.patch.setattr(store, "package_directory", places.get)
        self.patch.setattr(plugin, "__file__", str(self.store.parent / "__init__.py"))

    def _fill(self) -> None:
        fields = {
            name: identity.portable(getattr(self.spec, name), {"kernels": self.kernels}) for name in identity.FIELDS
        }
        key = identity.key(fields, "12.0")
        library = self.store / key / "k.so"
        library.parent.mkdir(parents=True)
        library.write_bytes(b"library")
        files = [["kernels", path, identity.digest(self.kernels / path)] for path in ("csrc/k.cuh", "include/a.cuh")]
        entry = {"name": "k", "library": f"{key}/k.so", "sha256": identity.digest(library), "inputs": [0, 1]}
        self.index = {
            "distribution": "sglang-jit-cache-demo",
            "capability": "12.0",
            "cuda_major": "13",
            "built_for": {"sglang": "0.5.23", "apache-tvm-ffi": "0.1.11", "torch": "2.14.1"},
            "modules": {key: entry},
            "files": files,
        }
        (self.store / "index.json").write_text(json.dumps(self.index))
        self.library = library

    def find(self, own: Path | None = None) -> Path | None:
        found: Path | None = store.Store(self.store).find(lambda **_: own, spec=self.spec, scope=Path("scope"))
        return found


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_request_is_found_verified_and_loaded(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert world.find() == world.library
    assert world.loaded == [str(world.library)]
    assert not caplog.records


def test_sglangs_own_cache_comes_first(world: World) -> None:
    assert world.find(own=Path("own.so")) == Path("own.so")
    assert not world.loaded


def test_forced_recompilation_is_honoured(world: World) -> None:
    world.force = True
    assert world.find() is None


def test_the_store_is_not_written(world: World) -> None:
    directories = [world.store.parent, world.store, world.library.parent]
    for directory in directories:
        directory.chmod(0o555)
    before = {path: path.stat().st_mtime_ns for path in world.store.rglob("*")}
    assert world.find() == world.library
    assert before == {path: path.stat().st_mtime_ns for path in world.store.rglob("*")}
    for directory in directories:
        directory.chmod(0o755)


def test_the_nvcc_that_sglang_sees_changes_nothing(world: World) -> None:
    world.spec.ldflags = ("-L/opt/other/cuda/lib64/stubs",)
    world.arch.suffix = "a"  # what SGLang takes with nvcc 12.8: the same GPU
    assert world.find() == world.library


def flip(world: World) -> None:
    world.library.write_bytes(b"librarx")


def change_header(world: World) -> None:
    world.header.write_text("changed")


def remove_header(world: World) -> None:
    world.header.unlink()


def change_kernel(world: World) -> None:
    (world.kernels / "csrc/k.cuh").write_text("changed")


def remove_library(world: World) -> None:
    world.library.unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip, "is not the file that was built: reinstall sglang-jit-cache-demo"),
        (remove_library, "is missing: reinstall sglang-jit-cache-demo"),
        (change_header, "compiled from other sources: kernels/include/a.cuh has changed"),
        (remove_header, "compiled from other sources: kernels/include/a.cuh is missing"),
        (change_kernel, "compiled from other sources: kernels/csrc/k.cuh has changed"),
    ],
)
def test_what_was_tampered_with_is_not_loaded_and_said_once(
    world: World, caplog: pytest.LogCaptureFixture, damage: Callable[[World], None], said: str
) -> None:
    damage(world)
    opened = store.Store(world.store)
    for _ in range(2):
        assert opened.find(lambda **_: None, spec=world.spec, scope=Path("scope")) is None
    assert not world.loaded
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert said in caplog.text
    assert "sgl_kernel_jit_k_64 is prebuilt but not used" in caplog.text


def test_a_library_that_does_not_load_is_kept_and_sglang_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.library.write_bytes(b"broken")
    entry = next(iter(world.index["modules"].values()))
    entry["sha256"] = identity.digest(world.library)
    (world.store / "index.json").write_text(json.dumps(world.index))
    assert world.find() is None
    assert world.library.is_file()
    assert "it does not load: invalid ELF header" in caplog.text


def other_flag(world: World) -> None:
    world.spec.cuda_cflags = (*world.spec.cuda_cflags, "--use_fast_math")


def other_argument(world: World) -> None:
    world.spec.module_args = ("k", "128")


def other_export(world: World) -> None:
    world.spec.cuda_wrappers = (("run", "K<128>::run"),)


@pytest.mark.parametrize("change", [other_flag, other_argument, other_export])
def test_another_request_is_a_miss_without_a_warning(
    world: World, caplog: pytest.LogCaptureFixture, change: Callable[[World], None]
) -> None:
    caplog.set_level(logging.INFO)
    change(world)
    assert world.find() is None
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "is not among the prebuilt kernels" in caplog.text


def test_another_gpu_is_a_miss_that_is_said_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world.arch.minor = 1
    opened = store.Store(world.store)
    for _ in range(2):
        assert opened.find(lambda **_: None, spec=world.spec, scope=Path("scope")) is None
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "a GPU of capability 12.1 is not what it was made for: 12.0" in caplog.text


def test_another_sglang_is_named_even_where_its_plugins_work_differently(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.versions["sglang"] = "0.6.0"
    world.patch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", None)
    plugin.register()
    assert "built for sglang 0.5.23, and 0.6.0 is installed" in caplog.text


def test_register_puts_the_store_behind_sglangs_lookup(world: World) -> None:
    plugin.register()
    ((target, hook, kind),) = world.hooks
    assert target == "sglang.kernels.jit.utils.compile.loader._find_prebuilt"
    assert kind == "around"
    assert hook(lambda **_: None, spec=world.spec, scope=Path("scope")) == world.library


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("torch", "2.13.0", "they were built for torch 2.14.1, and 2.13.0 is installed"),
        ("sglang", "0.5.24", "they were built for sglang 0.5.23, and 0.5.24 is installed"),
        ("apache-tvm-ffi", "0.1.12", "they were built for apache-tvm-ffi 0.1.11, and 0.1.12 is installed"),
        ("apache-tvm-ffi", None, "they were built for apache-tvm-ffi 0.1.11, and none is installed"),
    ],
)
def test_another_version_turns_the_store_off_with_one_warning(
    world: World, caplog: pytest.LogCaptureFixture, name: str, version: str | None, said: str
) -> None:
    del world.versions[name]
    if version is not None:
        world.versions[name] = version
    plugin.register()
    assert not world.hooks
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert said in caplog.text
    assert "To do: install sglang==0.5.23, apache-tvm-ffi==0.1.11, torch==2.14.1" in caplog.text


@pytest.mark.parametrize(("cuda", "said"), [("12.8", "torch is built for CUDA 12.8"), (None, "CUDA none")])
def test_a_torch_of_another_cuda_turns_the_store_off(
    world: World, caplog: pytest.LogCaptureFixture, cuda: str | None, said: str
) -> None:
    world.torch.version.cuda = cuda
    plugin.register()
    assert not world.hooks
    assert said in caplog.text


def test_a_key_does_not_depend_on_where_things_are_installed() -> None:
    def key(root: str) -> str:
        roots = {"kernels": Path(root), "flashinfer": Path(root).parent / "flashinfer"}
        fields: dict[str, Any] = {name: [] for name in identity.FIELDS}
        fields["cuda_files"] = identity.portable([f"{root}/csrc/a.cuh"], roots)
        fields["cuda_cflags"] = identity.portable([f"-I{root}/include", "-O3"], roots)
        made: str = identity.key(fields, "12.0")
        return made

    assert key("/a/kernels") == key("/quite/another/place")


def test_the_deepest_root_names_a_file() -> None:
    roots = {"outer": Path("/a"), "inner": Path("/a/b")}
    assert identity.anchored(Path("/a/b/c.h"), roots) == ("inner", "c.h")
    assert identity.anchored(Path("/usr/include/c.h"), roots) is None
    assert identity.portable("-I/a/b/include", roots) == "-I<inner>/include"
    assert identity.resolved(["-I<inner>/include"], roots) == ("-I/a/b/include",)
