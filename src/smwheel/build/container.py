"""The container backend: the same program carries out the same plan in a container that can reach nothing.

Two containers a recipe. The first has a network and the cache, and brings what the build needs: sources, toolchain,
and a build environment made with the image's own Python; no code of the recipe runs in it. The second has no network,
a read-only root, no capabilities, limits on memory and CPUs, and can write to its work directory alone; every directory
of the build is mounted at its fixed path. What it made is looked at again outside before it enters the wheelhouse.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smwheel import stack
from smwheel.build.builderimage import builder_image, certificates, local_places, pip_configuration
from smwheel.build.contained import adopt, as_error
from smwheel.build.engine import LABEL, Engine, Image
from smwheel.build.sandbox import FIXED_ROOT
from smwheel.errors import BuildError, ContainerError, OutOfMemoryError
from smwheel.estimate import ledger
from smwheel.governor.limits import Limits, measure
from smwheel.locks import locked
from smwheel.paths import cache_dir, data_dir
from smwheel.pipeline import Options
from smwheel.plan import Resolution, digest
from smwheel.progress import Reporter, size
from smwheel.recipe import recipes_dir
from smwheel.sources.settings import pip_settings
from smwheel.wheelhouse import Entry, Wheelhouse

BASE_VARIABLE = "SMWHEEL_BASE_IMAGE"
"""Environment variable that tells the program inside which base image it runs on."""

PROGRAM = "/opt/smwheel"
STATE = "/var/smwheel"
CACHED = ("environments", "store", "toolchains", "trees")
"""What of the cache a build reads; it is mounted read-only while code of a recipe runs."""

_NOBODY = 65532
"""Who builds when root asks for it: an id that no system gives to a person."""

_KILLED = 137
_LOCK_SECONDS = 2.0

_REAPER = 'cat >/dev/null; exec "$@" >/dev/null 2>&1'
"""Waits until whoever holds the other end of its standard input is gone, however that happened; then removes."""


@dataclass(frozen=True)
class Mount:
    """A directory or file of this machine in a container."""

    source: Path
    target: str
    writable: bool = False

    def arguments(self) -> list[str]:
        """Return the options of the engine's command line."""
        source = f"source={self.source}"
        if set(source) & set(',"\n'):  # the option is a line of CSV
            source = '"' + source.replace('"', '""') + '"'
        kind = f"type=bind,{source},target={self.target}"
        return ["--mount", kind if self.writable else f"{kind},readonly"]


@dataclass(frozen=True)
class Backend:
    """An engine and the base image that builds run on."""

    engine: Engine
    base: Image

    def __str__(self) -> str:
        return f"{self.engine}, base {self.base.digest}"


@dataclass(frozen=True)
class Ended:
    """How a container ended: what it printed on its standard output, its code, and whether memory ran out in it."""

    output: str
    code: int
    out_of_memory: bool


def build_contained(resolution: Resolution, options: Options, backend: Backend, reporter: Reporter) -> list[Entry]:
    """Build a recipe in a container into the wheelhouse and return the entries.

    Raises:
        ContainerError: the engine refuses.
        LockedError: another live build works on the same recipe, architecture and base.
        OutOfMemoryError: the container's memory limit ended the build.
        SmwheelError: whatever the build inside ended with, its paths as they are on this machine.
    """
    image = builder_image(backend.engine, backend.base, resolution.arch, reporter)
    limits = measure(options.memory, options.jobs)
    options.work.mkdir(parents=True, exist_ok=True)
    key = digest([resolution.name, resolution.arch.code, backend.base.digest])[:12]
    with locked(options.work.absolute() / f"container-{key}.lock", timeout=_LOCK_SECONDS):
        job = Job(resolution, options, backend, image, limits, reporter)
        job.clear()
        fetched = job.fetch()
        return job.build(fetched)


