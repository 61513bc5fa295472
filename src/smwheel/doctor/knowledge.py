"""What is known of packages, as data: the file `recipes/doctor.toml`, and the recipes' loader rules."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import Field, field_validator

from smwheel import recipe
from smwheel.recipe import Recipe, RecipeVersion, recipes_dir
from smwheel.tomlfile import Strict, read_toml


class KnownPackage(Strict):
    """A package of kernels.

    [[packages]]
    recipe = "sgl-kernel"
    distributions = ["sglang-kernel", "sgl-kernel"]
    module = "sgl_kernel"
    libraries = ["sgl_kernel/*common_ops.*"]
    """

    recipe: str
    distributions: list[str] = Field(description="patterns of its names on the package index")
    module: str = Field(description="what is imported; empty if nobody imports it by name")
    libraries: list[str] = Field(default=[], description="patterns of files without which its import fails")
    pure: bool = Field(default=False, description="it is made of Python; its kernels come from elsewhere")


class Server(Strict):
    """A package whose requirements say which kernels it wants, and the recipe of what it compiles itself."""

    distribution: str
    recipe: str = ""


class Together(Strict):
    """Distributions of one release: equal versions, up to the local part."""

    distributions: list[str]
    why: str
    override: str = Field(default="", description="environment variable that switches the package's own check off")


class Provider(Strict):
    """How a package finds compiled modules in another one: the module it imports and what that must define."""

    consumer: str
    versions: str
    module: str
    defines: str
    group: str = Field(default="", description="entry-point group that the module gathers providers from")


class Compiles(Strict):
    """A package that compiles kernels while it serves, unless a package of compiled modules is there."""

    distribution: str
    versions: str = ">=0"
    tools: list[str]
    prebuilt: list[str]
    recipe: str = Field(description="what makes the package of compiled modules")


class Assembler(Strict):
    """A ptxas inside a package, for GPUs from an architecture number on."""

    file: str
    first: int = Field(default=0, alias="from")
    variable: str
    who: str


class Preload(Strict):
    """Directories whose libraries are loaded when a package is imported."""

    distribution: str
    directories: list[str]


class SystemPackage(Strict):
    """The packages of the system that bring a library."""

    apt: str
    dnf: str


class Knowledge(Strict):
    """The whole file."""

    format: int = Field(alias="schema")
    ground: list[str]
    packages: list[KnownPackage]
    servers: list[Server] = []
    together: list[Together] = []
    providers: list[Provider] = []
    compiles: list[Compiles] = []
    assemblers: list[Assembler] = []
    preloads: list[Preload] = []
    brings: dict[str, dict[str, str]] = {}
    system: dict[str, SystemPackage] = {}

    @field_validator("providers", "compiles")
    @classmethod
    def _ranges(cls, value: list[Provider] | list[Compiles]) -> list[Provider] | list[Compiles]:
        for one in value:
            SpecifierSet(one.versions)
        return value

    def is_ground(self, distribution: str) -> bool:
        """Return whether it is what kernels run on, and not judged itself."""
        return matches(distribution, self.ground)

    def package(self, distribution: str) -> KnownPackage | None:
        """Return what is known of a distribution, by its normalised name."""
        return next((one for one in self.packages if matches(distribution, one.distributions)), None)

    def bringer(self, soname: str) -> str:
        """Return the distribution that brings a library, e.g. of `libnvrtc.so.13`; empty if not known."""
        base, _, number = soname.partition(".so")
        return self.brings.get(f"{base}.so", {}).get(number.removeprefix("."), "")


def matches(name: str, patterns: list[str]) -> bool:
    """Return whether a normalised name fits one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@cache
def load() -> Knowledge:
    """Read the file.

    Raises:
        RecipeError: it is wrong; names file, key and cure.
    """
    return read_toml(recipes_dir() / "doctor.toml", Knowledge)


@cache
def recipe_of(package: str) -> Recipe:
    """Return a recipe by name, read once."""
    return recipe.load(package)


def data_for(known: KnownPackage, version: str) -> RecipeVersion:
    """Return what the recipe says of a version; of an unknown one, what it says of the nearest one before."""
    versions = sorted(
        ((Version(text), data) for text, data in recipe_of(known.recipe).versions.items()), key=lambda one: one[0]
    )
    public = Version(Version(version).public)
    before = [data for number, data in versions if number <= public]
    return before[-1] if before else versions[0][1]
