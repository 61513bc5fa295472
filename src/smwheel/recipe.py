"""Recipes: one package's build as data, read from `recipes/<package>/recipe.toml`.

The models here are the whole of what a recipe may say; the JSON schema in `docs/recipe.schema.json` is made
from them. A recipe file is read once and is immutable afterwards.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from smwheel.arch import Arch
from smwheel.errors import ArchError, RecipeError, UsageError
from smwheel.paths import data_dir

Strategy = Literal["compile", "thin"]
M = TypeVar("M", bound=BaseModel)


class Strict(BaseModel):
    """Base of everything read from TOML: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"{text!r} is no version range such as '>=12.9'") from error
    return text


class Source(Strict):
    """One file that a build starts from, pinned by size and sha256.

    [[versions."0.7.2".sources]]
    id = "sdist"
    kind = "sdist"
    project = "flashinfer-python"
    file = "flashinfer_python-0.7.2.tar.gz"
    size = 54382644
    sha256 = "3164…"
    """

    id: str
    kind: Literal["sdist", "wheel"]
    project: str = Field(description="name on the package index")
    file: str
    size: int = Field(gt=0, description="bytes")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    unpacked: int = Field(default=2 << 30, gt=0, description="bound on the unpacked size in bytes")
    publish: bool = Field(default=False, description="put this file, unchanged, into the wheelhouse too")
    only: str = Field(default="", description="machine this file is for, e.g. x86_64; empty: any")


class Target(Strict):
    """What a request means for this package with a CUDA version; the first rule that fits decides.

    [[versions."0.7.2".targets]]
    request = ["120"]
    cuda = ">=12.9"
    code = "120f"
    why = "the runtime asks for fp4_quantization_120f"
    """

    request: list[str]
    cuda: str = ">=0"
    code: str
    why: str
    warning: str = Field(default="", description="said when this code was asked for by name")

    _check_cuda = field_validator("cuda")(_specifier)

    @field_validator("request", "code")
    @classmethod
    def _check_arch(cls, value: str | list[str]) -> str | list[str]:
        for text in [value] if isinstance(value, str) else value:
            try:
                Arch.parse(text)
            except ArchError as error:
                raise ValueError(str(error)) from error
        return value


class ToolchainNeeds(Strict):
    """What of a CUDA toolkit this package needs: registry components, and what a given toolkit must hold."""

    components: list[str] = ["nvcc", "cccl", "cudart"]
    headers: list[str] = []
    libraries: list[str] = []


class SystemNeed(Strict):
    """Something only the system can give, with the packages that bring it."""

    name: str
    header: str = ""
    library: str = Field(default="", description="SONAME, e.g. libnuma.so.1")
    command: str = ""
    apt: str
    dnf: str
    stage: Literal["build", "run"] = "build"

    @model_validator(mode="after")
    def _one_probe(self) -> Self:
        if sum(bool(x) for x in (self.header, self.library, self.command)) != 1:
            raise ValueError("name exactly one of header, library, command: it is what is looked for")
        return self


class Edit(Strict):
    """A replacement in a source file; it must match exactly as often as it says."""

    file: str
    find: str
    replace: str
    count: int = Field(default=1, gt=0)
    why: str


class Link(Strict):
    """A symbolic link to add to the source tree, both ends inside it; `target` is relative to the link."""

    path: str
    target: str


class Build(Strict):
    """How the package is built from its source tree."""

    source: str = Field(default="sdist", description="id or kind of the source that the tree is made of")
    generator: str = Field(default="", description="script beside the recipe that speaks the generator protocol")
    requirements: str = Field(description="hash-locked requirements of the build environment, beside the recipe")
    environment: dict[str, str] = {}
    edits: list[Edit] = []
    links: list[Link] = []
    patches: list[str] = Field(default=[], description="unified diffs under patches/<package>/")
    python_path: list[str] = Field(default=[], description="directories beside the recipe put on PYTHONPATH")


