"""See which kernel modules a process asks SGLang for, without changing what happens.

`smwheel record` runs `install` in every Python process of a server. Of SGLang, only the function that sees each
request on its way to the module cache is wrapped; the server compiles, falls back and fails as it would.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from plugin import identity, store

CACHE = "sglang.kernels.jit.utils.compile.cache"


def install(report: Callable[[dict[str, Any]], None]) -> None:
    """Call `report` with each request, in the form that set files hold, from now on."""
    if CACHE in sys.modules:
        _wrap(sys.modules[CACHE], report)
    else:
        sys.meta_path.insert(0, _AfterImport(report))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Wraps the module when it is first imported, wherever that happens."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self.report = report

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name != CACHE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _wrap(module, self.report)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _wrap(cache: ModuleType, report: Callable[[dict[str, Any]], None]) -> None:
    original = cache.compute_build_key

    def compute_build_key(spec: Any, **arguments: Any) -> str:
        report(describe(spec))
        key: str = original(spec, **arguments)
        return key

    cache.compute_build_key = compute_build_key  # type: ignore[attr-defined]


def describe(spec: Any) -> dict[str, Any]:
    """Return a request as set files hold it: portable paths, empty fields left out, no mark of this GPU."""
    arch = importlib.import_module("sglang.kernels.jit.utils.arch").get_jit_cuda_arch()
    roots = _roots()
    own_flag, any_flag = f"-DSGL_CUDA_ARCH={arch.major}{arch.minor}0", "-DSGL_CUDA_ARCH=<arch>"
    described: dict[str, Any] = {}
    for name in (*identity.FIELDS, "include_paths"):
        value = identity.portable(getattr(spec, name), roots)
        if name == "cuda_cflags":
            value = [any_flag if flag == own_flag else flag for flag in value]
        if name == "include_paths":
            value = [path for path in value if path.startswith("<")]
        if value not in ([], True):
            described[name] = value
    described["gpus"] = [f"{arch.major}.{arch.minor}"]
    return described


def _roots() -> dict[str, Path]:
    found = {name: store.package_directory(package) for name, package in store.ROOT_PACKAGES.items()}
    toolchain = importlib.import_module("sglang.kernels.jit.utils.compile.toolchain")
    found["toolkit"] = Path(toolchain.cuda_home())
    return {name: path for name, path in found.items() if path is not None}