@dataclass(frozen=True)
class Job:
    """One recipe's two containers."""

    resolution: Resolution
    options: Options
    backend: Backend
    image: Image
    limits: Limits
    reporter: Reporter

    @property
    def _label(self) -> str:
        """What tells this build's containers from those of other builds."""
        return f"{LABEL}={self.options.work.absolute()}/{self.resolution.name.replace(' ', '-')}-{self.resolution.arch}"

    def clear(self) -> None:
        """Remove what a build that was killed together with its reaper left behind."""
        engine = self.backend.engine
        for container in engine.call("ps", "--all", "--quiet", "--filter", f"label={self._label}").split():
            engine.remove(container)

    def fetch(self) -> Fetched:
        """Bring what the build needs into the cache, in a container with a network."""
        cache, work = cache_dir(), self.options.work.absolute()
        cache.mkdir(parents=True, exist_ok=True)
        settings, scratch = pip_settings(), work / "pip.conf"
        scratch.write_text(pip_configuration(settings, local=True), encoding="utf-8")
        mounts = [
            *self._program(),
            Mount(cache, f"{STATE}/cache", writable=True),
            Mount(work, f"{STATE}/work", writable=True),
            Mount(scratch, "/etc/pip.conf"),
            *(Mount(place, str(place)) for place in local_places(settings)),
        ]
        variables = {"PIP_CONFIG_FILE": "/etc/pip.conf"}
        if trusted := certificates(settings):
            mounts.append(Mount(trusted.resolve(), f"{STATE}/ca.crt"))
            variables |= dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"), f"{STATE}/ca.crt")
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        command = ["fetch", *self._wish(), "--work", f"{STATE}/work", "--json"]
        if self.options.offline:
            command.append("--offline")
        ended = self._run(command, mounts, variables | proxies, network="host", user=_caller(), limit=False)
        (found,) = self.result(ended, mounts)["fetched"].values()
        return Fetched.of(found["binds"], mounts)

    def build(self, fetched: Fetched) -> list[Entry]:
        """Build with no network from what was fetched; admit what was made."""
        home = fetched.work
        made = home.with_name(f"{home.name}-made")
        made.mkdir(exist_ok=True)
        shared = cache_dir()
        cached = [Mount(shared / name, f"{STATE}/cache/{name}") for name in CACHED if (shared / name).is_dir()]
        with _lent_cache(home.parent, self.reporter) as lent:
            for mount in cached:
                (lent / mount.source.name).mkdir()  # mount points: an engine would make them as root
            _own(home, *home.iterdir(), made, lent, *lent.iterdir())
            mounts = [
                *self._program(),
                Mount(lent, f"{STATE}/cache", writable=True),
                *cached,
                Mount(home, f"{STATE}/work/{home.name}", writable=True),
                Mount(made, f"{STATE}/wheelhouse", writable=True),
                *fetched.mounts,
            ]
            command = ["build", *self._wish(), *self._selection(), "--work", f"{STATE}/work"]
            command += ["--wheelhouse", f"{STATE}/wheelhouse", "--offline", "--json"]
            if self.options.jobs:
                command += ["--jobs", str(self.options.jobs)]
            network = "host" if self.options.allow_network else "none"
            ended = self._run(command, mounts, {}, network=network, user=_builder(self.backend.engine), limit=True)
        result = self.result(ended, mounts)
        if ended.out_of_memory:
            self.reporter.line("the memory limit ended a process of the container; its unit was run again")
        entries = [Entry(**entry) for entry in result["wheels"]]
        wheelhouse = Wheelhouse(self.options.wheelhouse)
        evidence = self._evidence(ended)
        return [
            adopt(made, entry, self.resolution, wheelhouse, container=evidence, reporter=self.reporter)
            for entry in entries
        ]

    def _program(self) -> list[Mount]:
        """Return the mounts of smwheel itself and of the files that this build names."""
        package = Path(__file__).resolve().parent.parent
        mounts = [
            Mount(package, f"{PROGRAM}/src/smwheel"),
            Mount(recipes_dir().resolve(), f"{PROGRAM}/recipes"),
            Mount((data_dir() / "patches").resolve(), f"{PROGRAM}/patches"),
        ]
        if self.resolution.stack.environment:
            # Its Python and links lead to places that no container has: what was read of it goes in, not itself.
            told = self.options.work.absolute() / f"stack-{digest(self.resolution.stack.model_dump())[:12]}.json"
            stack.write(self.resolution.stack, told)
            mounts.append(Mount(told, f"{STATE}/stack.json"))
        if self._given:
            mounts.append(Mount(self.resolution.recipe.directory, f"{STATE}/recipe"))
        if self.resolution.modules_from:
            mounts.append(Mount(self.resolution.modules_from.resolve(), f"{STATE}/asked"))
        if self.options.cuda_home:
            mounts.append(Mount(self.options.cuda_home.resolve(), f"{STATE}/cuda"))
        return mounts

    @property
    def _given(self) -> bool:
        """Whether the recipe lies somewhere else than smwheel's own."""
        return not self.resolution.recipe.directory.is_relative_to(recipes_dir().resolve())

    def _wish(self) -> list[str]:
        """Return the resolution as arguments of the program inside."""
        resolution = self.resolution
        name = f"{STATE}/recipe" if self._given else resolution.recipe.name
        versions = f"{stack.FROM}{STATE}/stack.json" if resolution.stack.environment else resolution.stack.name
        arguments = [name, "--arch", resolution.request.code, "--stack", versions]
        arguments += ["--strategy", resolution.strategy]
        if self.options.cuda_home:
            arguments += ["--cuda-home", f"{STATE}/cuda"]
        return arguments

    def _selection(self) -> list[str]:
        """Return which modules are built as arguments of the program inside."""
        resolution = self.resolution
        if resolution.modules:
            return ["--modules", ",".join(resolution.modules)]
        if resolution.modules_from:
            return ["--modules-from", f"{STATE}/asked"]
        return ["--profile", resolution.profile] if resolution.profile else []

    def _run(
        self,
        command: list[str],
        mounts: list[Mount],
        variables: dict[str, str],
        *,
        network: str,
        user: str,
        limit: bool,
    ) -> Ended:
        """Run the program in a container of its own to its end; the container is gone afterwards, whatever happens."""
        variables = {
            "HOME": "/tmp",  # noqa: S108 - of the container
            "PYTHONDONTWRITEBYTECODE": "1",
            "SMWHEEL_CACHE": f"{STATE}/cache",
            BASE_VARIABLE: self.backend.base.digest,
            **variables,
        }
        arguments = ["--init", "--label", self._label, "--network", network, "--user", user]
        arguments += ["--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp:mode=1777,size=1g"]  # noqa: S108
        if self.backend.engine.name == "podman":
            arguments += [*_ulimits(), "--read-only-tmpfs=false"]  # else /run and /var/tmp can be written too
            if self.backend.engine.rootless:
                arguments += ["--userns", "keep-id"]
        if limit:
            memory = str(self.limits.memory)
            arguments += [
                "--cap-drop",
                "ALL",
                "--memory",
                memory,
                "--memory-swap",
                memory,
                "--cpus",
                str(self.limits.jobs),
            ]
        for mount in mounts:
            arguments += mount.arguments()
        for name, value in variables.items():
            arguments += ["--env", f"{name}={value}"]
        return run_container(self.backend.engine, [*arguments, self.image.id, "smwheel", *command])

    def result(self, ended: Ended, mounts: list[Mount]) -> dict[str, Any]:
        """Return the JSON document that the program inside ended with, or raise the error that it amounts to."""
        try:
            found = json.loads(ended.output)
        except ValueError:
            found = {}
        said = next(iter(found.get("failures", {}).values()), None) or (found if "error" in found else None)
        if said is not None:
            error = as_error({key: outside(value, mounts) for key, value in said.items()})
            ours = ended.out_of_memory and type(error) in (BuildError, OutOfMemoryError)
            raise self._out_of_memory(error.message) if ours else error
        if ended.code == 0 and found:
            return dict(found)
        if ended.out_of_memory:
            raise self._out_of_memory("the program itself was ended")
        if ended.code == _KILLED:
            raise ContainerError("the container was killed from outside", cure="run the same command again")
        raise ContainerError(f"the program inside ended with code {ended.code} and said nothing that can be read")

    def _out_of_memory(self, what: str) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"the container's limit of {size(self.limits.memory)} was reached: {what}",
            where=self.limits.memory_source,
            cure="give more with --memory; what was finished is kept",
        )

    def _evidence(self, ended: Ended) -> dict[str, Any]:
        engine, base = self.backend.engine, self.backend.base
        return {
            "engine": engine.name,
            "version": engine.version,
            "rootless": engine.rootless,
            "base": base.digest,
            "base_id": base.id,
            "image": self.image.id,
            "memory": self.limits.memory,
            "cpus": self.limits.jobs,
            "network": "host" if self.options.allow_network else "none",
            "user": _builder(engine),
            "out_of_memory": ended.out_of_memory,
        }