class Profile(Strict):
    """A named selection of modules: name patterns, and specs the package's own list lacks."""

    summary: str
    modules: list[str]
    leave_out: list[str] = []
    extra: list[dict[str, Any]] = Field(default=[], description="passed to the generator verbatim")
    default: bool = False


class Exclusion(Strict):
    """Modules never built for some architectures, with the reason that is printed."""

    modules: list[str]
    reason: str
    unless: list[str] = Field(default=[], description="architecture numbers that these do serve")


class ForeignCode(Strict):
    """Machine code of another architecture that is allowed in some files, with the reason."""

    files: list[str] = Field(description="patterns of file names, e.g. */fp4_quantization_*.so")
    allow: list[str] = Field(description="architectures, e.g. 120a")
    reason: str


class LoaderRule(Strict):
    """Which file the package's loader opens on a GPU: a directory by capability, then a pattern in it."""

    pattern: str = Field(description="e.g. common_ops.*")
    directories: dict[str, str] = Field(description='capability number or "*" → directory in the wheel')


class Expect(Strict):
    """What a finished wheel must be."""

    files: list[str] = Field(default=[], description="patterns that every file of the wheel must match")
    required: list[str] = Field(default=[], description="patterns that some file must match")
    no_device_code: list[str] = Field(default=[], description="libraries that hold no GPU code by design")
    plain: list[str] = Field(
        default=[], description="libraries that need no suffix: plain code that loads on the target is enough"
    )
    foreign: list[ForeignCode] = []
    ptx: bool = False
    needed: list[str] = Field(default=[], description="SONAME patterns that may be NEEDED beside libc's own")
    one_python: list[str] = Field(
        default=[], description="files for one Python only that the package does without on others"
    )
    loader: LoaderRule | None = None
    torch_pin: bool = Field(default=False, description="Requires-Dist must pin torch's minor version")
    ops: list[str] = Field(default=[], description="torch operators that must be registered after import")
    max_wheel: dict[str, int] = Field(default={}, description="architecture that is built → bytes")
    max_installed: dict[str, int] = Field(default={}, description="architecture that is built → bytes")


class Stub(Strict):
    """A small module of ours for the place of a library, where that is left without code for the target."""

    replaces: str = Field(description="pattern of the file in the wheel, e.g. sgl_kernel/flash_ops.abi3.so")
    file: str = Field(description="the stub beside the recipe")
    path: str = Field(description="where it goes in the wheel")
    reason: str


class Thin(Strict):
    """How a published wheel is cut down."""

    source: str = Field(default="wheel", description="id of the published wheel among the sources")
    stubs: list[Stub] = []
    drop: dict[str, str] = Field(
        default={}, description="pattern of files left out, with no change of behaviour → why there is none"
    )
    licenses: list[str] = Field(default=[], description="licence texts beside the recipe, added to the wheel")
    published: str = Field(default="", description="what the wheel holds and asks of torch: facts beside the recipe")


class RecipeVersion(Strict):
    """One version of a package."""

    strategies: list[Strategy] = ["compile"]
    distribution: str = Field(default="", description="name of the distribution, if not the recipe's")
    python: str = ">=3.10"
    cuda: str = Field(default=">=12.8", description="CUDA releases it compiles with")
    torch: str = Field(default="", description="torch release that the published wheel was built for")
    sources: list[Source]
    targets: list[Target]
    toolchain: ToolchainNeeds = ToolchainNeeds()
    system: list[SystemNeed] = []
    build: Build | None = None
    generator: dict[str, Any] = Field(default={}, description="passed to the generator verbatim")
    profiles: dict[str, Profile] = {}
    exclusions: list[Exclusion] = []
    expect: Expect = Expect()
    thin: Thin | None = None
    check: str = Field(default="", description="script beside the recipe that asks the installed package itself")

    _check_ranges = field_validator("python", "cuda")(_specifier)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "compile" in self.strategies and self.build is None:
            raise ValueError("strategy 'compile' needs a [build] table")
        if "thin" in self.strategies and self.thin is None:
            raise ValueError("strategy 'thin' needs a [thin] table")
        ids = [source.id for source in self.sources]
        if len(set(ids)) != len(ids):
            raise ValueError(f"two sources share an id: {ids}")
        if sum(profile.default for profile in self.profiles.values()) > 1:
            raise ValueError("two profiles are the default")
        return self

    def source(self, kind_or_id: str) -> Source:
        """Return the source with this id, or the only one of this kind."""
        for source in self.sources:
            if kind_or_id in (source.id, source.kind):
                return source
        raise RecipeError(f"no source {kind_or_id!r}", cure="add it to [[sources]]")

    def default_profile(self) -> str:
        """Return the name of the profile built when none is named; empty if the recipe has none."""
        return next((name for name, profile in self.profiles.items() if profile.default), "")


