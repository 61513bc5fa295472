"""Import SGLang's build machinery without torch, a GPU or SGLang's own dependencies.

`sglang.kernels.jit.utils` asks torch for nothing but the GPU's compute capability, the CUDA version and the names
of data types, and importing it whole would bring in gigabytes. So the modules that it imports from outside are
stood in for, answering as the target would; everything that decides a compiler command is SGLang's own code.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

DATA_TYPES = (
    *("float64", "float32", "float16", "bfloat16", "bool"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)


def machinery(source: Path, *, capability: str, suffix: str, cuda: str, cuda_home: str) -> Any:
    """Return SGLang's `kernels.jit.utils.compile` package from `source`, answering for one architecture.

    `capability` is e.g. `12.0`, `suffix` `a` or `f`. Replaces modules in `sys.modules`: for a process of its own.
    """
    os.environ["CUDA_HOME"] = cuda_home
    importlib.import_module("tvm_ffi.libinfo")  # before the stand-in, which it must not meet
    major, minor = (int(part) for part in capability.split("."))
    sys.modules["torch"] = _torch((major, minor), cuda)
    package = source / "sglang"
    # Packages whose own __init__ imports the server are entered without running it.
    for name, directory in (
        ("sglang", package),
        ("sglang.srt", package / "srt"),
        ("sglang.srt.utils", package / "srt/utils"),
        ("sglang.kernels", package / "kernels"),
    ):
        sys.modules[name] = _package(name, directory)
    sys.modules["sglang.srt.utils.common"] = _module(
        "sglang.srt.utils.common",
        is_cuda=lambda: True,
        get_cuda_version=lambda: tuple(int(part) for part in cuda.split(".")),
    )
    compile_package = importlib.import_module("sglang.kernels.jit.utils.compile")
    arch = importlib.import_module("sglang.kernels.jit.utils.arch")
    arch.override_jit_cuda_arch(major, minor, suffix).__enter__()  # for the rest of this process
    return compile_package


def _torch(capability: tuple[int, int], cuda: str) -> ModuleType:
    gpu = SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: 0,
        get_device_capability=lambda *_: capability,
        get_device_name=lambda *_: "stand-in",
    )
    types = {name: f"torch.{name}" for name in DATA_TYPES}
    return _module(
        "torch",
        version=SimpleNamespace(cuda=cuda, hip=None),
        cuda=gpu,
        compiler=SimpleNamespace(disable=lambda function: function),
        Tensor=type("Tensor", (), {}),
        device=type("device", (), {}),
        dtype=str,
        **types,
    )


def _module(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    return module


def _package(name: str, directory: Path) -> ModuleType:
    return _module(name, __path__=[str(directory)])
