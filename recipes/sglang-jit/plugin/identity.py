"""How a request for a kernel module is named, wherever SGLang and its dependencies are installed.

Used on both sides: by the generator that builds the modules, and by the plugin that finds them in a server. A
request is what SGLang's loader resolves a call to (`BuildSpec`): marker arguments, sources, exports, flags. Its
paths differ from machine to machine, so they are written relative to named roots: `<kernels>/csrc/a.cuh`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

# The fields of a request that say what the compiler makes of it. Include and library paths are left out: what is
# found through them is verified by content, file by file, so that an unrelated package that adds one (a second
# copy of CUTLASS after the first) changes nothing.
FIELDS = (
    "module_args",
    "cpp_files",
    "cuda_files",
    "cpp_wrappers",
    "cuda_wrappers",
    "cflags",
    "cuda_cflags",
    "ldflags",
    "header_only",
)
KEY_DIGITS = 20

# SGLang's own code that turns a request into compiler commands: a changed one is another request.
MACHINERY = ("spec.py", "ninja.py", "toolchain.py", "paths.py")
MACHINERY_DIR = "utils/compile"


def portable(value: Any, roots: Mapping[str, Path]) -> Any:
    """Return `value` with every root directory in its texts replaced by `<name>`, the longest root first."""
    if isinstance(value, str):
        for name, root in sorted(roots.items(), key=lambda item: -len(str(item[1]))):
            value = value.replace(str(root), f"<{name}>")
        return value
    if isinstance(value, list | tuple):
        return [portable(item, roots) for item in value]
    return value


def resolved(value: Any, roots: Mapping[str, Path]) -> Any:
    """Return `value` with every `<name>` in its texts replaced by that root directory."""
    if isinstance(value, str):
        for name, root in roots.items():
            value = value.replace(f"<{name}>", str(root))
        return value
    if isinstance(value, list | tuple):
        return tuple(resolved(item, roots) for item in value)
    return value


def key(fields: Mapping[str, Any], capability: str) -> str:
    """Return the name of a request on GPUs of one compute capability (`12.0`): 20 hex digits.

    `fields` holds at least FIELDS, in portable form. The machine code's suffix is no part of it: `sm_120a` and
    `sm_120f` both serve capability 12.0, and SGLang's choice between them turns on which nvcc it sees.
    """
    parts = [capability, *(_without_paths(fields[name]) for name in FIELDS)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:KEY_DIGITS]


def _without_paths(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [item for item in value if not (isinstance(item, str) and item.startswith(("-I", "-L")))]


def digest(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def anchored(path: Path, roots: Mapping[str, Path]) -> tuple[str, str] | None:
    """Return (root name, relative path) of a file below one of `roots`, the deepest root first; else None."""
    for name, root in sorted(roots.items(), key=lambda item: -len(str(item[1]))):
        if path.is_relative_to(root):
            return name, path.relative_to(root).as_posix()
    return None


def changed(
    files: Iterable[tuple[str, str, str]], roots: Mapping[str, Path], digest_of: Callable[[Path], str] = digest
) -> str:
    """Return the first of `files` (root name, relative path, sha256) that is not as it was, or an empty string."""
    for name, relative, expected in files:
        root = roots.get(name)
        path = root / relative if root is not None else None
        if path is None or not path.is_file():
            return f"{name}/{relative} is missing"
        if digest_of(path) != expected:
            return f"{name}/{relative} has changed"
    return ""
