"""Stacks: versions that belong together, read from `recipes/stacks.toml`."""

from __future__ import annotations

import difflib
from pathlib import Path

from packaging.version import Version
from pydantic import Field, ValidationError, field_validator

from smwheel import from_environment
from smwheel.errors import RecipeError, UsageError
from smwheel.recipe import recipes_dir
from smwheel.tomlfile import Strict, read_toml

FROM = "from:"
"""Prefix of the name of a stack that is read from an environment, or from a file that `write` wrote."""

WRITTEN = ".json"
"""What the names of such files end with."""


class Stack(Strict):
    """Versions that belong together.

    [stacks."sglang-0.5.23"]
    default = true
    cuda = "13.0"
    torch = "2.14.1"
    recipes = { flashinfer = "0.7.2", sgl-kernel = "0.4.10" }
    """

    name: str = ""
    summary: str
    cuda: str = Field(description="CUDA release of torch and of the toolkit, e.g. 13.0")
    torch: str
    python: str = Field(default=">=3.10", description="Python versions that the stack runs on")
    recipes: dict[str, str] = Field(description="recipe → version, in the order in which they are built")
    on_request: list[str] = Field(default=[], description="recipes that are built only when they are named")
    default: bool = False
    environment: Path | None = Field(default=None, exclude=True, description="environment that it was read from")
    notes: tuple[str, ...] = Field(default=(), exclude=True, description="what was not taken from there as it is")

    @field_validator("cuda", "torch")
    @classmethod
    def _check_version(cls, value: str) -> str:
        return str(Version(value))

    @property
    def built_by_default(self) -> list[str]:
        """The recipes that are built when none is named."""
        return [name for name in self.recipes if name not in self.on_request]

    @property
    def cuda_version(self) -> Version:
        """The CUDA release."""
        return Version(self.cuda)

    @property
    def cuda_tag(self) -> str:
        """How wheels spell the CUDA release, e.g. `cu130`."""
        version = self.cuda_version
        return f"cu{version.major}{version.minor}"


class _Stacks(Strict):
    stacks: dict[str, Stack]


def load_all() -> dict[str, Stack]:
    """Read every stack, by name, in the file's order.

    Raises:
        RecipeError: the file is wrong, or does not have exactly one default.
    """
    path = recipes_dir() / "stacks.toml"
    stacks = {name: stack.model_copy(update={"name": name}) for name, stack in read_toml(path, _Stacks).stacks.items()}
    if sum(stack.default for stack in stacks.values()) != 1:
        raise RecipeError("exactly one stack must say default = true", where=str(path))
    return stacks


def load(name: str | None) -> Stack:
    """Return one stack by name, the default one for None; `from:ENV` reads the versions of an environment.

    Raises:
        UsageError: there is no such stack (names the nearest), or the environment gives none.
        RecipeError: a file that is named for a stack holds none.
    """
    if name is not None and name.startswith(FROM) and name.endswith(WRITTEN):
        return _told(Path(name.removeprefix(FROM)))
    stacks = load_all()
    if name is not None and name.startswith(FROM):
        return _read(Path(name.removeprefix(FROM)).absolute(), stacks)
    if name is None:
        return next(stack for stack in stacks.values() if stack.default)
    if name not in stacks:
        close = difflib.get_close_matches(name, stacks, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]}?" if close else f"known stacks: {', '.join(stacks)}"
        raise UsageError(f"there is no stack {name!r}", where="--stack", cure=hint)
    return stacks[name]


def write(stack: Stack, path: Path) -> None:
    """Write a stack to a file from which `from:FILE.json` reads it, where its environment cannot be looked at."""
    temporary = path.with_suffix(".new")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(stack.model_dump_json(indent=1), encoding="utf-8")
    temporary.replace(path)


def _told(path: Path) -> Stack:
    try:
        return Stack.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{error.errors()[0]['msg']}"
        raise RecipeError(
            f"is no stack that smwheel wrote: {reason}", where=str(path), cure="name an environment: --stack from:ENV"
        ) from error


def _read(environment: Path, stacks: dict[str, Stack]) -> Stack:
    found = from_environment.versions(environment)
    on_request = {name for stack in stacks.values() for name in stack.on_request}
    return Stack(
        name=f"{FROM}{environment}",
        summary=f"the versions in {environment}",
        cuda=found.cuda,
        torch=found.torch,
        python=found.python,
        recipes=found.recipes,
        on_request=[name for name in found.recipes if name in on_request],
        environment=environment,
        notes=found.notes,
    )
