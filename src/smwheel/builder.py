"""Several recipes for one architecture and stack: each planned, fetched or built; one that fails stops no other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smwheel import from_environment
from smwheel import recipe as recipes
from smwheel.arch import Arch
from smwheel.build.backend import choose
from smwheel.build.compile import build_compiled
from smwheel.build.container import build_contained
from smwheel.build.pep517 import build_pep517
from smwheel.build.thinned import build_thinned
from smwheel.environment import fetch_wheels
from smwheel.errors import PartialError, SmwheelError
from smwheel.explain import PlanReport, explain, nothing_to_make
from smwheel.paths import cache_dir
from smwheel.pipeline import (
    Options,
    fetch_sources,
    make_site,
    prepare,
    requirements_of,
    sources_of,
    toolchain_digests,
)
from smwheel.plan import Resolution, resolve
from smwheel.progress import Reporter, size
from smwheel.recipe import GitSource, Strategy
from smwheel.sources import git
from smwheel.sources.bring import stored
from smwheel.sources.bundle import read_bundle, write_bundle
from smwheel.sources.store import Store
from smwheel.stack import Stack
from smwheel.system import require_compiler
from smwheel.toolchain import probe
from smwheel.wheelhouse import Entry, Wheelhouse

PIP_INSTALL = "pip install --no-index --no-deps --require-hashes"
"""Takes exactly our files: no index can offer a higher version, and every hash is checked."""


@dataclass(frozen=True)
class Wish:
    """What the user asks for."""

    recipes: tuple[str, ...]
    arch: Arch
    stack: Stack
    profile: str | None = None
    modules: tuple[str, ...] | None = None
    modules_from: Path | None = None
    strategy: Strategy | None = None

    def resolve(self, name: str) -> Resolution:
        """Resolve one of the recipes; raises what `plan.resolve` raises."""
        return resolve(
            recipes.load(name),
            self.stack,
            self.arch,
            profile=self.profile,
            modules=self.modules,
            modules_from=self.modules_from,
            strategy=self.strategy,
        )

    def already_fine(self, name: str) -> str:
        """Return why nothing must be made of a recipe for the environment of the stack; empty if it must be."""
        if self.stack.environment is None or self.strategy is not None or name not in self.stack.recipes:
            return ""
        return from_environment.already_fine(self.stack.environment, name, self.stack.recipes[name], self.arch.plain)


@dataclass(frozen=True)
class Outcome:
    """What became of each recipe; `fine` are those that need no wheel, with the reason."""

    entries: list[Entry]
    failures: dict[str, SmwheelError]
    wheelhouse: Path
    fine: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `build --json` prints."""
        return {
            "wheelhouse": str(self.wheelhouse),
            "wheels": [vars(entry) for entry in self.entries],
            "already_fine": self.fine,
            "failures": {name: error.as_json() for name, error in self.failures.items()},
        }

    def as_text(self) -> str:
        """Return what `build` ends with: what was made, what it holds, and how to install it."""
        lines = [f"  {name}: nothing to make: {reason}" for name, reason in self.fine.items()]
        for entry in self.entries:
            code = ", ".join(f"{count} sm_{arch}" for arch, count in sorted(entry.holds.items()))
            lines.append(f"  {entry.file}  {entry.size / (1 << 20):.1f} MiB  {code or 'no GPU code'}  [{entry.level}]")
        if self.entries or len(self.failures) > 1:
            for name, error in self.failures.items():
                lines += [f"  {name}: NOT MADE", *(f"    {line}" for line in str(error).splitlines())]
        if self.entries:
            house = self.wheelhouse
            ours = [f"{house}/{entry.file}" for entry in self.entries if entry.holds]
            lines += [
                "",
                f"install   {PIP_INSTALL} --find-links {house} -r {house}/requirements.txt",
                f"check     {_program()} verify {' '.join(ours)}",
                f"evidence  {house}/evidence/",
            ]
        return "\n".join(lines)

    def error(self) -> SmwheelError | None:
        """Return what the process must end with: nothing, or the only failure's error, or that some recipes failed."""
        if not self.failures:
            return None
        if not self.entries and len(self.failures) == 1:
            return next(iter(self.failures.values()))
        return PartialError(
            f"not made: {', '.join(self.failures)}", cure="see the reasons above; what was made can be used"
        )


