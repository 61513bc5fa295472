"""What the registry's CUDA wheels lack before anything links with them.

They hold what a Python process needs at run time: libraries with their version in the name, in `lib`. Linking wants
`lib64` (the name in every build script), names without version, and something to link the driver against where no
driver is installed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from smwheel.errors import ToolchainError
from smwheel.wheels.elf import read_elf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smwheel.system import HostCompiler

DRIVER = "libcuda.so.1"
_FEWEST_DRIVER_SYMBOLS = 400
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_RENAMED = re.compile(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(?:__CUDA_API_(PTDS|PTSZ)\(\s*)?(cu[A-Z]\w*)", re.MULTILINE)
_STREAM_SUFFIX = {"PTDS": "_ptds", "PTSZ": "_ptsz"}


def repair(tree: Path, compiler: HostCompiler) -> None:
    """Make a tree of wheels one that links: `lib64`, names without version, the driver's stub.

    Raises:
        ToolchainError: what was made does not do what it must.
    """
    link_lib64(tree)
    link_unversioned(tree / "lib")
    make_driver_stub(tree, compiler)


def link_lib64(tree: Path) -> None:
    """Make `lib64` a link to `lib`."""
    if not (tree / "lib64").exists():
        (tree / "lib64").symlink_to("lib")


def link_unversioned(folder: Path) -> None:
    """Give every `libX.so.N` the name `libX.so` that `-lX` looks for."""
    for library in sorted(folder.glob("lib*.so.*")):
        plain = folder / (library.name.partition(".so.")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(library.name)


def make_driver_stub(tree: Path, compiler: HostCompiler) -> None:
    """Make `lib/stubs/libcuda.so`: the driver's name and functions, none of which does anything.

    It must define the functions: a linker that is told `--as-needed` (Debian's and Ubuntu's compilers tell it so)
    leaves away a library that answers no symbol, and then the product does not ask for the driver.

    Raises:
        ToolchainError: cuda.h is not as expected, or a product linked with the stub does not ask for the driver.
    """
    symbols = driver_symbols((tree / "include/cuda.h").read_text(encoding="utf-8", errors="replace"))
    if len(symbols) < _FEWEST_DRIVER_SYMBOLS:
        raise ToolchainError(
            f"only {len(symbols)} driver functions found, {_FEWEST_DRIVER_SYMBOLS} or more expected",
            where="include/cuda.h",
            cure="report it with the CUDA version: the header is written in a new way",
        )
    stubs = tree / "lib/stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "stub.c"
        source.write_text("".join(f"void {name}(void) {{}}\n" for name in symbols), encoding="utf-8")
        _compile(compiler, source, stubs / "libcuda.so", "-nostdlib", "-Wl,--build-id=none", f"-Wl,-soname,{DRIVER}")
        user, product = Path(scratch) / "user.c", Path(scratch) / "user.so"
        user.write_text("int cuInit(unsigned);\nint f(void) { return cuInit(0); }\n", encoding="utf-8")
        _compile(compiler, user, product, "-Wl,--as-needed", "-L", str(stubs), "-lcuda", "-Wl,-z,defs", "-lc")
        if DRIVER not in read_elf(product).needed:
            raise ToolchainError(f"a product linked with the driver's stub does not ask for {DRIVER}", where=str(stubs))


def driver_symbols(header: str) -> list[str]:
    """Return the functions that the driver's library has, from the text of cuda.h.

    A name may be declared and then renamed by a macro (`#define cuMemAlloc cuMemAlloc_v2`); the library has both,
    and a third for per-thread default streams where the macro says so.
    """
    names = set(_DECLARED.findall(header))
    for stream, name in _RENAMED.findall(header):
        names.add(name)
        if stream:
            names.add(name + _STREAM_SUFFIX[stream])
    return sorted(names)


def _compile(compiler: HostCompiler, source: Path, output: Path, *options: str) -> None:
    command: Sequence[str | Path] = [compiler.cc, "-shared", "-fPIC", "-w", "-o", output, source, *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ToolchainError(
            f"the driver's stub cannot be made: {result.stderr.strip()[-400:]}",
            where=str(compiler.cc),
            cure="see that this compiler makes shared libraries, or set CC to one that does",
        )
