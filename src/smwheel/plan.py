"""Plans: recipe × architecture × stack, fully resolved, with a fingerprint.

`resolve` needs nothing but the files of recipes and stacks. What only the sources can tell (modules, units) is
added by the pipeline, which makes a `Plan` of a `Resolution`.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from smwheel import from_environment
from smwheel.arch import Arch
from smwheel.errors import ArchError, UsageError
from smwheel.recipe import Recipe, RecipeVersion, Strategy, Target
from smwheel.stack import Stack
from smwheel.strategy import Decision, Ground, decide

FORMAT = 1
"""Version of the plan's JSON; part of the fingerprint."""

CUSTOM_PROFILE = "custom"
"""Name of the profile of a plan whose modules were chosen on the command line."""

_LOCAL_SEGMENT = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class Unit:
    """One compiler invocation. Paths are as commands see them (inside the sandbox)."""

    id: str
    module: str
    family: str
    kind: str
    source: str
    source_path: str
    command: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Module:
    """One library of the package, and the units that make it."""

    name: str
    family: str
    library: str
    units: tuple[str, ...]


@dataclass(frozen=True)
class Resolution:
    """What is to be built, as far as recipes and stacks can tell."""

    recipe: Recipe
    version: str
    data: RecipeVersion
    stack: Stack
    request: Arch
    arch: Arch
    why: str
    warning: str
    strategy: Strategy
    why_strategy: str
    profile: str
    modules: tuple[str, ...] | None
    modules_from: Path | None = None
    """A server's log or JIT directory that says which modules."""

    @property
    def name(self) -> str:
        """The recipe's name and version, as printed."""
        return f"{self.recipe.name} {self.version}"

    def profile_table(self) -> dict[str, Any]:
        """Return the profile's table as the generator is given it."""
        if self.profile in self.data.profiles:
            return self.data.profiles[self.profile].model_dump(exclude={"default"})
        return {"modules": ["*"]}


def resolve(
    recipe: Recipe,
    stack: Stack,
    request: Arch,
    *,
    profile: str | None = None,
    modules: tuple[str, ...] | None = None,
    modules_from: Path | None = None,
    strategy: Strategy | None = None,
) -> Resolution:
    """Resolve a recipe for an architecture and a stack, from files alone.

    Raises:
        UsageError: the stack has no version of the recipe, profile or strategy are unknown, or no strategy can work.
        ArchError: the package has nothing for this architecture, or CUDA is too old for it.
    """
    if recipe.name not in stack.recipes:
        raise UsageError(
            f"stack {stack.name} says no version of {recipe.name}",
            where="--stack",
            cure=f"its recipes are {', '.join(stack.recipes)}",
        )
    version = stack.recipes[recipe.name]
    data = recipe.version(version)
    target = _target(recipe, data, stack, request)
    arch = Arch.parse(target.code)
    arch.require_cuda(stack.cuda_version)
    if modules is not None and modules_from is not None:
        raise UsageError("--modules and --modules-from exclude each other", cure="give one of them")
    if modules_from is not None and not (modules_from.is_file() or modules_from.is_dir()):
        raise UsageError(
            f"there is no file or directory {modules_from}",
            where="--modules-from",
            cure="give a server's log or its JIT directory",
        )
    decision = _strategy(recipe, version, data, strategy) or decide(recipe, version, _ground(stack), arch)
    chosen = decision.strategy
    compiled = chosen == "compile"
    return Resolution(
        recipe=recipe,
        version=version,
        data=data,
        stack=stack,
        request=request,
        arch=arch,
        why=target.why,
        warning=target.warning,
        strategy=chosen,
        why_strategy=decision.why,
        profile=_profile(recipe, data, profile, chosen=bool(modules or modules_from)) if compiled else chosen,
        modules=modules if compiled else None,
        modules_from=modules_from if compiled else None,
    )


def _ground(stack: Stack) -> Ground:
    symbols = from_environment.symbols(stack.environment) if stack.environment else None
    return Ground(stack.torch, stack.cuda_version, symbols)


def _target(recipe: Recipe, data: RecipeVersion, stack: Stack, request: Arch) -> Target:
    request.require_cuda(stack.cuda_version)
    named = [target for target in data.targets if request.code in target.request]
    fitting = named or [target for target in data.targets if request.code == target.code]
    for target in fitting:
        if stack.cuda_version in SpecifierSet(target.cuda):
            return target
    known = sorted({code for target in data.targets for code in (*target.request, target.code)})
    if fitting:
        ranges = ", ".join(target.cuda for target in fitting)
        raise ArchError(
            f"{recipe.name} builds {request} with CUDA {ranges}, and stack {stack.name} has CUDA {stack.cuda}",
            where="--arch",
            cure="choose another stack",
        )
    raise ArchError(
        f"{recipe.name} has nothing to build for {request}",
        where="--arch",
        cure=f"it knows {', '.join(known)}",
    )


