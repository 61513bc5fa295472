"""Make all checks of a wheel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smwheel.gpu import architectures
from smwheel.verify import abi, against, contents, gpucode, importing, libraries, limits, tags
from smwheel.verify.expectations import gather
from smwheel.verify.registry import Check, registered
from smwheel.verify.subject import Subject
from smwheel.verify.verdict import Level, Verdict
from smwheel.wheels.wheelfile import Wheel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from smwheel.verify.expectations import Expectations

MODULES = (contents, gpucode, libraries, abi, tags, importing, limits, against)
"""The modules whose checks are registered by being imported."""


@dataclass(frozen=True)
class Imports:
    """How the import checks are made: with the interpreter `python`, or in an environment made for the wheel.

    `say` is told what is about to be fetched, and how much.
    """

    python: Path | None = None
    say: Callable[[str], object] = lambda _: None


def verify_wheel(path: Path, expect: Expectations, *, imports: Imports | None = None) -> Verdict:
    """Make every static check of a wheel, and the import checks if they are asked for.

    Raises:
        MalformedError: it is no wheel that could be looked at: no zip, unsafe names, no metadata.

    """
    with Subject(path) as subject:
        if imports is not None:
            subject.importer = importing.Importer(subject, expect, imports.python, imports.say)
        results = tuple(check.make(subject, expect) for check in chosen(expect, imports=imports is not None))
        asked = Level.STATIC if imports is None else Level.IMPORTED
        return Verdict(wheel=path.name, sha256=subject.sha256, asked=asked, results=results)


def judge(
    path: Path,
    *,
    recipe_name: str = "",
    arch: str = "",
    stack_name: str = "",
    against: Path | None = None,
    imports: Imports | None = None,
    live: bool = False,
) -> Verdict:
    """Judge a wheel by what is given, and by the plan inside it where nothing is; `live`: by this machine's GPUs too.

    Raises:
        UsageError, RecipeError, ArchError: what is given does not exist or go together.
        MalformedError: it is no wheel that could be looked at.

    """
    with Wheel(path) as wheel:
        expect = gather(wheel, recipe_name=recipe_name, arch=arch, stack_name=stack_name, against=against)
    if live:
        expect = replace(expect, live=tuple(architectures()))
    return verify_wheel(path, expect, imports=imports)


def chosen(expect: Expectations, *, imports: bool) -> list[Check]:
    """Return the checks to make: W206, W6 and W8 only for live GPUs, with imports, and for a wheel that was cut."""
    cut = bool(expect.against or expect.original)
    asked = (("W206", expect.live is not None), ("W6", imports), ("W8", cut))
    left_out = tuple(group for group, wanted in asked if not wanted)
    return [one for one in registered() if not one.code.startswith(left_out)]