@dataclass(frozen=True)
class Fetched:
    """Where on this machine lies what the build will see at its fixed paths."""

    work: Path
    mounts: tuple[Mount, ...]

    @classmethod
    def of(cls, binds: dict[str, dict[str, Any]], mounts: list[Mount]) -> Fetched:
        """Return it from the binds that the fetching program printed; what lies in the image needs no mount."""
        found = []
        for name, bind in binds.items():
            text = outside(bind["path"], mounts)
            if text != bind["path"]:
                found.append(Mount(Path(text), f"{FIXED_ROOT}/{name}", writable=bind["writable"]))
        return cls(Path(outside(binds["work"]["path"], mounts)), tuple(found))


def outside(text: Any, mounts: list[Mount]) -> Any:
    """Return a text of the program inside with the paths that are mounted as they are on this machine."""
    if not isinstance(text, str):
        return text
    for mount in sorted(mounts, key=lambda mount: -len(mount.target)):
        text = text.replace(mount.target + "/", f"{mount.source}/")
        if text.endswith(mount.target):
            text = text.removesuffix(mount.target) + str(mount.source)
    return text


def run_container(engine: Engine, arguments: list[str]) -> Ended:
    """Create a container, run it to its end with its progress on our standard error, and remove it.

    Raises:
        ContainerError: the engine did not create or start it.
    """
    name = f"smwheel-{secrets.token_hex(6)}"
    with _reaped(engine, name):
        engine.call("create", "--name", name, *arguments, where=f"{engine.name} create")
        done = subprocess.run(
            engine.command("start", "--attach", name),
            env=engine.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            start_new_session=True,  # Ctrl-C is ours: the container is removed, not asked
        )
        state = engine.state(name)
        if state.get("Error"):
            raise ContainerError(state["Error"], where=f"{engine.name} start")
        return Ended(done.stdout, int(state["ExitCode"]), bool(state["OOMKilled"]))