class Recipe(Strict):
    """A package: what it is, and how each known version of it is built.

    schema = 1
    name = "flashinfer"
    summary = "…"
    """

    format: Literal[1] = Field(alias="schema", description="version of this file format")
    name: str
    summary: str
    homepage: str = ""
    license: str
    versions: dict[str, RecipeVersion]
    directory: Path = Field(default=Path(), exclude=True)

    @field_validator("versions")
    @classmethod
    def _check_versions(cls, value: dict[str, RecipeVersion]) -> dict[str, RecipeVersion]:
        for text in value:
            try:
                Version(text)
            except InvalidVersion as error:
                raise ValueError(f"{text!r} is no version") from error
        return value

    def version(self, version: str) -> RecipeVersion:
        """Return the data of one version.

        Raises:
            UsageError: the recipe does not know it; the error lists those it knows.
        """
        if version not in self.versions:
            raise UsageError(
                f"recipe {self.name} does not know version {version}",
                where=str(self.directory / "recipe.toml"),
                cure=f"known versions: {', '.join(self.versions)}",
            )
        return self.versions[version]


def recipes_dir() -> Path:
    """Return the directory that holds the recipes and `stacks.toml`."""
    return data_dir() / "recipes"


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(path.parent.name for path in recipes_dir().glob("*/recipe.toml"))


def load(name: str) -> Recipe:
    """Read one recipe by name, or by the path of its directory.

    Raises:
        UsageError: no such recipe; names the nearest.
        RecipeError: the file is wrong; names file, key and cure.
    """
    directory = Path(name) if "/" in name else recipes_dir() / name
    path = directory / "recipe.toml"
    if not path.is_file():
        close = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
        hint = f"did you mean {close[0]}?" if close else f"known recipes: {', '.join(names())}"
        raise UsageError(f"there is no recipe {name!r}", cure=hint)
    recipe = read_toml(path, Recipe)
    return recipe.model_copy(update={"directory": directory.resolve()})


def read_toml(path: Path, model: type[M]) -> M:
    """Read a TOML file into a model.

    Raises:
        RecipeError: not TOML, an unknown or missing key, or a wrong value: named with file, key and cure.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"is not TOML: {error}", where=str(path)) from error
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # A misspelt key is two errors, one unknown and one missing: the unknown one says what to mend.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        key = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise RecipeError(
            f"key {key}: {_sentence(first)}{more}",
            where=str(path),
            cure=_cure(model, first),
        ) from error


def _sentence(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "is not a key of this table"
        case "missing":
            return "is missing"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")


def _cure(model: type[BaseModel], error: Any) -> str:
    if error["type"] != "extra_forbidden":
        return "correct the value" if error["type"] != "missing" else "add the key"
    known = _keys_at(model, error["loc"][:-1])
    close = difflib.get_close_matches(str(error["loc"][-1]), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"keys known here: {', '.join(known)}"


def _keys_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Return the keys that the table at `location` may have, by walking the models' JSON schema."""
    schema = model.model_json_schema()
    node: Any = schema
    for part in location:
        node = _resolve(schema, node)
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    return sorted(_resolve(schema, node).get("properties", {}))


def _resolve(schema: dict[str, Any], node: Any) -> Any:
    for option in node.get("anyOf", []):
        if "$ref" in option:
            node = option
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node
