"""Repair: graft what a wheel may carry, and give it the tag that its symbols earn.

Grafting is auditwheel's work, called as a command, and only done where there is something to graft: a library that
is needed, that neither the system (by the manylinux policies) nor torch, CUDA or the driver brings, and that is found
on this machine. Without the excludes below auditwheel would copy gigabytes of torch and CUDA, or the driver itself,
into the wheel. auditwheel's own verdict on the platform is not used: it counts the libraries of the machine that it
runs on. The tag is computed from the wheel's own files, and written in every place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from smwheel.errors import BuildError, SystemNeedError
from smwheel.wheels.elf import ElfFacts, is_elf, policy_floor, read_elf
from smwheel.wheels.sonames import owner
from smwheel.wheels.wheelfile import Wheel, rewrite_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Brought by torch, by NVIDIA's packages or by the driver; a pattern is one of auditwheel's --exclude.
EXCLUDES = (
    *("libtorch*", "libc10*", "libshm.so", "libcaffe2*"),
    *("libcuda.so.*", "libnvidia-ml.so.*"),
    *("libcudart.so.*", "libnvrtc.so.*", "libnvrtc-builtins.so.*", "libnvJitLink.so.*", "libcublas.so.*"),
    *("libcublasLt.so.*", "libcufft.so.*", "libcurand.so.*", "libcusparse.so.*", "libcusparseLt.so.*"),
    *("libcusolver.so.*", "libcufile.so.*", "libcupti.so.*", "libcudnn*", "libnccl.so.*", "libnvshmem_host.so.*"),
)


def repair_wheel(source: Path, destination: Path, *, leave: Iterable[str] = (), search: Iterable[Path] = ()) -> Path:
    """Write a copy of a wheel, grafted and honestly tagged, into the directory `destination`; return its path.

    `leave` are more patterns of libraries that are not grafted (those that the recipe declares); `search` are
    directories where auditwheel finds what it grafts, before the system's. A wheel without machine code keeps its
    tags.

    Raises:
        SystemNeedError: auditwheel or patchelf is not there.
        BuildError: auditwheel cannot graft; its last line is told.
        MalformedError: the wheel or a file in it is damaged.

    """
    leave = tuple(leave)
    with tempfile.TemporaryDirectory(dir=_made(destination), prefix=".repair-") as work:
        facts = read_facts(source, Path(work))
        if grafted := to_graft(facts, leave):
            source = _graft(source, Path(work) / "grafted", (*EXCLUDES, *leave), search, grafted)
            facts = read_facts(source, Path(work))
        if not facts:
            return rewrite_wheel(source, destination)
        platform = policy_floor(facts.values())
        with Wheel(source) as wheel:
            tags = sorted({f"{tag.interpreter}-{tag.abi}-{platform}" for tag in wheel.tags})
        return rewrite_wheel(source, destination, tags=tags)


def to_graft(facts: dict[str, ElfFacts], leave: Iterable[str]) -> tuple[str, ...]:
    """Return the libraries that the files need and that nobody else brings, sorted."""
    patterns = tuple(leave)
    own = {name.rpartition("/")[2] for name in facts} | {one.soname for one in facts.values()}
    needed = {soname for one in facts.values() for soname in one.needed}
    return tuple(
        sorted(
            name
            for name in needed - own
            if owner(name) == "other" and not any(fnmatchcase(name, one) for one in patterns)
        )
    )


def read_facts(path: Path, work: Path) -> dict[str, ElfFacts]:
    """Return the facts of every shared object in a wheel, by member; `work` is for passing files."""
    return dict(_read_facts(path, work))


def _read_facts(path: Path, work: Path) -> Iterator[tuple[str, ElfFacts]]:
    laid = work / "member"
    with Wheel(path) as wheel:
        for name in wheel.members:
            pieces = wheel.stream(name)
            first = next(pieces, b"")
            if not is_elf(first):
                continue
            with laid.open("wb") as file:
                file.write(first)
                file.writelines(pieces)
            yield name, read_elf(laid, where=f"{path.name}:{name}")


def _graft(
    source: Path, output: Path, excludes: Iterable[str], search: Iterable[Path], grafted: tuple[str, ...]
) -> Path:
    output.mkdir()
    command = [_tool("auditwheel"), "repair", "--wheel-dir", str(output), "--only-plat", "--plat", "auto"]
    command += [argument for pattern in excludes for argument in ("--exclude", pattern)]
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(_tool('patchelf')).parent}{os.pathsep}{environment.get('PATH', '')}"
    paths = [*map(str, search), *filter(None, [environment.get("LD_LIBRARY_PATH", "")])]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    result = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False, env=environment)
    made = list(output.glob("*.whl"))
    if result.returncode or len(made) != 1:
        lines = (result.stderr or result.stdout).strip().splitlines() or [f"exit status {result.returncode}"]
        raise BuildError(
            f"auditwheel cannot graft {', '.join(grafted)}: {lines[-1]}",
            where=source.name,
            cure="install the library on this machine, declare it in the recipe as a system need, or build without it",
        )
    return made[0]


def _tool(name: str) -> str:
    """Return a command: beside this interpreter, else on PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise SystemNeedError(f"the command {name} is not there", where=name, cure=f"pip install {name}")
    return found


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory
