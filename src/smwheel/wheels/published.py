"""What a published wheel holds and asks of torch, written down beside its recipe.

With it a plan can say whether the wheel fits a torch release without fetching hundreds of megabytes. The file is JSON
made by `ci/make-published-facts`; an integration test makes it again from the wheel and compares.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from smwheel.arch import Arch
from smwheel.errors import MalformedError, RecipeError
from smwheel.wheels.elf import ElfFacts
from smwheel.wheels.inspect import inspect
from smwheel.wheels.thin import code_json
from smwheel.wheels.torchsymbols import is_torch_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class PublishedLibrary:
    """One library of the wheel: cubins by architecture, libraries needed, names asked of torch."""

    name: str
    code: Mapping[str, int]
    needed: tuple[str, ...]
    asks: tuple[str, ...]

    @property
    def facts(self) -> ElfFacts:
        """What it asks of torch, as the symbol tables take it."""
        return ElfFacts(machine="", needed=self.needed, undefined=frozenset(self.asks))

    def serves(self, gpu: Arch) -> bool:
        """Return whether it has machine code that loads on a GPU."""
        return any(Arch.parse(code).loads_on(gpu) for code in self.code if " " not in code)


@dataclass(frozen=True)
class Published:
    """A published wheel: its file name, the sha256 that the recipe pins, and its libraries."""

    file: str
    sha256: str
    libraries: tuple[PublishedLibrary, ...]

    def as_text(self) -> str:
        """Return the file's text."""
        return json.dumps(asdict(self), indent=1) + "\n"


def observe(wheel: Path, *, sha256: str) -> Published:
    """Return the facts of a wheel.

    Raises:
        MalformedError: the wheel, or a library in it, is damaged.
    """
    libraries = []
    for library in inspect(str(wheel)).libraries:
        if library.error:
            raise MalformedError(library.error, where=f"{wheel}:{library.name}")
        facts = library.facts or ElfFacts(machine="")
        asks = tuple(sorted(name for name in facts.undefined if is_torch_name(name)))
        libraries.append(PublishedLibrary(library.name, code_json(library.code), facts.needed, asks))
    return Published(wheel.name, sha256, tuple(libraries))


def read(path: Path) -> Published:
    """Read a file of facts.

    Raises:
        RecipeError: it is not there, or is no such file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        libraries = tuple(
            PublishedLibrary(one["name"], one["code"], tuple(one["needed"]), tuple(one["asks"]))
            for one in data["libraries"]
        )
        return Published(data["file"], data["sha256"], libraries)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeError(
            f"holds no facts of a published wheel ({error})", where=str(path), cure="make it: ci/make-published-facts"
        ) from error
