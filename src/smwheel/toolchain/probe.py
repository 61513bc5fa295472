"""Compile and link a few lines for an architecture and look at the product, before hours are spent."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from smwheel.errors import MalformedError, ToolchainError
from smwheel.toolchain.repairs import DRIVER
from smwheel.wheels.elf import read_elf
from smwheel.wheels.fatbin import code_of

if TYPE_CHECKING:
    from smwheel.arch import Arch

_SOURCE = """\
#include <cuda.h>
#include <cmath>
#include <string>
__global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }
extern "C" int smwheel_probe(float *x) { twice<<<1, 32>>>(x); return cuInit(0); }
"""

_GCC_TOO_NEW = re.compile(r"gcc versions later than (\d+) are not supported")
_CLANG_TOO_NEW = re.compile(r"clang version must be less than (\d+)")
_UNKNOWN_ARCH = re.compile(r"unsupported gpu architecture|is not defined for option 'gpu-name'", re.IGNORECASE)
_GLIBC_CONFLICT = re.compile(r'exception specification is incompatible with that of previous function "?(\w+)')
_NO_HEADER = re.compile(r"fatal error: (\S+): No such file")
_NO_LIBRARY = re.compile(r"cannot find -l(\S+?):? ")


class Compiler(Protocol):
    """What the probe needs of a toolchain."""

    @property
    def home(self) -> Path:
        """The toolkit's directory."""

    @property
    def version(self) -> str:
        """The toolkit's full version."""

    @property
    def nvcc(self) -> Path:
        """The compiler driver."""


def probe(toolchain: Compiler, arch: Arch, cxx: Path) -> None:
    """Compile a kernel for `arch` with `cxx` as host compiler, link the driver, and look at the library made.

    Raises:
        ToolchainError: it does not compile, with the cause where it is a known one; or the product holds other GPU
            code than asked for, or does not ask for the driver.
    """
    with tempfile.TemporaryDirectory(prefix="smwheel-probe-") as scratch:
        source, product = Path(scratch) / "probe.cu", Path(scratch) / "probe.so"
        source.write_text(_SOURCE, encoding="utf-8")
        command: list[str | Path] = [toolchain.nvcc, "-ccbin", cxx, "-std=c++17", arch.gencode]
        command += ["-shared", "-Xcompiler", "-fPIC", "-Xlinker", "--as-needed"]
        for folder in ("lib64", "lib64/stubs"):
            command += ["-L", toolchain.home / folder]
        command += ["-o", product, source, "-lcuda"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=scratch)
        if result.returncode or not product.exists():
            raise explain(result.stdout + result.stderr, toolchain, arch, cxx)
        _look(product, arch, toolchain)


def explain(output: str, toolchain: Compiler, arch: Arch, cxx: Path) -> ToolchainError:
    """Return the error that a failed compilation's output amounts to."""
    where = f"CUDA {toolchain.version}"
    if match := _GCC_TOO_NEW.search(output):
        return _too_new(f"{cxx} with {where}", "gcc", "g++", int(match[1]))
    if match := _CLANG_TOO_NEW.search(output):
        return _too_new(f"{cxx} with {where}", "clang", "clang++", int(match[1]) - 1)
    if _UNKNOWN_ARCH.search(output):
        return ToolchainError(
            f"it does not know {arch}",
            where=where,
            cure=f"{arch} needs CUDA {arch.first_cuda} or newer",
        )
    if match := _GLIBC_CONFLICT.search(output):
        return ToolchainError(
            f"its headers and this system's C library both declare {match[1]}, differently",
            where=where,
            cure="this glibc is newer than that CUDA expects: use CUDA 13.0, or build in an older base image",
        )
    if missing := sorted(set(_NO_HEADER.findall(output)) | {f"-l{n}" for n in _NO_LIBRARY.findall(output)}):
        return ToolchainError(
            f"a five-line program does not compile: {', '.join(missing)} not found",
            where=where,
            cure="name a complete toolkit, or leave it away to have CUDA provisioned",
        )
    last = "\n".join(output.strip().splitlines()[-8:]) or "no output"
    return ToolchainError(f"a five-line program does not compile:\n{last}", where=f"{cxx} with {where}")


def _too_new(where: str, cc: str, cxx: str, newest: int) -> ToolchainError:
    return ToolchainError(
        f"the host compiler is too new for this nvcc: {cc} {newest} is its newest",
        where=where,
        cure=f"install {cxx}-{newest} and set CC={cc}-{newest} CXX={cxx}-{newest}",
    )


def _look(product: Path, arch: Arch, toolchain: Compiler) -> None:
    try:
        found = {str(code_arch) for _, code_arch in code_of(product)}
    except MalformedError as error:
        raise ToolchainError(f"the product's GPU code cannot be read: {error.message}", where="probe") from error
    if found != {str(arch)}:
        raise ToolchainError(
            f"asked for {arch}, the product holds {', '.join(sorted(found)) or 'no GPU code'}",
            where=f"CUDA {toolchain.version}",
        )
    if DRIVER not in read_elf(product).needed:
        raise ToolchainError(
            f"a product linked with -lcuda does not ask for {DRIVER}",
            where=str(toolchain.home),
            cure="its lib64/stubs/libcuda.so has no symbols: name a complete toolkit",
        )
