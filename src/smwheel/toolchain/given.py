"""Read a toolkit's directory: its version, whether its parts belong together, what of a recipe's needs it has."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from smwheel.errors import ToolchainError
from smwheel.sources.store import file_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_RELEASE = re.compile(r"release (\d+)\.(\d+), V([\d.]+)")
_CUDA_VERSION = re.compile(r"^\s*#\s*define\s+CUDA_VERSION\s+(\d+)", re.MULTILINE)
_PROGRAMS = ("bin/nvcc", "bin/cudafe++", "bin/ptxas", "bin/fatbinary", "bin/nvlink", "nvvm/bin/cicc")
_ALWAYS = ("cuda.h", "cuda_runtime.h", "crt/host_config.h")
_HEADER_FOLDERS = ("include", "include/cccl")
_LIBRARY_FOLDERS = ("lib64", "lib64/stubs", "lib", "lib/stubs")


@dataclass(frozen=True)
class Toolkit:
    """A toolkit's directory, how the user named it, and its full version (`13.0.88`)."""

    home: Path
    origin: str
    version: str

    @property
    def nvcc(self) -> Path:
        """The compiler driver."""
        return self.home / "bin/nvcc"

    @functools.cached_property
    def fingerprint(self) -> str:
        """The sha256 over the compilers' bytes and the version: what makes the machine code."""
        text = [self.version, *(f"{name} {file_digest(self.home / name)}" for name in _PROGRAMS)]
        return hashlib.sha256("\n".join(text).encode()).hexdigest()


def read_toolkit(home: Path, origin: str) -> Toolkit:
    """Return what lies in `home`; its programs and first headers are there and of one release.

    Raises:
        ToolchainError: it is no toolkit, a compiler is missing (all are listed), or headers and nvcc differ.
    """
    if not (home / "bin/nvcc").is_file():
        raise ToolchainError(
            "there is no bin/nvcc in it",
            where=f"{origin}: {home}",
            cure="name the directory that holds bin/nvcc, or leave it away to have CUDA provisioned",
        )
    if missing := [name for name in _PROGRAMS if not (home / name).is_file()]:
        raise _missing(origin, home, "programs", missing)
    output = _ask_version(home)
    release = _RELEASE.search(output)
    if release is None:
        raise ToolchainError(
            f"nvcc --version says nothing usable: {output.strip()[-200:]!r}",
            where=f"{origin}: {home}",
            cure="run it by hand; a toolkit for another kind of machine fails like this",
        )
    if missing := [name for name in _ALWAYS if not has_header(home, name)]:
        raise _missing(origin, home, "headers", missing)
    _require_same_release(home, origin, f"{release[1]}.{release[2]}")
    return Toolkit(home, origin, release[3])


def require_version(toolkit: Toolkit, version_spec: str) -> None:
    """See that the toolkit is of a wanted version.

    Raises:
        ToolchainError: it is not; both are named.
    """
    if not SpecifierSet(version_spec).contains(toolkit.version):
        raise ToolchainError(
            f"it is CUDA {toolkit.version}, and this plan needs {version_spec}",
            where=f"{toolkit.origin}: {toolkit.home}",
            cure="name a toolkit of that version, or choose the stack that fits this one",
        )


def require_parts(toolkit: Toolkit, headers: Iterable[str], libraries: Iterable[str]) -> None:
    """See that the toolkit holds each header and library.

    Raises:
        ToolchainError: some are missing; all of them are listed.
    """
    missing = [name for name in headers if not has_header(toolkit.home, name)]
    missing += [f"lib{name}.so" for name in libraries if not has_library(toolkit.home, name)]
    if missing:
        raise _missing(toolkit.origin, toolkit.home, "headers and libraries", missing)


def has_header(home: Path, name: str) -> bool:
    """Tell whether `#include <name>` finds a file where nvcc looks in this toolkit."""
    return any((home / folder / name).is_file() for folder in _HEADER_FOLDERS)


def has_library(home: Path, name: str) -> bool:
    """Tell whether `-lname` finds a library in this toolkit: shared or static, a stub too."""
    return any(
        (home / folder / f"lib{name}{suffix}").exists() for folder in _LIBRARY_FOLDERS for suffix in (".so", ".a")
    )


def _ask_version(home: Path) -> str:
    try:
        result = subprocess.run([home / "bin/nvcc", "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return result.stderr if result.returncode else result.stdout


def _require_same_release(home: Path, origin: str, release: str) -> None:
    text = (home / "include/cuda.h").read_text(encoding="utf-8", errors="replace")
    match = _CUDA_VERSION.search(text)
    number = int(match[1]) if match else 0
    found = f"{number // 1000}.{number % 1000 // 10}"
    if found != release:
        raise ToolchainError(
            f"its headers are of CUDA {found}, its nvcc is of {release}",
            where=f"{origin}: {home}",
            cure="name a toolkit that was installed whole; two releases in one tree compile wrong code",
        )


def _missing(origin: str, home: Path, what: str, names: Sequence[str]) -> ToolchainError:
    return ToolchainError(
        f"it lacks {len(names)} {what}: {', '.join(names)}",
        where=f"{origin}: {home}",
        cure="install the toolkit's development packages for them, or leave it away to have CUDA provisioned"
        if origin != "provisioned"
        else "name the component that brings them in the recipe's `toolchain.components`",
    )
