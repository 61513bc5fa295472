"""Where the dynamic loader would find a library that a kernel needs, once torch is imported."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from smwheel.errors import MalformedError
from smwheel.wheels.elf import ElfFacts, read_elf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from smwheel.doctor.environment import Environment
    from smwheel.doctor.knowledge import Knowledge
    from smwheel.doctor.machine import Machine

# What `import torch` loads first; the rest follows from what these need.
_ROOTS = ("libtorch_global_deps.so", "libtorch_python.so", "libtorch.so")


class Loading:
    """The loader's view of one environment on one machine.

    A library that is loaded already is found by its name, whatever the paths say: that is how kernels without an
    RPATH find torch's libraries and those of CUDA that torch itself needs.
    """

    def __init__(self, machine: Machine, environment: Environment, knowledge: Knowledge) -> None:
        self._machine, self._environment, self._knowledge = machine, environment, knowledge

    @cached_property
    def loaded(self) -> dict[str, Path]:
        """Libraries that are in the process once torch and other importers are, by name."""
        found: dict[str, Path] = {}
        torch = self._environment.torch
        left = [torch.directory / "lib" / name for name in _ROOTS] if torch else []
        left += self._preloaded()
        rpath: list[Path] = []
        while left:
            path = left.pop()
            if path.name in found or not path.is_file():
                continue
            found[path.name] = path
            facts = _facts(path)
            # A DT_RPATH serves everything that is loaded from there on, too.
            rpath += [place for place in _own_path(path, facts) if place not in rpath]
            for soname in facts.needed:
                place = next((one / soname for one in rpath if (one / soname).is_file()), None)
                if place and soname not in found:
                    left.append(place)
        return found

    def _preloaded(self) -> Iterator[Path]:
        for one in self._knowledge.preloads:
            distribution = self._environment.distributions.get(one.distribution)
            for directory in one.directories if distribution else []:
                assert distribution is not None  # noqa: S101 - for the type checker: the loop is empty without it
                yield from sorted((distribution.site / directory).glob("*.so"))

    def find(self, soname: str, path: Path | None, facts: ElfFacts) -> Path | None:
        """Return the file that would be loaded for a name that the library at `path` needs."""
        if soname in self.loaded:
            return self.loaded[soname]
        own = [place / soname for place in _own_path(path, facts)] if path else []
        beside = [place / soname for place in self._machine.library_path]
        return next((one for one in [*own, *beside] if one.is_file()), None) or self._machine.libraries.get(soname)

    def unreachable(self, soname: str) -> Path | None:
        """Return a file of this name that lies in the environment, where the loader does not look for it."""
        for site in self._environment.sites:
            for path in site.glob(f"nvidia/*/lib/{soname}"):
                return path
        return None


def _facts(path: Path) -> ElfFacts:
    try:
        return read_elf(path, symbols=False)
    except (MalformedError, OSError):
        return ElfFacts(machine="")


def _own_path(path: Path, facts: ElfFacts) -> list[Path]:
    """Return the directories of a library's RPATH and RUNPATH."""
    from_file = [*facts.rpath, *facts.runpath]
    origin = str(path.parent)
    return [
        path.parent.joinpath(one.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)).resolve() for one in from_file
    ]
