"""From a resolution to a plan: sources, toolchain, build environment, tree, modules and units.

Everything that needs the network happens here; what comes after runs without it.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from smwheel import environment, system, toolchain
from smwheel.build.commands import settled
from smwheel.build.generator import Generator, ModulesResponse
from smwheel.build.sandbox import Bind, Sandbox, make_sandbox
from smwheel.environment import BuildEnvironment
from smwheel.errors import UsageError
from smwheel.paths import cache_dir
from smwheel.plan import Host, Module, Plan, Resolution, Unit, digest, file_digest
from smwheel.prepare import Tree, make_tree
from smwheel.progress import Reporter, size
from smwheel.recipe import Build, Source
from smwheel.sources.registry import fetch
from smwheel.sources.store import Store
from smwheel.toolchain import Toolchain

ASKED_BYTES = 64 << 20
OBJECTS_BYTES = 1 << 30
"""What objects, libraries and wheels of a large profile take (bytes)."""

EPOCH = "315532800"
"""SOURCE_DATE_EPOCH of every build: 1980-01-01, the first time that a zip can hold (seconds)."""


@dataclass(frozen=True)
class Options:
    """What steers a build but does not decide what is in the wheels."""

    offline: bool = False
    cuda_home: Path | None = None
    memory: int | None = None
    """Bytes that the build may use; None: what the machine gives."""
    jobs: int | None = None
    allow_network: bool = False
    work: Path = Path(".work")
    wheelhouse: Path = Path("wheelhouse")
    base_image: str = ""


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
        arch = self.resolution.arch
        values = {"arch": arch.code, "dotted": arch.dotted, "cuda_home": cuda, "work": inside(self.work)}
        return variables | {name: text.format_map(values) for name, text in self.build.environment.items()}

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
    return [source for source in wanted if source.id == tree or source.publish]


def fetch_sources(resolution: Resolution, store: Store, options: Options, reporter: Reporter) -> dict[str, Path]:
    """Bring every source into the store; return source id → stored file.

    Raises:
        NetworkError, SourceError, HashMismatchError: see `sources.registry.fetch`.
    """
    files = {}
    for source in sources_of(resolution):
        known = store.path(source.sha256) is not None
        reporter.stage("source", f"{source.file} ({size(source.size)}{', in the store' if known else ''})")
        files[source.id] = fetch(
            source.project,
            source.file,
            source.sha256,
            source.size,
            store,
            offline=options.offline,
            progress=reporter.download(),
        )
    return files


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
    paths = "fixed" if sandbox.namespaces else digest([str(bind.real) for bind in sandbox.binds])
    return Plan(
        resolution=site.resolution,
        toolchain={"version": str(tools.version), "origin": tools.origin, "digest": tools.fingerprint},
        environment=site.environment.fingerprint,
        tree=site.tree.digest,
        generator=site.scripts,
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
    recipe_dir = resolution.recipe.directory
    env = environment.make(requirements_file=recipe_dir / build.requirements, cache_root=cache, offline=options.offline)
    source = resolution.data.source(build.source)
    tree = make_tree(resolution.recipe, build, source, files[source.id], cache / "trees")
    compiler, libc = system.require_compiler(), f"glibc {system.glibc_version()}"
    key = digest([tree.digest, tools.fingerprint, compiler.version, compiler.target, libc, options.base_image])[:12]
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
        ],
        network=options.allow_network,
    )
    asked = keep_asked(resolution.modules_from, work) if resolution.modules_from else None
    return Site(resolution, options, store, tools, env, tree, sandbox, work, asked)


def keep_asked(path: Path, work: Path) -> Path:
    """Copy a server's log, or the names in its JIT directory, to where a generator can read it; return the copy.

    The copy is named after its content, so that the same question is not asked twice.

    Raises:
        UsageError: there is no such file or directory, or the log is larger than 64 MiB.
    """
    if path.is_dir():
        names = sorted({found.relative_to(path) for end in ("*/*.ninja", "*/*.so") for found in path.glob(end)})
        kept = work / f"asked-{digest([str(name) for name in names])[:12]}"
        for name in names:
            (kept / name).parent.mkdir(parents=True, exist_ok=True)
            (kept / name).touch()
        kept.mkdir(exist_ok=True)
        return kept
    if not path.is_file():
        raise UsageError("there is no such file or directory", where=str(path))
    if path.stat().st_size > ASKED_BYTES:
        raise UsageError("a log of more than 64 MiB is not read", where=str(path), cure="cut out the server's start")
    kept = work / f"asked-{file_digest(path)[:12]}.log"
    shutil.copyfile(path, kept)
    return kept


def download_size(resolution: Resolution, options: Options) -> tuple[int, int]:
    """Return the bytes still to fetch for a build, and the bytes that it will take on disk, before fetching any.

    Raises:
        ToolchainError: the CUDA release cannot be had.
    """
    store = Store(cache_dir() / "store")
    missing = sum(source.size for source in sources_of(resolution) if store.path(source.sha256) is None)
    if resolution.strategy == "thin":
        return missing, missing + 2 * sum(source.size for source in sources_of(resolution))
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
        SystemNeedError: a compiler or disk space is missing.
        ToolchainError: the CUDA release cannot be had.
    """
    if resolution.strategy == "compile":
        system.require_compiler()
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
    """Ask the generator, or take its answer to the very same question from the work directory."""
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
        wanted = ", ".join(response.missing) or "the profile"
        raise UsageError(
            f"no module matches {wanted}", where=site.resolution.name, cure="smwheel plan lists all modules"
        )
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