@contextmanager
def _reaped(engine: Engine, name: str) -> Iterator[None]:
    """Have a container removed at the end of the block, and also when this process is killed before."""
    command = engine.command("rm", "--force", "--volumes", name)
    with subprocess.Popen(
        ["sh", "-c", _REAPER, "smwheel-reaper", *command],
        env=engine.variables,
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as reaper:
        try:
            yield
        finally:
            assert reaper.stdin is not None  # noqa: S101 - a pipe was asked for
            reaper.stdin.close()


@contextmanager
def _lent_cache(folder: Path, reporter: Reporter) -> Iterator[Path]:
    """Give a build a cache of its own with a copy of the ledger of costs, and take over what it learned.

    Code of a recipe can reach the copy, so it is only read as what it should be, and not through a link.
    """
    kept = ledger()
    with tempfile.TemporaryDirectory(dir=folder, prefix="cache-") as scratch:
        lent, copy = Path(scratch), Path(scratch) / "costs.sqlite"
        with closing(sqlite3.connect(kept.path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        lent.chmod(0o755)
        try:
            yield lent
        finally:
            try:
                if copy.is_file() and not copy.is_symlink():
                    kept.merge(copy)
            except sqlite3.Error as error:
                reporter.warn(f"what the build's units took was not kept: {error}")


def _ulimits() -> list[str]:
    """Return options that keep podman within this machine's own limits.

    By itself it asks for 1,048,576 open files, which fails where root may not raise limits (no CAP_SYS_RESOURCE).
    """
    arguments = []
    for name, kind, most in (("nofile", resource.RLIMIT_NOFILE, 1 << 20), ("nproc", resource.RLIMIT_NPROC, 1 << 15)):
        hard = resource.getrlimit(kind)[1]
        value = most if hard == resource.RLIM_INFINITY else min(hard, most)
        arguments += ["--ulimit", f"{name}={value}:{value}"]
    return arguments


def _caller() -> str:
    return f"{os.geteuid()}:{os.getegid()}"


def _builder(engine: Engine) -> str:
    """Return who builds inside: the caller, but nobody for root, except where root inside is the caller outside."""
    if engine.rootless:
        return "0:0" if engine.name == "docker" else _caller()
    return f"{_NOBODY}:{_NOBODY}" if os.geteuid() == 0 else _caller()


def _own(*paths: Path) -> None:
    """Give what a build writes to who builds, when that is another than who asks for it."""
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)