def build_all(wish: Wish, options: Options, reporter: Reporter) -> Outcome:
    """Build every recipe of the wish into the wheelhouse."""
    options.wheelhouse.mkdir(parents=True, exist_ok=True)
    backend = choose(options, reporter)
    entries: list[Entry] = []
    fine: dict[str, str] = {}
    for note in wish.stack.notes:
        reporter.warn(note)

    def make(name: str) -> None:
        if reason := wish.already_fine(name):
            fine[name] = reason
            return
        resolution = wish.resolve(name)
        reporter.stage("recipe", _headline(resolution))
        if resolution.warning:
            reporter.warn(resolution.warning)
        if resolution.strategy == "thin":
            entries.extend(build_thinned(resolution, options, reporter))
        elif backend is not None:
            entries.extend(build_contained(resolution, options, backend, reporter))
        else:
            prepared = prepare(resolution, options, reporter)
            if not Wheelhouse(options.wheelhouse).made_from(prepared.plan.fingerprint):
                # Minutes of compiling begin: first see that this compiler, toolkit and architecture go together.
                probe(prepared.site.toolchain, resolution.arch, require_compiler().cxx)
            build = build_compiled if prepared.site.build.generator else build_pep517
            entries.extend(build(prepared, reporter))

    failures = _each(wish, make, reporter)
    if entries:
        Wheelhouse(options.wheelhouse).write_pins(entries)
    return Outcome(entries, failures, options.wheelhouse, fine)


def plan_all(wish: Wish, options: Options, reporter: Reporter) -> list[PlanReport]:
    """Plan every recipe of the wish; a recipe that cannot be planned whole says why and shows the rest."""
    for note in wish.stack.notes:
        reporter.warn(note)
    return [
        nothing_to_make(name, reason, options)
        if (reason := wish.already_fine(name))
        else explain(name, wish.resolve, options, reporter)
        for name in wish.recipes
    ]


def fetch_all(wish: Wish, options: Options, reporter: Reporter) -> dict[str, Any]:
    """Bring into the cache all that the recipes need; return recipe → what was fetched."""
    fetched: dict[str, Any] = {}

    def bring(name: str) -> None:
        resolution = wish.resolve(name)
        files = fetch_sources(resolution, Store(cache_dir() / "store"), options, reporter)
        binds: dict[str, Any] = {}
        if resolution.strategy == "compile":
            site = make_site(resolution, options, reporter)
            files |= {"toolchain": site.toolchain.home, "environment": site.environment.root}
            binds = {bind.name: {"path": str(bind.real), "writable": bind.writable} for bind in site.sandbox.binds}
        fetched[name] = {key: str(path) for key, path in files.items()} | {"binds": binds}

    failures = _each(wish, bring, reporter)
    if error := Outcome([], failures, options.wheelhouse).error():
        raise error
    return fetched


def bundle_all(wish: Wish, options: Options, target: Path, reporter: Reporter) -> int:
    """Write all that the recipes need, which is fetched already, to one file; return how many files it holds.

    Raises:
        SmwheelError: something cannot be had; of its kind.
    """
    store, digests, records = Store(cache_dir() / "store"), list[str](), list[Path]()
    for name in wish.recipes:
        resolution = wish.resolve(name)
        sources = sources_of(resolution)
        digests += [path.parent.name for source in sources if (path := stored(source, store))]
        records += [path for source in sources if isinstance(source, GitSource) for path in git.records(source, store)]
        if resolution.strategy == "compile":
            digests += toolchain_digests(resolution, options)
            digests += [path.parent.name for path in fetch_wheels(requirements_of(resolution), store)]
    count = write_bundle(target, store, digests, records)
    reporter.stage("bundle", f"{target}: {count} files, {size(target.stat().st_size)}")
    return count


def take_bundle(source: Path, reporter: Reporter) -> None:
    """Bring everything in a bundle into the cache.

    Raises:
        SourceError, HashMismatchError: see `sources.bundle.read_bundle`.
    """
    count = read_bundle(source, Store(cache_dir() / "store"))
    reporter.stage("bundle", f"{source}: {count} files taken")


def _each(wish: Wish, action: Callable[[str], None], reporter: Reporter) -> dict[str, SmwheelError]:
    failures: dict[str, SmwheelError] = {}
    for name in wish.recipes:
        try:
            action(name)
        except SmwheelError as error:
            failures[name] = error
            if len(wish.recipes) > 1:
                reporter.warn(f"{name}: {error}")
    return failures


def _program() -> str:
    """Return how this program was called, as short as it can be called again."""
    called = Path(sys.argv[0]).absolute()
    return str(called.relative_to(Path.cwd())) if called.is_relative_to(Path.cwd()) else "smwheel"


def _headline(resolution: Resolution) -> str:
    modules = f", profile {resolution.profile}" if resolution.strategy == "compile" and resolution.profile else ""
    return (
        f"{resolution.name} for {resolution.arch.sm} ({resolution.why}), "
        f"{resolution.strategy}{modules} ({resolution.why_strategy})"
    )
