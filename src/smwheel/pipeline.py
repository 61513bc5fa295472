"""From a resolution to a plan: sources, toolchain, build environment, tree, modules and units.

Everything that needs the network happens here; what comes after runs without it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from smwheel import environment, system, toolchain
from smwheel.asked import keep_asked, nothing_matches
from smwheel.build.commands import settled
from smwheel.build.generator import PROTOCOL, Generator, ModulesResponse
from smwheel.build.sandbox import Bind, Sandbox, make_sandbox
from smwheel.environment import BuildEnvironment
from smwheel.errors import RecipeError
from smwheel.paths import cache_dir
from smwheel.plan import Host, Module, Plan, Resolution, Unit, digest, file_digest
from smwheel.prepare import Tree, make_plain_tree, make_tree
from smwheel.progress import Reporter, size
from smwheel.recipe import Build, FileSource, GitSource, RecipeVersion, Source, Stub
from smwheel.sources.bring import bring, bytes_to_fetch, stored, told
from smwheel.sources.git import known_commit, require_pin
from smwheel.sources.registry import fetch
from smwheel.sources.store import Store
from smwheel.toolchain import Toolchain, lock

OBJECTS_BYTES = 1 << 30
"""What objects, libraries and wheels of a large profile take (bytes)."""

EPOCH = "315532800"
"""SOURCE_DATE_EPOCH of every build: 1980-01-01, the first time that a zip can hold (seconds)."""


@dataclass(frozen=True)
class Options:
    """What steers a build but does not decide what is in the wheels."""

    offline: bool = False
    ask_tags: bool = False
    """Whether repositories are asked what their tags name even if that is known."""
    cuda_home: Path | None = None
    memory: int | None = None
    """Bytes that the build may use; None: what the machine gives."""
    jobs: int | None = None
    allow_network: bool = False
    work: Path = Path(".work")
    wheelhouse: Path = Path("wheelhouse")
    backend: str = "host"
    """Where it is compiled: `host`, `docker`, `podman` or `auto`."""
    base_image: str = ""
    """The base image asked for; for the program in a container the digest of the one that it runs on."""


@dataclass(frozen=True)
class Site:
    """Everything on disk that a build works with, and how its programs are started."""

    resolution: Resolution
    options: Options
    store: Store
    toolchain: Toolchain
    environment: BuildEnvironment
    tree: Tree
    sandbox: Sandbox
    work: Path
    asked: Path | None = None
    """A copy, in the work directory, of what says which modules are asked for (`--modules-from`)."""
    third_party: dict[str, Tree] = field(default_factory=dict)
    """What the package's own build would fetch, by its name there."""

    @property
    def build_id(self) -> str:
        """What every process of this build carries in its environment: no other work directory's build has it."""
        return f"{self.work.name}-{digest([str(self.work)])[:8]}"

    @property
    def build(self) -> Build:
        """How the recipe says that the tree is built."""
        assert self.resolution.data.build is not None  # noqa: S101 - the recipe's model demands it for compile
        return self.resolution.data.build

    @cached_property
    def variables(self) -> dict[str, str]:
        """The whole environment of generators and compilers; nothing of the user's comes through."""
        inside = self.sandbox.inside
        cuda, env = inside(self.toolchain.home), inside(self.environment.root)
        variables = {
            "PATH": f"{cuda}/bin:{env}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": inside(self.work / "home"),
            "TMPDIR": inside(self.work / "tmp"),
            "LC_ALL": "C.UTF-8",
            "CUDA_HOME": cuda,
            "CUDA_PATH": cuda,
            "SOURCE_DATE_EPOCH": EPOCH,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
        }
        if self.build.python_path:
            recipe = inside(self.resolution.recipe.directory)
            variables["PYTHONPATH"] = ":".join(f"{recipe}/{path}" for path in self.build.python_path)
        return variables | self.filled(self.build.environment)

    def filled(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Return a recipe's texts with this build's architecture and directories in their places."""
        arch, inside = self.resolution.arch, self.sandbox.inside
        values = {
            "arch": arch.code,
            "dotted": arch.dotted,
            "cuda": self.resolution.stack.cuda,
            "cuda_home": inside(self.toolchain.home),
            "work": inside(self.work),
        }
        return {name: text.format_map(values) for name, text in texts.items()}

    def request(self) -> dict[str, Any]:
        """Return what the generator is told about this build."""
        resolution, arch, inside = self.resolution, self.resolution.arch, self.sandbox.inside
        return {
            "recipe": resolution.recipe.name,
            "version": resolution.version,
            "source": inside(self.tree.path),
            "work": inside(self.work),
            "cuda_home": inside(self.toolchain.home),
            "cuda": resolution.stack.cuda,
            "arch": {
                "code": arch.code,
                "capability": arch.capability,
                "dotted": arch.dotted,
                "number": arch.number,
                "suffix": arch.suffix,
            },
            "profile": resolution.profile_table(),
            "modules": None if resolution.modules is None else list(resolution.modules),
            "modules_from": inside(self.asked) if self.asked else None,
            "profiles": {name: p.model_dump(exclude={"default"}) for name, p in resolution.data.profiles.items()},
            "exclusions": [exclusion.model_dump() for exclusion in resolution.data.exclusions],
            "options": resolution.data.generator,
        }

    def generator(self) -> Generator:
        """Return the recipe's generator, ready to be asked."""
        return Generator(
            script=self.resolution.recipe.directory / self.build.generator,
            python=self.environment.python,
            environment=self.variables,
            sandbox=self.sandbox,
            work=self.work,
            build_id=self.build_id,
            log=self.work / "log" / "generate.log",
        )

    @cached_property
    def scripts(self) -> str:
        """The digest of the recipe's scripts, which decide the units and the wheels' own Python files."""
        directory = self.resolution.recipe.directory
        return file_digest(*(path for path in directory.rglob("*") if path.suffix in (".py", ".txt", ".in", ".json")))


@dataclass(frozen=True)
class Prepared:
    """A plan and the site where it can be carried out."""

    plan: Plan
    site: Site


def sources_of(resolution: Resolution) -> list[Source]:
    """Return the sources that this build needs on this machine."""
    machine = os.uname().machine
    wanted = [source for source in resolution.data.sources if source.only in ("", machine)]
    if resolution.strategy == "thin":
        thin = resolution.data.thin
        return [source for source in wanted if thin is not None and source.id == thin.source]
    build = resolution.data.build
    tree = resolution.data.source(build.source).id if build is not None else ""
    needed = [source for source in wanted if source.id == tree or (isinstance(source, FileSource) and source.publish)]
    return [*needed, *resolution.data.third_party]


def fetch_sources(resolution: Resolution, store: Store, options: Options, reporter: Reporter) -> dict[str, Path]:
    """Bring every source into the store; return source id → stored file.

    Raises:
        RecipeError, NetworkError, SourceError, HashMismatchError: see `sources.bring`.
    """
    files = {}
    for source in sources_of(resolution):
        about = [size(source.size)] if not isinstance(source, GitSource) and source.size else []
        about += ["in the store"] if stored(source, store) else []
        reporter.stage("source", source.title + (f" ({', '.join(about)})" if about else ""))
        files[source.id] = bring(
            source, store, offline=options.offline, ask_tag=options.ask_tags, progress=reporter.download()
        )
        if isinstance(source, GitSource) and not source.commit:
            reporter.line(f"tag {source.tag} is commit {known_commit(source, store)}; from now on no other is taken")
    return files


def pinned(resolution: Resolution, store: Store) -> Resolution:
    """Return the resolution with the commits that its tags were locked to when they were fetched."""
    data = resolution.data
    changed = {
        "sources": [told(source, store) for source in data.sources],
        "third_party": [told(source, store) for source in data.third_party],
    }
    return replace(resolution, data=data.model_copy(update=changed))


def prepare(resolution: Resolution, options: Options, reporter: Reporter) -> Prepared:
    """Fetch, provision and ask the generator; return the whole plan.

    Raises:
        SmwheelError: of the kind of what is missing or wrong.
    """
    site = make_site(resolution, options, reporter)
    return Prepared(plan_of(site), site)


def plan_of(site: Site) -> Plan:
    """Ask the generator for modules and units, and return the plan that they complete.

    Raises:
        SystemNeedError: there is no compiler.
        BuildError: the generator failed.
        UsageError: nothing matches the modules that were asked for.
    """
    response = _modules(site)
    compiler, libc = system.require_compiler(), f"glibc {system.glibc_version()}"
    sandbox, tools = site.sandbox, site.toolchain
    paths = "fixed" if sandbox.fixed else digest([str(bind.real) for bind in sandbox.binds])
    return Plan(
        resolution=site.resolution,
        toolchain={"version": str(tools.version), "origin": tools.origin, "digest": tools.fingerprint},
        environment=site.environment.fingerprint,
        tree=site.tree.digest,
        generator=site.scripts if site.build.generator else rules_digest(site.resolution),
        host=Host(f"{compiler.version} {compiler.target}", libc, site.options.base_image, paths),
        modules=tuple(Module(m.name, m.family, m.library, tuple(m.units)) for m in response.modules),
        units=tuple(
            Unit(
                id=u.id,
                module=u.module,
                family=u.family,
                kind=u.kind,
                source=u.source,
                source_path=u.source_path,
                command=tuple(settled(u.command, u.kind)),
                inputs=tuple(u.inputs),
                output=u.output,
            )
            for u in response.units
        ),
        excluded=tuple((left.name, left.reason) for left in response.excluded),
        missing=tuple(response.missing),
        notes=tuple(response.notes),
    )


def make_site(resolution: Resolution, options: Options, reporter: Reporter) -> Site:
    """Bring everything that a build works with to this machine's cache and work directory.

    Raises:
        SmwheelError: of the kind of what is missing or wrong.
    """
    build = resolution.data.build
    assert build is not None  # noqa: S101 - the recipe's model demands it for compile
    cache = cache_dir()
    store = Store(cache / "store")
    announce(resolution, options, reporter)
    tools = _toolchain(resolution, options, reporter)
    files = fetch_sources(resolution, store, options, reporter)
    resolution = pinned(resolution, store)
    recipe_dir = resolution.recipe.directory
    requirements = requirements_of(resolution)
    env = environment.make(requirements_file=requirements, cache_root=cache, offline=options.offline, store=store)
    source = resolution.data.source(build.source)
    tree = make_tree(resolution.recipe, build, source, files[source.id], cache / "trees")
    third_party = {
        source.id: make_plain_tree(source, files[source.id], cache / "trees") for source in resolution.data.third_party
    }
    compiler, libc = system.require_compiler(), f"glibc {system.glibc_version()}"
    ground = [tree.digest, tools.fingerprint, compiler.version, compiler.target, libc, options.base_image]
    key = digest(ground if build.generator else [*ground, rules_digest(resolution)])[:12]
    work = (options.work / f"{resolution.recipe.name}-{resolution.version}-{resolution.arch}-{key}").absolute()
    for name in ("home", "tmp", "log"):
        (work / name).mkdir(parents=True, exist_ok=True)
    sandbox = make_sandbox(
        [
            Bind("tree", tree.path),
            Bind("cuda", tools.home),
            Bind("env", env.root),
            Bind("recipe", recipe_dir),
            Bind("work", work, writable=True),
            *(Bind(f"third-{name}", third.path) for name, third in third_party.items()),
        ],
        network=options.allow_network,
    )
    asked = keep_asked(resolution.modules_from, work) if resolution.modules_from else None
    return Site(resolution, options, store, tools, env, tree, sandbox, work, asked, third_party)


def requirements_of(resolution: Resolution) -> Path:
    """Return the locked requirements of a resolution's build environment."""
    build = resolution.data.build
    assert build is not None  # noqa: S101 - the recipe's model demands it for compile
    return resolution.recipe.directory / build.requirements.format(torch=resolution.stack.torch)


def toolchain_digests(resolution: Resolution, options: Options) -> list[str]:
    """Return the digests of the wheels that a provisioned toolkit is made of, stored; none for one that was given.

    Raises:
        ToolchainError: the CUDA release cannot be had.
        NetworkError, HashMismatchError, SourceError: a wheel that the store lost cannot be brought again.
    """
    described = toolchain.describe(
        cuda_home=options.cuda_home,
        components=resolution.data.toolchain.components,
        version_spec=f"=={resolution.stack.cuda}.*",
        cache_root=cache_dir(),
    )
    wheels = lock.load().wheels.values() if described.wheels else ()
    store = Store(cache_dir() / "store")
    return [
        fetch(wheel.project, wheel.filename, wheel.sha256, wheel.size, store, offline=options.offline).parent.name
        for wheel in wheels
        if wheel.filename in described.wheels
    ]


def rules_digest(resolution: Resolution) -> str:
    """Return the digest of what the recipe says of a PEP 517 build, the texts of its stubs among it.

    Raises:
        RecipeError: a stub that the recipe names is not there.
    """
    data, directory = resolution.data, resolution.recipe.directory
    stubs = stubs_of(data)
    for stub in stubs:
        if not (directory / stub.file).is_file():
            raise RecipeError(f"names {stub.file}, and there is no such file", where=str(directory / "recipe.toml"))
    assert data.build is not None  # noqa: S101 - the recipe's model demands it for compile
    texts = [(directory / stub.file).read_text(encoding="utf-8") for stub in stubs]
    return digest([data.build.model_dump(), [stub.model_dump() for stub in stubs], texts])


def stubs_of(data: RecipeVersion) -> list[Stub]:
    """Return the stubs that stand in for libraries that a PEP 517 build leaves out."""
    return [*(data.thin.stubs if data.thin else ()), *(data.build.stubs if data.build else ())]


def download_size(resolution: Resolution, options: Options) -> tuple[int, int]:
    """Return the bytes still to fetch for a build, and the bytes that it will take on disk, before fetching any.

    Raises:
        ToolchainError: the CUDA release cannot be had.
    """
    store = Store(cache_dir() / "store")
    missing = sum(bytes_to_fetch(source, store) for source in sources_of(resolution))
    if resolution.strategy == "thin":
        files = [source for source in sources_of(resolution) if isinstance(source, FileSource)]
        return missing, missing + 2 * sum(source.size for source in files)
    tools = toolchain.describe(
        cuda_home=options.cuda_home,
        components=resolution.data.toolchain.components,
        version_spec=f"=={resolution.stack.cuda}.*",
        cache_root=cache_dir(),
    )
    unpacked = sum(source.unpacked for source in sources_of(resolution) if source.kind == "sdist")
    return missing + tools.download, missing + tools.disk + unpacked + OBJECTS_BYTES


def announce(resolution: Resolution, options: Options, reporter: Reporter) -> None:
    """Say what will be fetched before it is, and see that there is room for it and for what is made.

    Raises:
        SystemNeedError: a compiler, something that the recipe needs, or disk space is missing.
        RecipeError: a source has no pin.
        ToolchainError: the CUDA release cannot be had.
    """
    if resolution.strategy == "compile":
        build = resolution.data.build
        system.require_needs(resolution.data.system, build.environment if build else {})
    for source in sources_of(resolution):
        if isinstance(source, GitSource):
            require_pin(source)
    fetch, disk = download_size(resolution, options)
    if fetch:
        reporter.stage("download", f"{size(fetch)} to fetch; {size(disk)} of disk needed")
    system.require_disk(cache_dir(), disk)


def _toolchain(resolution: Resolution, options: Options, reporter: Reporter) -> Toolchain:
    needs = resolution.data.toolchain
    tools = toolchain.find(
        cuda_home=options.cuda_home,
        components=needs.components,
        headers=needs.headers,
        libraries=needs.libraries,
        version_spec=f"=={resolution.stack.cuda}.*",
        cache_root=cache_dir(),
        offline=options.offline,
        progress=reporter.download(),
    )
    reporter.stage("toolchain", f"CUDA {tools.version} ({tools.origin})")
    return tools


def _modules(site: Site) -> ModulesResponse:
    """Ask the generator, or take its answer to the very same question from the work directory.

    Without a generator nobody can be asked before the package's own build is configured.
    """
    if not site.build.generator:
        return ModulesResponse(protocol=PROTOCOL, modules=[], units=[])
    question = [site.request(), site.variables, site.environment.fingerprint, site.toolchain.fingerprint,
                site.tree.digest, site.scripts]  # fmt: skip
    kept = site.work / f"modules-{digest(question)[:16]}.json"
    if kept.is_file():
        try:
            return ModulesResponse.model_validate_json(kept.read_bytes())
        except ValidationError:
            kept.unlink()
    response = site.generator().modules(site.request())
    if not response.modules:
        raise nothing_matches(site.resolution, response)
    temporary = kept.with_suffix(".new")
    temporary.write_text(response.model_dump_json(by_alias=True), encoding="utf-8")
    temporary.replace(kept)
    return response


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the plan as evidence keeps it: its content and fingerprint."""
    return plan.content() | {"fingerprint": plan.fingerprint}


def plan_json(plan: Plan) -> str:
    """Return the plan as the text that goes into a wheel's dist-info; the same wherever the bytes are the same."""
    return json.dumps(plan_document(plan), indent=1, ensure_ascii=False) + "\n"
