"""Strategy `auto`: whether a published wheel can be cut down for a stack, or must be compiled, and why.

Decided from what is pinned beside the recipe (`wheels/published.py`) and the tables of torch's names, so nothing has
to be fetched. That a wheel holds the right machine code does not mean that it works: it must also find in the stack's
torch every C++ name that it asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.version import Version

from smwheel.errors import UsageError
from smwheel.wheels import published, torchsymbols
from smwheel.wheels.sonames import cuda_majors

if TYPE_CHECKING:
    from smwheel.arch import Arch
    from smwheel.recipe import Recipe, RecipeVersion, Strategy
    from smwheel.wheels.published import PublishedLibrary
    from smwheel.wheels.torchsymbols import TorchSymbols

SHOWN = 3
"""Names that a reason lists."""


@dataclass(frozen=True)
class Decision:
    """The strategy, and the reason as people read it."""

    strategy: Strategy
    why: str


@dataclass(frozen=True)
class Ground:
    """What a wheel will run on: torch and CUDA, and the names that this very torch brings, if they were read."""

    torch: str
    cuda: Version
    symbols: TorchSymbols | None = None


def decide(recipe: Recipe, version: str, ground: Ground, arch: Arch) -> Decision:
    """Return the first of the recipe's strategies that can work on this ground.

    Raises:
        UsageError: none can; says why for each.
        RecipeError: the recorded facts of the published wheel cannot be read.
    """
    data = recipe.version(version)
    against: list[str] = []
    for strategy in data.strategies:
        if strategy == "compile":
            return Decision("compile", "; ".join(against) or "the recipe compiles it from source")
        fits, why = _thin(recipe, data, ground, arch)
        if fits:
            return Decision("thin", why)
        against.append(why)
    raise UsageError(
        f"{recipe.name} {version} cannot be made for torch {ground.torch} with CUDA {ground.cuda}: "
        f"{'; '.join(against)}; and this recipe cannot compile it",
        where="--strategy auto",
        cure=_other_version(recipe, ground) or f"use the torch that it was built for: {data.torch}",
    )


def _thin(recipe: Recipe, data: RecipeVersion, ground: Ground, arch: Arch) -> tuple[bool, str]:
    """Return whether the published wheel works when cut down, and why."""
    if data.thin is None or not data.thin.published:
        same = not data.torch or _minor(data.torch) == _minor(ground.torch)
        return same, f"the published wheel{_built_for(data)}: what it asks of torch is not recorded"
    libraries = _kept(published.read(recipe.directory / data.thin.published).libraries, data, arch)
    if not any(library.serves(arch) for library in libraries):
        return False, f"the published wheel holds no code for {arch.sm}"
    majors = set().union(*(cuda_majors(library.needed) for library in libraries))
    if majors - {ground.cuda.major}:
        needed = ", ".join(map(str, sorted(majors)))
        return False, f"the published wheel holds {arch.sm}, but it needs CUDA {needed}, not {ground.cuda.major}"
    fits, why = _with_torch(libraries, data, ground)
    return fits, f"the published wheel holds {arch.sm}, {why}"


def _with_torch(libraries: tuple[PublishedLibrary, ...], data: RecipeVersion, ground: Ground) -> tuple[bool, str]:
    torch = f"torch {ground.torch}"
    symbols = ground.symbols or torchsymbols.load(ground.torch, str(ground.cuda.major))
    if symbols is None:
        if data.torch and _minor(data.torch) == _minor(ground.torch):
            return True, f"and was built for torch {data.torch}"
        return False, (
            f"but nothing here knows the names that {torch} has{_built_for(data)} "
            f"(to know them: ci/make-torch-symbols {ground.torch})"
        )
    missing = sorted({name for library in libraries for name in symbols.missing(library.facts)})
    if not missing:
        return True, f"and {torch} has every name that it asks for"
    shown = ", ".join(dict.fromkeys(torchsymbols.readable(name) for name in missing[:SHOWN]))
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return False, f"but {torch} lacks {len(missing)} names that it asks for ({shown}{more}){_built_for(data)}"


def _built_for(data: RecipeVersion) -> str:
    return f": it was built for torch {data.torch}" if data.torch else ""


def _kept(libraries: tuple[PublishedLibrary, ...], data: RecipeVersion, arch: Arch) -> tuple[PublishedLibrary, ...]:
    """Return the libraries that the cut wheel holds: not those left out, nor those replaced by stubs."""
    assert data.thin is not None  # noqa: S101 - the caller looked
    left_out = list(data.thin.drop)
    stubbed = [stub.replaces for stub in data.thin.stubs]
    return tuple(
        library
        for library in libraries
        if not any(fnmatchcase(library.name, pattern) for pattern in left_out)
        and (library.serves(arch) or not any(fnmatchcase(library.name, pattern) for pattern in stubbed))
    )


def _other_version(recipe: Recipe, ground: Ground) -> str:
    """Say which version of the package was built for this torch."""
    for version, data in recipe.versions.items():
        if data.torch and _minor(data.torch) == _minor(ground.torch):
            return f"take {recipe.name} {version}, which was built for torch {data.torch}"
    return ""


def _minor(torch: str) -> tuple[int, ...]:
    return Version(torch).release[:2]
