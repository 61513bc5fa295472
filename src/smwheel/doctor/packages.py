"""Packages of kernels: installed ones and wheels, with their libraries and what the recipe knows of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from smwheel.doctor.environment import public
from smwheel.doctor.knowledge import KnownPackage, data_for
from smwheel.errors import MalformedError
from smwheel.wheels import fatbin
from smwheel.wheels.elf import is_elf
from smwheel.wheels.fatbin import Kind
from smwheel.wheels.inspect import Library, inspect, read_library
from smwheel.wheels.torchsymbols import is_torch_name

if TYPE_CHECKING:
    from pathlib import Path

    from smwheel.arch import Arch
    from smwheel.doctor.environment import Distribution, Environment
    from smwheel.doctor.knowledge import Knowledge
    from smwheel.recipe import RecipeVersion

MAX_LIBRARIES = 24
"""Libraries of one package that are read whole; of the others only the GPU code."""

_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_OURS = re.compile(r"\.p[0-9a-f]{8}$")


@dataclass(frozen=True)
class Package:
    """A package of kernels. `site` is where its files lie (None: in the wheel `wheel`)."""

    name: str
    version: str
    libraries: tuple[Library, ...]
    known: KnownPackage | None = None
    site: Path | None = None
    wheel: Path | None = None
    distribution: Distribution | None = None
    requires: tuple[Requirement, ...] = field(default=())

    @property
    def title(self) -> str:
        """Name and version, as printed."""
        return f"{self.name} {self.version}"

    @property
    def public(self) -> str:
        """The version without its local part."""
        return public(self.version)

    @property
    def ours(self) -> bool:
        """Whether its version carries the label of a wheel made by smwheel."""
        return is_ours(self.version)

    @cached_property
    def data(self) -> RecipeVersion | None:
        """What the recipe says of its version, or of the nearest one before."""
        return data_for(self.known, self.version) if self.known else None

    @cached_property
    def choices(self) -> tuple[Library, ...]:
        """The libraries that the package's loader chooses among by GPU, wherever they lie."""
        rule = self.data.expect.loader if self.data else None
        if rule is None:
            return ()
        return tuple(one for one in self.libraries if fnmatchcase(one.name.rpartition("/")[2], rule.pattern))

    def directory(self, gpu: Arch | None) -> str:
        """Return the directory that the loader opens on a GPU (None: without one)."""
        assert self.data is not None and self.data.expect.loader is not None  # noqa: S101, PT018 - there are choices
        directories = self.data.expect.loader.directories
        return directories.get(str(gpu.number) if gpu else "*", directories.get("*", ""))

    def opened(self, gpu: Arch | None) -> tuple[Library, ...]:
        """Return the libraries that importing it opens on a GPU: the loader's choice, or all."""
        if not self.choices:
            return self.libraries
        within = self.directory(gpu)
        chosen = tuple(one for one in self.choices if one.name.rpartition("/")[0] == within)
        # Without a file there, loaders fall back to the package's own directory.
        return chosen or tuple(one for one in self.choices if one.name.rpartition("/")[0] == within.rpartition("/")[0])

    def cubins(self) -> set[Arch]:
        """Return the architectures of the machine code of what its import may open."""
        return set().union(*(cubins(one) for one in self.choices or self.libraries))


def cubins(library: Library) -> set[Arch]:
    """Return the architectures of a library's machine code."""
    return {arch for kind, arch in library.code if kind is Kind.CUBIN}


def is_ours(version: str) -> bool:
    """Return whether a version carries the label of a wheel made by smwheel."""
    return _OURS.search(version) is not None


def installed(environment: Environment, knowledge: Knowledge) -> tuple[Package, ...]:
    """Return the environment's packages of kernels: known ones, and others with GPU code or that use torch's C++."""
    found = []
    for distribution in environment.distributions.values():
        known = knowledge.package(distribution.name)
        if knowledge.is_ground(distribution.name) or (known and known.pure):
            continue
        libraries = _libraries(distribution, known=known is not None)
        if known or libraries:
            found.append(
                Package(
                    name=distribution.name,
                    version=distribution.version,
                    libraries=libraries,
                    known=known,
                    site=distribution.editable or distribution.site,
                    distribution=distribution,
                    requires=tuple(distribution.requirements(environment.version)),
                )
            )
    return tuple(sorted(found, key=lambda one: (one.known is None, one.name)))


def of_wheel(path: Path, knowledge: Knowledge) -> Package:
    """Return the package of a wheel that is not installed.

    Raises:
        MalformedError: it is damaged.
    """
    found = inspect(str(path))
    name = canonicalize_name(found.distribution)
    return Package(
        name=name,
        version=found.version,
        libraries=found.libraries,
        known=knowledge.package(name),
        wheel=path,
        requires=tuple(_parsed(found.requires)),
    )


def _parsed(texts: tuple[str, ...]) -> list[Requirement]:
    found = []
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        requirement.name = canonicalize_name(requirement.name)
        if requirement.marker is None or "extra" not in str(requirement.marker):
            found.append(requirement)
    return found


def _libraries(distribution: Distribution, *, known: bool) -> tuple[Library, ...]:
    """Return a distribution's libraries; of one that is not known, those with GPU code or names of torch."""
    tree = distribution.editable
    if tree is not None and known:
        paths = [(str(path.relative_to(tree)), path) for path in sorted(tree.rglob("*.so")) if path.is_file()]
    else:
        rows = [row.path for row in distribution.record if _LIBRARY.search(row.path)]
        paths = [(name, distribution.site / name) for name in sorted(rows) if (distribution.site / name).is_file()]
    found: list[Library] = []
    for name, path in paths:
        if not known and not distribution.requires_torch and not _has_gpu_code(path):
            continue
        library = read_library(name, path) if len(found) < MAX_LIBRARIES else _with_code_only(name, path)
        if library and (known or library.code or library.error or _asks_torch(library)):
            found.append(library)
    return tuple(found)


def _asks_torch(library: Library) -> bool:
    return library.facts is not None and any(map(is_torch_name, library.facts.undefined))


def _has_gpu_code(path: Path) -> bool:
    try:
        with fatbin.mapped(path) as buffer:
            return is_elf(bytes(buffer[:4])) and bool(fatbin.find_sections(buffer, where=str(path)))
    except (MalformedError, OSError):
        return False  # whatever it is, it is no kernel library that is known


def _with_code_only(name: str, path: Path) -> Library | None:
    try:
        return Library(name, path.stat().st_size, code=fatbin.code_of(path))
    except MalformedError as error:
        return Library(name, path.stat().st_size, error=f"{error.where}: {error.message}")
