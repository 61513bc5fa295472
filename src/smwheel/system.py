"""What only the system can give: a C++ compiler, a C library, disk space; and the one command that brings it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smwheel.errors import SystemNeedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smwheel.recipe import SystemNeed


@dataclass(frozen=True)
class HostCompiler:
    """The C and C++ compiler of this machine, e.g. gcc 12.2.0 for x86_64-linux-gnu."""

    cc: Path
    cxx: Path
    version: str
    target: str

    def as_json(self) -> dict[str, str]:
        """Return the compiler as a plan prints it."""
        return {"cc": str(self.cc), "cxx": str(self.cxx), "version": self.version, "target": self.target}


def require_compiler() -> HostCompiler:
    """Return the compilers that $CC and $CXX name, else gcc and g++.

    Raises:
        SystemNeedError: one is not there, or does not compile.
    """
    cc, cxx = _program("CC", "gcc"), _program("CXX", "g++")
    _require_working(cxx)
    return HostCompiler(cc, cxx, _output(cxx, "-dumpfullversion", "-dumpversion"), _output(cxx, "-dumpmachine"))


def require_needs(needs: Iterable[SystemNeed], variables: Mapping[str, str]) -> HostCompiler:
    """See that this machine has a compiler and what a recipe needs to build; `variables` may say where it looks.

    Raises:
        SystemNeedError: something is missing; names it and the packages that bring it.
    """
    compiler = require_compiler()
    for need in needs:
        if need.stage == "build" and not _has(need, compiler, variables):
            what = need.header or need.library or need.command
            raise SystemNeedError(
                f"{need.name} is needed to build, and {what} is not found",
                where="system",
                cure=install_command(apt=need.apt, dnf=need.dnf),
            )
    return compiler


def _has(need: SystemNeed, compiler: HostCompiler, variables: Mapping[str, str]) -> bool:
    if need.command:
        return shutil.which(need.command) is not None
    if need.header:
        command = [str(compiler.cxx), "-x", "c++", "-fsyntax-only", "-"]
        text = f"#include <{need.header}>\n"
    else:
        command = [str(compiler.cc), "-x", "c", "-", "-o", os.devnull, f"-l:{need.library}"]
        text = "int main(void) { return 0; }\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=os.environ | variables)
    return done.returncode == 0


def require_disk(path: Path, needed: int) -> None:
    """See that `needed` bytes are free where `path` lies (or will lie).

    Raises:
        SystemNeedError: they are not; both figures are named.
    """
    folder = path.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SystemNeedError(
            f"{needed / 1e9:.1f} GB of disk are needed, {free / 1e9:.1f} GB are free",
            where=str(folder),
            cure="free space there, or set SMWHEEL_CACHE to a directory on a larger disk",
        )


def glibc_version() -> str:
    """Return the version of the C library, e.g. `2.36`.

    Raises:
        SystemNeedError: this machine has another C library than glibc.
    """
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    if name != "glibc" or not version:
        raise SystemNeedError(
            "the C library is not glibc, which CUDA's compilers need",
            where="system",
            cure="build on a distribution with glibc, e.g. Debian 12",
        )
    return version


def install_command(*, apt: str, dnf: str) -> str:
    """Return the command that brings packages here: apt-get's, or dnf's where there is no apt-get."""
    if shutil.which("apt-get") or not shutil.which("dnf"):
        return f"apt-get install {apt}"
    return f"dnf install {dnf}"


def _program(variable: str, default: str) -> Path:
    name = os.environ.get(variable) or default
    found = shutil.which(name)
    if found is None:
        raise _no_compiler(f"there is no {name}" + (f" (${variable} names it)" if name != default else ""))
    return Path(found)


def _require_working(cxx: Path) -> None:
    """Compile one line with the C++ library's headers: a bare driver or a C-only installation fails here."""
    result = subprocess.run(
        [cxx, "-x", "c++", "-fsyntax-only", "-"],
        input="#include <vector>\nstd::vector<int> v;\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise _no_compiler(f"it does not compile C++: {_last_line(result.stderr)}", where=str(cxx))


def _output(program: Path, *arguments: str) -> str:
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        raise _no_compiler(f"{' '.join(arguments)} failed: {_last_line(result.stderr)}", where=str(program))
    return result.stdout.strip()


def _no_compiler(message: str, *, where: str = "C++ compiler") -> SystemNeedError:
    return SystemNeedError(message, where=where, cure=install_command(apt="gcc g++", dnf="gcc gcc-c++"))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]
