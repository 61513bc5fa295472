"""A stack read from a Python environment: `--stack from:ENV`; and which of its packages need nothing done.

The environment is only looked at, as `smwheel doctor` does: nothing of it is imported, and nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from packaging.version import Version

from smwheel.doctor import environment as environments
from smwheel.doctor import examine, knowledge, machine
from smwheel.doctor.case import listed
from smwheel.doctor.knowledge import KnownPackage, matches, recipe_of
from smwheel.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from packaging.requirements import Requirement

    from smwheel.arch import Arch
    from smwheel.doctor.environment import Environment, Torch
    from smwheel.doctor.report import Report
    from smwheel.recipe import Recipe
    from smwheel.wheels.torchsymbols import TorchSymbols

# Findings that another build of the package cures. Others, e.g. a missing system library, a new wheel would have too.
CURED_BY_A_BUILD = frozenset(
    {
        *("D203", "D204", "D205", "D206", "D208", "D209", "D301", "D302", "D303", "D304"),
        *("D401", "D402", "D501", "D502", "D601", "D602"),
    }
)


@dataclass(frozen=True)
class Versions:
    """What an environment says: `recipes` maps recipes to versions, `notes` say what was not taken as it is."""

    torch: str
    cuda: str
    python: str
    recipes: dict[str, str]
    notes: tuple[str, ...]


@cache
def read(target: Path) -> Environment:
    """Return the environment, read once.

    Raises:
        UsageError: it cannot be read.
    """
    found = environments.read(target)
    if found.problem:
        raise UsageError(found.problem, where=f"--stack from:{target}", cure="give the directory of an environment")
    return found


def versions(target: Path) -> Versions:
    """Return the stack's values.

    Raises:
        UsageError: it cannot be read, has no torch with CUDA, or nothing that a recipe is known for.
    """
    environment = read(target)
    torch = _torch(environment, target)
    known = knowledge.load()
    recipes: dict[str, str] = {}
    notes: list[str] = []
    for name in dict.fromkeys(package.recipe for package in known.packages):
        version, note = _version(name, [one for one in known.packages if one.recipe == name], environment, torch)
        if version:
            recipes[name] = version
        if note:
            notes.append(note)
    if not recipes:
        raise UsageError(
            "holds nothing that wheels could be made for" + "".join(f"; {note}" for note in notes),
            where=f"--stack from:{target}",
            cure="install the server or the kernel packages there first, or name a stack (smwheel recipes)",
        )
    python = ".".join(map(str, environment.version or (3, 10)))
    return Versions(torch.version, torch.cuda, f"=={python}.*", recipes, tuple(notes))


def symbols(target: Path) -> TorchSymbols:
    """Return the names that the environment's torch brings."""
    return _torch(read(target), target).symbols


def already_fine(target: Path, recipe: str, version: str, gpu: Arch) -> str:
    """Return why nothing must be made: what is installed of this version runs on that GPU; empty if it does not."""
    report = _examined(target, gpu)
    packages = [one for one in report.case.installed if one.known and one.known.recipe == recipe and one.libraries]
    names = {one.name for one in packages}
    wrong = [one for one in report.findings if one.code in CURED_BY_A_BUILD and one.about in names]
    if wrong or not packages or any(environments.public(one.version) != version for one in packages):
        return ""
    able = [one for one in packages if any(library.serves(gpu) for library in one.opened(gpu))]
    if not able:
        return ""
    code = listed({arch for arch in able[0].cubins() if arch.loads_on(gpu)}) or "PTX for it"
    torch = report.case.environment.torch
    return f"{able[0].title} is installed, holds {code}, and fits torch {torch.version if torch else ''}"


@cache
def _examined(target: Path, gpu: Arch) -> Report:
    return examine(machine.look(), read(target), asked=gpu)


def _torch(environment: Environment, target: Path) -> Torch:
    torch = environment.torch
    if torch is None or not torch.cuda:
        raise UsageError(
            "has no torch" if torch is None else f"its torch {torch.version} is the build without CUDA",
            where=f"--stack from:{target}",
            cure=f"install torch with CUDA there ({environment.pip} install torch), or name a stack (smwheel recipes)",
        )
    return torch


def _version(name: str, packages: list[KnownPackage], environment: Environment, torch: Torch) -> tuple[str, str]:
    """Return the version of a recipe to make for an environment, and what must be said about the choice."""
    recipe = recipe_of(name)
    pinned, installed = _pinned(packages, environment), _installed(packages, environment)
    for wanted in (pinned, installed):
        if wanted and wanted not in recipe.versions:
            return "", f"{name} {wanted} is wanted there, and the recipe knows {', '.join(recipe.versions)}"
    if pinned or not installed:
        return pinned or _by_server(name, recipe, environment), ""
    fitting = [
        version for version, data in recipe.versions.items() if data.torch and _same_minor(data.torch, torch.version)
    ]
    if fitting and installed not in fitting:
        return fitting[0], f"{name} {fitting[0]} instead of {installed}: it is the one made for torch {torch.version}"
    return installed, ""


def _same_minor(one: str, other: str) -> bool:
    return Version(one).release[:2] == Version(other).release[:2]


def _installed(packages: list[KnownPackage], environment: Environment) -> str:
    found = (
        one.public
        for package in packages
        for one in environment.distributions.values()
        if matches(one.name, package.distributions)
    )
    return next(found, "")


def _pinned(packages: list[KnownPackage], environment: Environment) -> str:
    """Return the version that an installed server requires exactly."""
    for requirement in _of_servers(environment):
        if any(matches(requirement.name, package.distributions) for package in packages):
            for specifier in requirement.specifier:
                if specifier.operator == "==" and "*" not in specifier.version:
                    return str(Version(specifier.version))
    return ""


def _of_servers(environment: Environment) -> list[Requirement]:
    servers = (environment.distributions.get(one.distribution) for one in knowledge.load().servers)
    return [one for server in servers if server for one in server.requirements(environment.version)]


def _by_server(name: str, recipe: Recipe, environment: Environment) -> str:
    """Return the version of an installed server, where the recipe makes what that server compiles itself."""
    for server in knowledge.load().servers:
        distribution = environment.distributions.get(server.distribution)
        if server.recipe == name and distribution and distribution.public in recipe.versions:
            return distribution.public
    return ""
