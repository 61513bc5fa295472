"""FlashInfer imported from its source tree, with every path that it writes below the work directory."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from generator.request import GeneratorError, Request

STANDIN = Path(__file__).resolve().parents[1] / "standin"

# What of the caller's environment the generators may see: anything else could change what they generate.
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CC", "CXX")


def set_environment(request: Request) -> None:
    """Replace the process's environment by the one that upstream's generators read, and enter `work`."""
    kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("SMWHEEL")}
    cuda_home = str(request.cuda_home)
    nvshmem = request.work / "nvshmem-is-not-installed"
    os.environ.clear()
    os.environ.update(kept)
    os.environ.update(
        HOME=str(request.work / "home"),
        PATH=f"{cuda_home}/bin:{kept.get('PATH', os.defpath)}",
        CUDA_HOME=cuda_home,
        CUDA_PATH=cuda_home,  # the only one that the fmha_v2 generator looks at
        FLASHINFER_CUDA_ARCH_LIST=request.arch.dotted,
        FLASHINFER_WORKSPACE_BASE=str(request.work),
        FLASHINFER_DISABLE_VERSION_CHECK="1",
        FLASHINFER_LOGGING_LEVEL="warning",
        TVM_FFI_DISABLE_TORCH_C_DLPACK="1",  # else tvm_ffi compiles a helper for tensors, which there are none of
    )
    if importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.nvshmem") is None:
        os.environ.update(NVSHMEM_INCLUDE_PATH=str(nvshmem / "include"), NVSHMEM_LIBRARY_PATH=str(nvshmem / "lib"))
    request.work.mkdir(parents=True, exist_ok=True)
    os.chdir(request.work)


def load(request: Request) -> ModuleType:
    """Import `flashinfer.aot` from the source tree and return it.

    Call it once in a process, after `set_environment`.

    Raises:
        GeneratorError: the tree is another version, or lacks what its import needs.

    """
    sys.pycache_prefix = str(request.work / "pycache")  # the tree is read-only
    if request.options.get("torch", "standin") == "standin":
        sys.path.insert(0, str(STANDIN))
    sys.path.insert(0, str(request.source))
    for name in ("csrc", "include"):
        if not (request.source / "flashinfer" / "data" / name).is_dir():
            raise GeneratorError(
                f"{request.source}/flashinfer/data/{name} is not there: the links of the recipe were not made"
            )
    try:
        aot = importlib.import_module("flashinfer.aot")
        version = importlib.import_module("flashinfer.version").__version__
    except ImportError as error:
        raise GeneratorError(f"FlashInfer's source tree cannot be imported: {error}") from error
    if version != request.version:
        raise GeneratorError(f"{request.source} holds FlashInfer {version}, not {request.version}")
    environment: Any = importlib.import_module("flashinfer.jit.env")
    environment.FLASHINFER_WORKSPACE_DIR = request.work
    environment.FLASHINFER_JIT_DIR = request.work / "cached_ops"
    environment.FLASHINFER_GEN_SRC_DIR = request.work / "generated"
    for directory in (environment.FLASHINFER_JIT_DIR, environment.FLASHINFER_GEN_SRC_DIR):
        directory.mkdir(parents=True, exist_ok=True)
    return aot


def function(reference: str) -> Any:
    """Return the function that `package.module:name` refers to."""
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise GeneratorError(f"the recipe names {reference}, which is not there: {error}") from error


def stub(reference: str, name: str) -> None:
    """Replace a generator that cannot run here by one that only says the module's name."""
    function(reference)  # a name that is no longer there would stub nothing
    module, _, attribute = reference.partition(":")
    spec = SimpleNamespace(name=name, sources=[])
    setattr(importlib.import_module(module), attribute, lambda: spec)
