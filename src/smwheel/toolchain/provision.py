"""Make a toolkit's tree of the registry's wheels, with the three repairs without which nothing links.

A tree's name is the digest of what it is made of. It appears by one rename, when it is whole; its `.complete` file
lists every file with its size, and a tree that no longer fits it is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from smwheel.errors import ToolchainError
from smwheel.locks import locked
from smwheel.sources.registry import fetch
from smwheel.sources.unpack import unpack
from smwheel.system import require_compiler, require_disk
from smwheel.toolchain.repairs import repair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smwheel.sources import Progress
    from smwheel.sources.store import Store
    from smwheel.toolchain.lock import Lock, Wheel

FORMAT = 1
"""Raised when the way a tree is made changes."""

_MARKER = ".complete"
_TREE_IN_WHEEL = "nvidia/cu13"


def tree_key(lock: Lock, wheels: Sequence[Wheel]) -> str:
    """Return the sha256 of what a tree is made of: the wheels' digests, and how they are put together."""
    parts = [f"format {FORMAT}", lock.version, lock.machine, *sorted(wheel.sha256 for wheel in wheels)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def tree_path(cache_root: Path, lock: Lock, wheels: Sequence[Wheel]) -> Path:
    """Return where the tree lies or will lie."""
    return cache_root / "toolchains" / f"cuda-{lock.version}-{tree_key(lock, wheels)[:16]}"


def is_complete(tree: Path, key: str) -> bool:
    """Tell whether the tree is there, is of this key, and has every file with its size."""
    try:
        marker = json.loads((tree / _MARKER).read_text(encoding="utf-8"))
        sizes = marker["files"].items()
        return marker["key"] == key and all((tree / name).stat().st_size == size for name, size in sizes)
    except (OSError, ValueError, KeyError):
        return False


def provision(
    lock: Lock,
    wheels: Sequence[Wheel],
    cache_root: Path,
    store: Store,
    *,
    offline: bool,
    progress: Progress | None,
) -> Path:
    """Return the tree of these wheels, making it when it is not there or no longer whole.

    Raises:
        NetworkError, HashMismatchError, SourceError: a wheel cannot be had.
        SystemNeedError: no C compiler, or too little disk.
        ToolchainError: the tree made does not do what it must.
    """
    key, tree = tree_key(lock, wheels), tree_path(cache_root, lock, wheels)
    if is_complete(tree, key):
        return tree
    compiler = require_compiler()
    missing = [wheel for wheel in wheels if store.path(wheel.sha256) is None]
    require_disk(cache_root, sum(wheel.size for wheel in missing) + sum(wheel.installed for wheel in wheels))
    archives = [
        fetch(wheel.project, wheel.filename, wheel.sha256, wheel.size, store, offline=offline, progress=progress)
        for wheel in wheels
    ]
    with locked(tree.with_suffix(".lock")):
        if is_complete(tree, key):
            return tree
        shutil.rmtree(tree, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=tree.parent, prefix=f".{tree.name}.") as scratch:
            staging = Path(scratch) / "tree"
            for number, (wheel, archive) in enumerate(zip(wheels, archives, strict=True)):
                unpacked = unpack(archive, Path(scratch) / str(number), max_bytes=wheel.installed).root
                _merge(unpacked / _TREE_IN_WHEEL, staging, wheel.filename)
                _keep_licences(unpacked, staging)
            repair(staging, compiler)
            _mark(staging, key)
            staging.rename(tree)
    return tree


def _merge(source: Path, target: Path, wheel: str) -> None:
    """Move the files of one wheel into the tree; two wheels may share directories, not files."""
    if not source.is_dir():
        raise ToolchainError(f"there is no {_TREE_IN_WHEEL} in it", where=wheel, cure="make the lock again")
    for folder, _, names in os.walk(source):
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            if (place / name).exists():
                raise ToolchainError(f"{name} comes from another wheel too", where=wheel)
            (Path(folder) / name).rename(place / name)


def _keep_licences(unpacked: Path, tree: Path) -> None:
    for folder in unpacked.glob("*.dist-info"):
        folder.rename(tree / folder.name)


def _mark(tree: Path, key: str) -> None:
    files = {
        str(path.relative_to(tree)): path.stat().st_size
        for path in sorted(tree.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    (tree / _MARKER).write_text(json.dumps({"key": key, "files": files}), encoding="utf-8")
