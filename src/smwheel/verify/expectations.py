"""What a wheel must be: from its recipe, stack and architecture, or from the plan that it carries."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from smwheel import plan, recipe, stack
from smwheel.arch import Arch
from smwheel.errors import MalformedError
from smwheel.paths import cache_dir
from smwheel.sources.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from smwheel.recipe import ForeignCode, LoaderRule, SystemNeed, Undefined
    from smwheel.wheels.wheelfile import Wheel

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class Expectations:
    """Everything the checks compare a wheel with. What is None or "" is not known, and its checks cannot be made.

    `arch` is the code due in every library, suffix included; `cuda` and `torch` are the stack's versions;
    `recipe` is the recipe's name, and the fields below it are that recipe's rules (see `recipe.Expect`).
    Sizes are in bytes. `original` is the sha256 that the recipe pins for the wheel that this one was cut from.
    """

    arch: Arch | None = None
    cuda: str = ""
    torch: str = ""
    recipe: str = ""
    version: str = ""
    files: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    no_device_code: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    foreign: tuple[ForeignCode, ...] = ()
    undefined: tuple[Undefined, ...] = ()
    ptx: bool = False
    needed: tuple[str, ...] = ()
    one_python: tuple[str, ...] = ()
    system: tuple[SystemNeed, ...] = ()
    loader: LoaderRule | None = None
    torch_pin: bool = False
    ops: tuple[str, ...] = ()
    script: Path | None = None
    max_wheel: int | None = None
    max_installed: int | None = None
    original: str = ""
    against: Path | None = None
    live: tuple[Arch, ...] | None = None
    """The GPUs of this machine, if the wheel is to be judged by them too."""

    @property
    def cuda_major(self) -> str:
        """The CUDA major, e.g. `13`."""
        return str(Version(self.cuda).major)


def from_resolution(resolved: plan.Resolution, *, modules: tuple[str, ...] = ()) -> Expectations:
    """Return what a resolved recipe says of its wheels; `modules` are the libraries that a plan lists."""
    data, expect = resolved.data, resolved.data.expect
    cut = data.thin is not None and resolved.strategy == "thin"
    return Expectations(
        arch=resolved.arch,
        cuda=resolved.stack.cuda,
        torch=resolved.stack.torch,
        recipe=resolved.recipe.name,
        version=resolved.version,
        files=tuple(expect.files),
        required=(*expect.required, *(f"*/{name}.so" for name in modules)),
        no_device_code=tuple(expect.no_device_code),
        plain=tuple(expect.plain),
        foreign=tuple(expect.foreign),
        undefined=tuple(expect.undefined),
        ptx=expect.ptx,
        needed=tuple(expect.needed),
        one_python=tuple(expect.one_python),
        system=tuple(need for need in data.system if need.stage == "run" and need.library),
        loader=expect.loader,
        torch_pin=expect.torch_pin,
        ops=tuple(expect.ops),
        script=resolved.recipe.directory / data.check if data.check else None,
        max_wheel=expect.max_wheel.get(resolved.arch.code),
        max_installed=expect.max_installed.get(resolved.arch.code),
        original=data.file(data.thin.source).sha256 if cut and data.thin else "",
    )


def gather(
    wheel: Wheel, *, recipe_name: str = "", arch: str = "", stack_name: str = "", against: Path | None = None
) -> Expectations:
    """Return what is expected of a wheel: as given, and what is not given as the plan inside it says.

    Raises:
        UsageError, RecipeError, ArchError: what is given does not exist or go together.
        MalformedError: the plan inside is damaged.

    """
    inside = carried_plan(wheel)
    name = recipe_name or inside.get("recipe", "")
    code = arch or inside.get("arch", "")
    known = stack.load(stack_name) if stack_name else stack_of(inside)
    if recipe_name:
        recipe.load(recipe_name)  # one that does not exist is a mistake of the asker, not of the wheel
    given = Expectations(
        arch=Arch.parse(code) if code else None,
        cuda=known.cuda if known else "",
        torch=known.torch if known else "",
        against=against,
    )
    if not (name and code and known):
        return given
    package = recipe.load(name)
    planned = (inside.get("recipe"), inside.get("version")) == (name, known.recipes.get(name))
    resolved = plan.resolve(
        package, known, _request(package, known, code), strategy=inside.get("strategy") if planned else None
    )
    # A plan may make several wheels; those of pure Python hold none of its modules.
    native = any(member.endswith(".so") for member in wheel.members)
    modules = tuple(inside.get("modules", ())) if native and planned else ()
    expect = from_resolution(resolved, modules=modules)
    if against is None and expect.original:
        against = Store(cache_dir() / "store").path(expect.original)  # what it was cut from, if this machine has it
    return replace(expect, against=against)


def carried_plan(wheel: Wheel) -> dict[str, Any]:
    """Return the plan that a wheel of ours carries in its metadata directory, or nothing.

    Raises:
        MalformedError: it is no JSON object.

    """
    names = [
        name
        for name in wheel.members
        if name.startswith(f"{wheel.dist_info}/") and name.rpartition("/")[2] == PLAN_FILE
    ]
    if not names:
        return {}
    try:
        found = json.loads(wheel.read(names[0]))
    except ValueError as error:
        raise MalformedError(f"is no JSON: {error}", where=names[0]) from error
    if not isinstance(found, dict):
        raise MalformedError("is no plan", where=names[0])
    return found


def _request(package: recipe.Recipe, known: stack.Stack, code: str) -> Arch:
    """Return what was asked for when a recipe answers with `code`: a plan says the answer."""
    version = package.versions.get(known.recipes.get(package.name, ""))
    for target in version.targets if version else ():
        if target.code == code and code not in target.request:
            return Arch.parse(target.request[0])
    return Arch.parse(code)


def stack_of(inside: dict[str, Any]) -> stack.Stack | None:
    """Return the stack that a plan names by its CUDA and torch versions and its recipe's version."""
    said = inside.get("stack")
    if not isinstance(said, dict):
        return None
    for one in stack.load_all().values():
        same = (one.cuda, one.torch) == (said.get("cuda"), said.get("torch"))
        if same and one.recipes.get(inside.get("recipe", "")) == inside.get("version"):
            return one
    return None
