"""The CUDA toolkit that a build uses: given by the user, or CUDA 13.0 made from the package registry's wheels.

Which one is decided by what the user said, never by what lies on PATH: `--cuda-home`, else CUDA_HOME, else
provisioned. `describe` says which it will be and what it costs, `find` brings and checks it, `probe` compiles with it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from smwheel.errors import ToolchainError
from smwheel.sources.store import Store
from smwheel.toolchain.given import read_toolkit, require_parts, require_version
from smwheel.toolchain.lock import Lock, load
from smwheel.toolchain.probe import probe
from smwheel.toolchain.provision import is_complete, provision, tree_key, tree_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smwheel.sources import Progress

__all__ = ["Description", "Toolchain", "describe", "find", "probe"]


@dataclass(frozen=True)
class Toolchain:
    """A checked toolkit. `origin` says who chose it: `--cuda-home`, `CUDA_HOME` or `provisioned`."""

    home: Path
    version: str
    origin: str
    nvcc: Path
    components: tuple[str, ...]
    fingerprint: str


@dataclass(frozen=True)
class Description:
    """What `find` will use, said without fetching anything.

    `download` are the bytes still to fetch, `disk` the bytes that the tree will take more than now; both 0 when it
    is there. `home` is where the toolkit lies or will lie.
    """

    origin: str
    version: str
    home: Path
    fingerprint: str
    download: int = 0
    disk: int = 0
    wheels: tuple[str, ...] = ()


def describe(*, cuda_home: Path | None, components: Sequence[str], version_spec: str, cache_root: Path) -> Description:
    """Return which toolkit `find` will use and what it costs to have it; nothing is fetched.

    Raises:
        ToolchainError: the toolkit given is none or of another version; or none is given and the package registry
            has none of that version.
    """
    home, origin = _chosen(cuda_home)
    if home is not None:
        toolkit = read_toolkit(home, origin)
        require_version(toolkit, version_spec)
        return Description(origin, toolkit.version, toolkit.home, toolkit.fingerprint)
    lock = _provisionable(version_spec)
    wheels = lock.select(components)
    key, tree, store = tree_key(lock, wheels), tree_path(cache_root, lock, wheels), _store(cache_root)
    names = tuple(wheel.filename for wheel in wheels)
    if is_complete(tree, key):
        return Description(origin, lock.version, tree, key, wheels=names)
    download = sum(wheel.size for wheel in wheels if store.path(wheel.sha256) is None)
    installed = sum(wheel.installed for wheel in wheels)
    return Description(origin, lock.version, tree, key, download, download + installed, names)


def find(
    *,
    cuda_home: Path | None,
    components: Sequence[str],
    headers: Sequence[str] = (),
    libraries: Sequence[str] = (),
    version_spec: str,
    cache_root: Path,
    offline: bool = False,
    progress: Progress | None = None,
) -> Toolchain:
    """Return the toolkit to build with, provisioned if none is given, with every header and library seen.

    `headers` are as one includes them (`cublasLt.h`), `libraries` as one links them (`cublas`), `version_spec` as
    PEP 440 writes ranges (`==13.0.*`), `components` as the registry's `cuda-toolkit` calls its extras.

    Raises:
        ToolchainError: wrong version, or parts missing: all of them are listed.
        NetworkError, HashMismatchError, SourceError: a wheel cannot be had.
        SystemNeedError: no compiler for the driver's stub, or too little disk.
    """
    home, origin = _chosen(cuda_home)
    fingerprint = ""
    if home is None:
        lock = _provisionable(version_spec)
        wheels = lock.select(components)
        home = provision(lock, wheels, cache_root, _store(cache_root), offline=offline, progress=progress)
        fingerprint = tree_key(lock, wheels)
    toolkit = read_toolkit(home, origin)
    require_version(toolkit, version_spec)
    require_parts(toolkit, headers, libraries)
    return Toolchain(
        home=toolkit.home,
        version=toolkit.version,
        origin=origin,
        nvcc=toolkit.nvcc,
        components=tuple(sorted(components)),
        fingerprint=fingerprint or toolkit.fingerprint,
    )


def _chosen(cuda_home: Path | None) -> tuple[Path | None, str]:
    if cuda_home is not None:
        return cuda_home.absolute(), "--cuda-home"
    if named := os.environ.get("CUDA_HOME"):
        return Path(named).absolute(), "CUDA_HOME"
    return None, "provisioned"


def _provisionable(version_spec: str) -> Lock:
    lock = load()
    if not SpecifierSet(version_spec).contains(lock.version):
        raise ToolchainError(
            f"CUDA {version_spec} cannot be had whole from the package registry, only {lock.version}",
            where="toolchain",
            cure="install that CUDA and pass its directory (--cuda-home DIR), or build in a CUDA base image",
        )
    return lock


def _store(cache_root: Path) -> Store:
    return Store(cache_root / "store")
