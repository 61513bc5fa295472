"""Recipes: one package's build as data, read from `recipes/<package>/recipe.toml`.

The models here are the whole of what a recipe may say; the JSON schema in `docs/recipe.schema.json` is made
from them. A recipe file is read once and is immutable afterwards.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field, field_validator, model_validator

from smwheel.arch import Arch
from smwheel.errors import ArchError, RecipeError, UsageError
from smwheel.paths import data_dir
from smwheel.tomlfile import Strict, read_toml

Strategy = Literal["compile", "thin"]


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"{text!r} is no version range such as '>=12.9'") from error
    return text


class PinnedFile(Strict):
    """What every source that is one file says."""

    id: str
    file: str
    size: int = Field(gt=0, description="bytes")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    unpacked: int = Field(default=2 << 30, gt=0, description="bound on the unpacked size in bytes")
    publish: bool = Field(default=False, description="put this file, unchanged, into the wheelhouse too")
    only: str = Field(default="", description="machine this file is for, e.g. x86_64; empty: any")

    @property
    def pin(self) -> dict[str, Any]:
        """What decides the source's bytes, as plans hold it."""
        return {"id": self.id, "file": self.file, "size": self.size, "sha256": self.sha256}

    @property
    def identity(self) -> str:
        """What the files that come of the source hang on, as one text."""
        return self.sha256

    @property
    def title(self) -> str:
        """The source as people are told of it."""
        return self.file


class FileSource(PinnedFile):
    """One file of a package index that a build starts from, pinned by size and sha256.

    [[versions."0.7.2".sources]]
    id = "sdist"
    kind = "sdist"
    project = "flashinfer-python"
    file = "flashinfer_python-0.7.2.tar.gz"
    size = 54382644
    sha256 = "3164…"
    """

    kind: Literal["sdist", "wheel"]
    project: str = Field(description="name on the package index")


class ArchiveSource(PinnedFile):
    """An archive (`.tar.gz`, `.zip`) at a URL, pinned by sha256.

    [[versions."0.4.10".third_party]]
    id = "repo-fmt"
    kind = "archive"
    url = "https://example.org/fmt/archive/553ec11e.tar.gz"
    file = "fmt-553ec11e.tar.gz"
    sha256 = "3164…"
    """

    kind: Literal["archive"]
    size: int = Field(default=0, ge=0, description="bytes; 0: nobody has said them")
    url: str
    mirrors: list[str] = Field(default=[], description="other URLs of the same file, asked in this order")
    writable: bool = Field(default=False, description="a third party that the package's build writes into")


class GitSource(Strict):
    """A commit of a git repository; a tag alone is resolved when it is first fetched, and locked.

    [[versions."0.3.21".sources]]
    id = "upstream"
    kind = "git"
    repository = "https://github.com/sgl-project/sglang"
    tag = "v0.5.9"
    directory = "sgl-kernel"
    """

    id: str
    kind: Literal["git"]
    repository: str
    commit: str = Field(default="", pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})?$", description="the full hash")
    tag: str = Field(default="", description="a name for the commit; asked for it where none is given")
    mirrors: list[str] = Field(default=[], description="other URLs of the same repository, asked in this order")
    directory: str = Field(default="", description="the part of the tree that is needed; empty: all of it")
    submodules: bool = False
    unpacked: int = Field(default=2 << 30, gt=0, description="bound on the unpacked size in bytes")
    writable: bool = Field(default=False, description="a third party that the package's build writes into")
    only: str = Field(default="", description="machine this source is for, e.g. x86_64; empty: any")

    @property
    def pin(self) -> dict[str, Any]:
        """What decides the source's bytes, as plans hold it: the commit, wherever it comes from."""
        return {"id": self.id, "commit": self.commit, "directory": self.directory, "submodules": self.submodules}

    @property
    def identity(self) -> str:
        """What the files that come of the source hang on, as one text."""
        return f"{self.commit}:{self.directory}{' with submodules' if self.submodules else ''}"

    @property
    def title(self) -> str:
        """The source as people are told of it."""
        part = f":{self.directory}" if self.directory else ""
        return f"{self.repository}{part} at {self.commit or self.tag or 'no commit'}"


Source = Annotated[FileSource | ArchiveSource | GitSource, Field(discriminator="kind")]
ThirdParty = Annotated[ArchiveSource | GitSource, Field(discriminator="kind")]


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


class Stub(Strict):
    """A small module of ours for the place of a library, where that is left without code for the target."""

    replaces: str = Field(description="pattern of the file in the wheel, e.g. sgl_kernel/flash_ops.abi3.so")
    file: str = Field(description="the stub beside the recipe")
    path: str = Field(description="where it goes in the wheel")
    reason: str


class Build(Strict):
    """How the package is built from its source tree."""

    source: str = Field(default="sdist", description="id or kind of the source that the tree is made of")
    generator: str = Field(
        default="", description="script beside the recipe that speaks the generator protocol; empty: a PEP 517 build"
    )
    directory: str = Field(default="", description="where in the tree a PEP 517 build has its pyproject.toml")
    requirements: str = Field(
        description="hash-locked requirements of the build environment, beside the recipe; {torch} is the stack's"
    )
    environment: dict[str, str] = {}
    defines: dict[str, str] = Field(default={}, description="CMake cache variables of a PEP 517 build")
    targets: dict[str, list[str]] = Field(
        default={}, description='architecture number or "*" → CMake targets that it can use; empty: all'
    )
    stubs: list[Stub] = Field(default=[], description="stubs beside thin's, each for a library that is not built")
    edits: list[Edit] = []
    links: list[Link] = []
    patches: list[str] = Field(default=[], description="unified diffs under patches/<package>/")
    python_path: list[str] = Field(default=[], description="directories beside the recipe put on PYTHONPATH")
    check_here: list[str] = Field(
        default=[], description="directories beside the recipe with which its check runs in the build environment too"
    )


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


class Undefined(Strict):
    """Names that upstream's libraries ask for and nobody brings, on a path that is never taken; with the reason."""

    files: list[str] = Field(description="patterns of file names")
    names: str = Field(description="regular expression that such a mangled name begins with")
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
    undefined: list[Undefined] = []
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
    third_party: list[ThirdParty] = Field(
        default=[], description="what the package's CMake project would fetch; the id is FetchContent's name for it"
    )
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
        ids = [source.id for source in (*self.sources, *self.third_party)]
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

    def file(self, kind_or_id: str) -> FileSource:
        """Return a source that is a file of a package index.

        Raises:
            RecipeError: there is none of this id or kind, or it is no such file.
        """
        source = self.source(kind_or_id)
        if not isinstance(source, FileSource):
            raise RecipeError(f"source {source.id} is no file of a package index", cure="name an sdist or a wheel")
        return source

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
