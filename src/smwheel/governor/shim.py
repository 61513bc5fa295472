"""Compilers with the launcher before them, for build systems that can be told of nothing else.

A toolkit of symbolic links whose `bin/nvcc` is the launcher with the real nvcc behind it: nvcc finds its own
files from where it really lies, so all else is the real toolkit's.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from smwheel.errors import ToolchainError


def shim_toolkit(real: Path, destination: Path, launcher: Sequence[str], *, seen_as: Path | None = None) -> Path:
    """Make a CUDA_HOME of links to `real` in `destination`, with `bin/nvcc` started by `launcher`; return it.

    `seen_as` is where compilers see `real`, if that is another path.

    Raises:
        ToolchainError: `real` has no `bin/nvcc`.

    """
    nvcc = real / "bin" / "nvcc"
    if not nvcc.is_file():
        raise ToolchainError("this is no CUDA toolkit: it has no bin/nvcc", where=str(real), cure="set --cuda-home")
    (destination / "bin").mkdir(parents=True, exist_ok=True)
    for directory, place, hidden in ((real, destination, "bin"), (real / "bin", destination / "bin", "nvcc")):
        for entry in directory.iterdir():
            link = place / entry.name
            if entry.name != hidden and not link.is_symlink():
                link.symlink_to((seen_as or real) / entry.relative_to(real))
    shim_compiler(nvcc, destination / "bin" / "nvcc", launcher, seen_as=seen_as and seen_as / "bin" / "nvcc")
    return destination


def shim_compiler(real: Path, destination: Path, launcher: Sequence[str], *, seen_as: Path | None = None) -> Path:
    """Write a program `destination` that runs `real` (where it is run: `seen_as`) under the launcher; return it.

    Compile caches hash this text, not the compiler behind it, so the compiler's digest is in it.
    """
    digest = hashlib.sha256(real.read_bytes()).hexdigest()
    program = seen_as or real
    text = f'#!/bin/sh\n# {program}: sha256 {digest}\nexec {shlex.join([*launcher, "--", str(program)])} "$@"\n'
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(destination.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o755)
    temporary.replace(destination)
    return destination
