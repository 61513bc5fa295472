"""The store of prebuilt modules: looked up by request, verified by content."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from . import identity

logger = logging.getLogger(__name__)

# Where verified files may lie: root name → the package whose directory it is.
ROOT_PACKAGES = {"kernels": "sglang.kernels.jit", "tvm_ffi": "tvm_ffi", "flashinfer": "flashinfer"}


class Store:
    """Modules built for one architecture and one set of versions; read-only, usable by many processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.index: dict[str, Any] = json.loads((directory / "index.json").read_text(encoding="utf-8"))
        self.distribution: str = self.index["distribution"]
        self._warned: set[str] = set()
        self._digest = cache(identity.digest)  # modules share most of their headers

    def mismatch(self) -> str:
        """Say which installed version differs from what the modules were built for; empty if none does."""
        for name, wanted in self.index["built_for"].items():
            found = _installed(name)
            if found.split("+")[0] != wanted:
                return f"they were built for {name} {wanted}, and {found or 'none'} is installed"
        wanted, found = self.index["cuda_major"], _torch_cuda()
        if found.split(".")[0] != wanted:
            return f"they were built for CUDA {wanted}, and torch is built for CUDA {found or 'none'}"
        return ""

    def advice(self) -> str:
        """Name what to install so that the store is used."""
        built_for = ", ".join(f"{name}=={wanted}" for name, wanted in self.index["built_for"].items())
        return f"{built_for}, or the {self.distribution} made for the installed versions"

    def find(self, sglangs_own: Callable[..., Path | None], *, spec: Any, scope: Path) -> Path | None:
        """Return the library for a request: SGLang's own cached one, else ours, else None (it is compiled).

        Wraps SGLang's lookup; a library is returned only after it was verified and loaded once, because on a
        library that does not load SGLang removes the directory it lies in.
        """
        from sglang.srt.environ import envs  # noqa: PLC0415  # only in a server

        own = sglangs_own(spec=spec, scope=scope)
        if own is not None or envs.SGLANG_JIT_FORCE_RECOMPILE.get():
            return own
        gpu, made_for = _capability(), self.index["capability"]
        if gpu != made_for:
            self._once(logging.INFO, f"a GPU of capability {gpu}", f"is not what it was made for: {made_for}")
            return None
        entry = self.index["modules"].get(self.key(spec))
        if entry is None:
            self._once(logging.INFO, spec.module_name, "is not among the prebuilt kernels")
            return None
        library = self.directory / entry["library"]
        problem = self._problem(library, entry)
        if problem:
            self._once(logging.WARNING, spec.module_name, f"is prebuilt but not used: {problem}")
            return None
        return library

    def key(self, spec: Any) -> str:
        """Return the name of a request on the GPU that the store was made for."""
        fields = {name: identity.portable(getattr(spec, name), self.roots) for name in identity.FIELDS}
        return identity.key(fields, self.index["capability"])

    @cached_property
    def roots(self) -> dict[str, Path]:
        """The directories that verified files lie in, here."""
        found = {name: package_directory(package) for name, package in ROOT_PACKAGES.items()}
        return {name: path for name, path in found.items() if path is not None}

    def _problem(self, library: Path, entry: dict[str, Any]) -> str:
        """Say why a stored library must not be used; empty if it is right and loads."""
        if not library.is_file():
            return f"{library} is missing: reinstall {self.distribution}"
        if identity.digest(library) != entry["sha256"]:
            return f"{library} is not the file that was built: reinstall {self.distribution}"
        files = (self.index["files"][number] for number in entry["inputs"])
        change = identity.changed(((name, path, sha256) for name, path, sha256 in files), self.roots, self._digest)
        if change:
            return f"it was compiled from other sources: {change}"
        from tvm_ffi import load_module  # noqa: PLC0415  # only in a server

        try:
            load_module(str(library))
        except Exception as error:  # noqa: BLE001  # whatever the loader says, SGLang must be able to go on
            return f"it does not load: {error}"
        return ""

    def _once(self, level: int, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.log(level, "%s: %s %s", self.distribution, what, message)


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _capability() -> str:
    """Return the compute capability of this process's GPU as SGLang has found it, e.g. `12.0`."""
    from sglang.kernels.jit.utils.arch import get_jit_cuda_arch  # noqa: PLC0415  # only in a server

    arch = get_jit_cuda_arch()
    return f"{arch.major}.{arch.minor}"


def _torch_cuda() -> str:
    import torch  # noqa: PLC0415  # only in a server

    return torch.version.cuda or ""


def package_directory(package: str) -> Path | None:
    """Return the directory of an installed package, without importing it; None if it is not there."""
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        return None
    return Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