def _strategy(recipe: Recipe, version: str, data: RecipeVersion, strategy: Strategy | None) -> Decision | None:
    if strategy is None:
        return None
    if strategy not in data.strategies:
        raise UsageError(
            f"{recipe.name} {version} cannot be made with strategy {strategy}",
            where="--strategy",
            cure=f"it has {', '.join(data.strategies)}",
        )
    return Decision(strategy, "asked for")


def _profile(recipe: Recipe, data: RecipeVersion, profile: str | None, *, chosen: bool) -> str:
    if chosen:
        if profile is not None:
            raise UsageError("--profile goes with neither --modules nor --modules-from", cure="give one of them")
        return CUSTOM_PROFILE
    if profile is None or not data.profiles:
        return data.default_profile()
    if profile not in data.profiles:
        raise UsageError(
            f"{recipe.name} has no profile {profile!r}",
            where="--profile",
            cure=f"its profiles: {', '.join(data.profiles)}",
        )
    return profile


@dataclass(frozen=True)
class Host:
    """What of this machine goes into the bytes of a wheel."""

    compiler: str
    """The host compiler's first version line."""
    libc: str
    base_image: str
    """Digest of the container image that the build runs in; empty on the host."""
    paths: str
    """`fixed` when commands see fixed paths, else a digest of the real ones, which enter the bytes."""


@dataclass(frozen=True)
class Plan:
    """Everything that decides what is in the wheels; immutable, printable, with a fingerprint."""

    resolution: Resolution
    toolchain: dict[str, str]
    environment: str
    """Digest of the build environment's locked requirements and interpreter."""
    tree: str
    """Digest of the source tree: sources, edits, links, patches."""
    generator: str
    """Digest of the recipe's own scripts that ran."""
    host: Host
    modules: tuple[Module, ...]
    units: tuple[Unit, ...]
    excluded: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    def content(self) -> dict[str, Any]:
        """Return what the fingerprint covers; the same on every machine that makes the same bytes."""
        resolution = self.resolution
        return {
            "format": FORMAT,
            "recipe": resolution.recipe.name,
            "version": resolution.version,
            "strategy": resolution.strategy,
            "arch": resolution.arch.code,
            "stack": {"cuda": resolution.stack.cuda, "torch": resolution.stack.torch},
            "profile": resolution.profile,
            "sources": [source.pin for source in (*resolution.data.sources, *resolution.data.third_party)],
            "tree": self.tree,
            "generator": self.generator,
            "environment": self.environment,
            "toolchain": self.toolchain,
            "host": vars(self.host),
            "modules": [module.name for module in self.modules],
            "units": [{"id": unit.id, "command": digest(list(unit.command))} for unit in self.units],
        }

    @property
    def fingerprint(self) -> str:
        """Sha256 (hex) over `content`."""
        return digest(self.content())

    @property
    def label(self) -> str:
        """The version of every wheel made from this plan."""
        return wheel_version(
            self.resolution.version,
            cuda=self.resolution.stack.cuda_tag,
            arch=self.resolution.arch,
            profile=self.resolution.profile,
            fingerprint=self.fingerprint,
        )


def wheel_version(version: str, *, cuda: str, arch: Arch, profile: str, fingerprint: str) -> str:
    """Return the version of a wheel, e.g. `0.7.2+cu130.sm120f.core.p1a2b3c4d`.

    The local part says CUDA, exact architecture and profile, then the first 8 hex digits of the plan's fingerprint,
    so that wheels with different content never share a file name. Every part starts with a letter: under PEP 440
    such parts compare as text, a release never compares lower than the same release without a label, and `==0.7.2`
    accepts it.

    Raises:
        UsageError: a part is not lower-case letters and digits.
    """
    parts = [cuda, f"sm{arch.code}", *([profile] if profile else []), f"p{fingerprint[:8]}"]
    for part in parts:
        if not _LOCAL_SEGMENT.fullmatch(part) or not part[0].isalpha():
            raise UsageError(f"{part!r} cannot be part of a version label", cure="use a-z and 0-9, letter first")
    return str(Version(f"{version}+{'.'.join(parts)}"))


def digest(value: Any) -> str:
    """Return the sha256 (hex) of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(*paths: Path) -> str:
    """Return one sha256 (hex) over the names and contents of some files."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
