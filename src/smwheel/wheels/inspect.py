"""What is in a wheel, a directory, a library or an installed package: GPU code, and what it needs to be loaded.

A wheel is read as a stream, without unpacking it; see `skeleton.py` for how little of it is looked at. The result as
JSON follows `docs/inspect.schema.json`.
"""

from __future__ import annotations

import email
import importlib.metadata
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement

from smwheel.arch import GPUS, Arch
from smwheel.errors import MalformedError, UsageError
from smwheel.wheels import fatbin, skeleton
from smwheel.wheels.elf import ElfFacts, is_elf, read_elf
from smwheel.wheels.fatbin import Kind
from smwheel.wheels.sonames import cuda_majors, owner
from smwheel.wheels.thin import STREAM_CHUNK, Code, code_json
from smwheel.wheels.wheelfile import Wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from email.message import Message

_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_CPYTHON = re.compile(r"\.cpython-(\d)(\d+)")


@dataclass(frozen=True)
class Library:
    """One shared object; sizes in bytes, `packed` what it takes in the wheel (None outside one).

    `facts` is None for what is no loadable library (an object file, a bare fat binary). `error` says why the
    file could not be read, and `cure` what to do; then nothing else of it is known.
    """

    name: str
    size: int
    packed: int | None = None
    code: Code = field(default_factory=Counter)
    facts: ElfFacts | None = None
    error: str = ""
    cure: str = ""

    @property
    def python(self) -> str:
        """Which Pythons load it as a module, by its name: `abi3`, e.g. `cp310`, or "" for any or none."""
        if ".abi3." in self.name:
            return "abi3"
        match = _CPYTHON.search(self.name)
        return f"cp{match[1]}{match[2]}" if match else ""

    @property
    def glibc_floor(self) -> str:
        """The oldest glibc whose systems have all the versions asked for, of the C++ library too; "" if unknown."""
        try:
            return f"2.{self.facts.policy_minor}" if self.facts else ""
        except MalformedError:
            return ""

    def serves(self, gpu: Arch) -> bool:
        """Return whether it has code that a GPU can run, be it by compiling PTX when the program starts."""
        return any(
            arch.loads_on(gpu) if kind is Kind.CUBIN else kind is Kind.PTX and arch.ptx_runs_on(gpu)
            for kind, arch in self.code
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as the schema's `library`."""
        needed: dict[str, list[str]] = {}
        for soname in self.facts.needed if self.facts else ():
            needed.setdefault(owner(soname), []).append(soname)
        return {
            "name": self.name,
            "size": self.size,
            "packed": self.packed,
            "code": code_json(self.code),
            "machine": self.facts.machine if self.facts else "",
            "soname": self.facts.soname if self.facts else "",
            "needed": needed,
            "cuda_majors": sorted(cuda_majors(self.facts.needed)) if self.facts else [],
            "glibc_floor": self.glibc_floor,
            "glibc": self.facts.version("GLIBC") if self.facts else "",
            "glibcxx": self.facts.version("GLIBCXX") if self.facts else "",
            "rpath": [*self.facts.rpath, *self.facts.runpath] if self.facts else [],
            "python": self.python,
            "error": self.error,
        }


@dataclass(frozen=True)
class Inspection:
    """Everything found; `size` in bytes of the wheel or of all files looked at."""

    path: str
    kind: str
    size: int
    libraries: tuple[Library, ...]
    distribution: str = ""
    version: str = ""
    tags: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    requires_python: str = ""

    @cached_property
    def gpus(self) -> dict[Arch, tuple[str, ...]]:
        """GPUs that some library has code for → the libraries that have code, but none for it."""
        with_code = [library for library in self.libraries if library.code]
        found = {}
        for number in GPUS:
            gpu = Arch(number // 10, number % 10)
            without = tuple(library.name for library in with_code if not library.serves(gpu))
            if len(without) < len(with_code):
                found[gpu] = without
        return found

    @property
    def torch(self) -> str:
        """What is required of torch, e.g. `==2.14.1`; `any` if it is required without a version; "" if not at all."""
        for text in self.requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.name.lower() == "torch":
                return str(requirement.specifier) or "any"
        return ""

    def as_json(self) -> dict[str, Any]:
        """Return it as `docs/inspect.schema.json` says."""
        return {
            "format": 1,
            "path": self.path,
            "kind": self.kind,
            "size": self.size,
            "distribution": self.distribution,
            "version": self.version,
            "tags": list(self.tags),
            "requires_torch": self.torch,
            "requires_python": self.requires_python,
            "libraries": [library.as_json() for library in self.libraries],
            "gpus": [
                {"capability": gpu.capability, "name": GPUS[gpu.number], "without": list(without)}
                for gpu, without in self.gpus.items()
            ],
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        """Say in plain words on which GPUs, with which torch and CUDA it can run."""
        unread = [library for library in self.libraries if library.error]
        if unread:
            counted = f"{len(unread)} of {len(self.libraries)} libraries cannot be read"
            return f"Cannot be told: {counted}. To do: {unread[0].cure}."
        if not self.libraries:
            return "Holds no compiled library."
        if not any(library.code for library in self.libraries):
            return f"Holds no GPU code{self._software()}."
        full = [gpu.capability for gpu, without in self.gpus.items() if not without]
        partly: dict[tuple[str, ...], list[str]] = {}
        for gpu, without in self.gpus.items():
            if without:
                partly.setdefault(tuple(_short(name) for name in without), []).append(gpu.capability)
        parts = [f"runs on GPUs of compute capability {', '.join(full)}"] if full else []
        parts += [f"on {', '.join(gpus)} without {', '.join(names)}" for names, gpus in partly.items()]
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}{self._software()}."

    def _software(self) -> str:
        own = {library.name.rpartition("/")[2] for library in self.libraries}
        needed = {name for library in self.libraries if library.facts for name in library.facts.needed} - own
        majors = sorted(cuda_majors(needed))
        parts = []
        if any(owner(name) == "torch" for name in needed):
            said = {"": "of a version it does not say", "any": "of any version, it says"}.get(self.torch)
            parts.append(f"torch {said or self.torch}")
        if majors:
            parts.append(" and ".join(f"CUDA {major}" for major in majors))
        return f", with {' and '.join(parts)}" if parts else ""


def inspect(target: str, *, python: Path | None = None) -> Inspection:
    """Look into a wheel, a directory, a library, or the package installed under this distribution name.

    `python` is the interpreter, or the virtual environment, that the package is installed in; without it, a name is
    looked up where smwheel itself runs.

    Raises:
        UsageError: there is no such file, directory or package, or nobody knows its files.
        OSError: a file, or a folder of the directory, cannot be read.
        MalformedError: the wheel is damaged. (A damaged library is told in its entry.)

    """
    path = Path(target)
    if python is None and path.is_dir():
        return _inspect_files(target, "directory", sorted(_files(path)), path)
    if python is None and path.is_file():
        if path.suffix == ".whl":
            return _inspect_wheel(path)
        return _inspect_files(target, "file", [path], path.parent)
    if path.suffix == ".whl" or "/" in target:
        raise UsageError("there is no such file or directory", where=target, cure="give an existing path")
    return _inspect_installed(target, python)


def _inspect_wheel(path: Path) -> Inspection:
    libraries = []
    with Wheel(path) as wheel, tempfile.TemporaryDirectory(prefix="smwheel-") as work:
        for name, info in wheel.members.items():
            if not _LIBRARY.search(name):
                continue
            file = Path(work) / "library"
            library = read_library(
                name,
                file,
                lambda name=name, file=file: skeleton.unpack(  # type: ignore[misc]
                    lambda: wheel.stream(name, chunk=STREAM_CHUNK), file, lambda _: True, where=name
                ),
                packed=info.compress_size,
            )
            if library:
                libraries.append(library)
        return Inspection(
            path=str(path),
            kind="wheel",
            size=path.stat().st_size,
            libraries=tuple(libraries),
            tags=tuple(sorted(map(str, wheel.tags))),
            **_metadata(wheel.metadata),
        )


def _inspect_files(target: str, kind: str, files: Iterable[Path], base: Path, **more: Any) -> Inspection:
    found = [(path, read_library(str(path.relative_to(base)), path)) for path in files]
    return Inspection(
        path=target,
        kind=kind,
        size=sum(path.stat().st_size for path, _ in found),
        libraries=tuple(library for _, library in found if library),
        **more,
    )


def _inspect_installed(name: str, python: Path | None) -> Inspection:
    where = _site_packages(python) if python else sys.path
    found = next(iter(importlib.metadata.distributions(name=name, path=where)), None)
    if found is None:
        raise UsageError(
            f"no package {name!r} is installed in {python or 'the environment of smwheel'}",
            cure="give a path, the distribution's exact name, or --python ENV",
        )
    if found.files is None:
        raise UsageError(
            f"the installer of {name} kept no list of its files, so that they are not known",
            where=str(found.locate_file("")),
            cure="give the package's directory, or install it again with pip",
        )
    files = [Path(str(file.locate())) for file in found.files]
    base = Path(str(found.locate_file("")))
    libraries = [path for path in files if _LIBRARY.search(path.name) and path.is_relative_to(base)]
    lost = tuple(
        Library(str(path.relative_to(base)), 0, error="is not there", cure="install the package again")
        for path in libraries
        if not path.is_file()
    )
    metadata = email.message_from_string(found.read_text("METADATA") or "")
    inspection = _inspect_files(
        name, "installed", [path for path in libraries if path.is_file()], base, **_metadata(metadata)
    )
    return replace(inspection, libraries=(*inspection.libraries, *lost))


def _site_packages(python: Path) -> list[str]:
    """Return where packages of an interpreter, or of a virtual environment, are installed."""
    interpreter = python / "bin" / "python" if python.is_dir() else python
    code = "import sysconfig; print(sysconfig.get_path('purelib')); print(sysconfig.get_path('platlib'))"
    try:
        run = subprocess.run([interpreter, "-I", "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(
            f"is no Python that runs ({error})", where=str(python), cure="give an interpreter or an environment"
        ) from error
    return sorted(set(run.stdout.split("\n")) - {""})


def _files(directory: Path) -> Iterator[Path]:
    """Yield the libraries below a directory; a folder that cannot be listed may hold one, so it is an OSError."""
    for folder, _, names in os.walk(directory, onerror=_raise):
        for name in names:
            path = Path(folder) / name
            if _LIBRARY.search(name) and _is_regular(path):
                yield path


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False  # a link that leads nowhere


def _raise(error: OSError) -> None:
    raise error


def read_library(
    name: str, path: Path, unpack: Callable[[], None] | None = None, *, packed: int | None = None
) -> Library | None:
    """Return what a library holds; None if the file is none (a linker script, a text file of that name)."""
    try:
        if unpack is not None:
            unpack()
        with fatbin.mapped(path) as buffer:
            head, size = bytes(buffer[:18]), len(buffer)
            if not is_elf(head) and head[:8] != fatbin.REGION_MAGIC:
                return None
            regions = fatbin.read_regions(buffer, where=name)
        shared = is_elf(head) and head[16:18] == b"\3\0"
        return Library(
            name=name,
            size=size,
            packed=packed,
            code=fatbin.count([entry for region in regions for entry in region.entries]),
            facts=read_elf(path, where=name) if shared else None,
        )
    except MalformedError as error:
        size = path.stat().st_size if path.exists() else 0
        return Library(name=name, size=size, packed=packed, error=f"{error.where}: {error.message}", cure=error.cure)


def _metadata(message: Message) -> dict[str, Any]:
    return {
        "distribution": message["Name"] or "",
        "version": message["Version"] or "",
        "requires": tuple(map(str, message.get_all("Requires-Dist") or ())),
        "requires_python": message["Requires-Python"] or "",
    }


def _short(name: str) -> str:
    """Return a library's file name without directories and suffixes: how sentences call it."""
    return name.rpartition("/")[2].partition(".")[0]
