"""A package that builds itself: its own PEP 517 backend, in the sandbox, with every compiler under the governor.

What upstream's build would decide for itself is decided by the recipe: third parties come from the store, the
launcher leaves one architecture on nvcc's command lines, and only targets that the architecture can use are built.
Always a wheel, never an editable install: that puts no library in place.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pyproject_hooks import BuildBackendHookCaller

from smwheel.build import configuring
from smwheel.build.gate import admit
from smwheel.build.sandbox import BUILD_ID, die_with_parent, kill_survivors
from smwheel.environment import read_locked
from smwheel.errors import ArchError, BuildEnvironmentError, RecipeError, SourceError, VerifyError
from smwheel.estimate import ledger, ledger_key
from smwheel.governor.limits import measure
from smwheel.governor.policy import LaunchPolicy
from smwheel.governor.session import Governor
from smwheel.governor.trace import read_events
from smwheel.locks import locked
from smwheel.pipeline import Prepared, Site, plan_json, stubs_of
from smwheel.plan import Resolution
from smwheel.progress import Reporter, duration
from smwheel.verify.expectations import from_resolution
from smwheel.wheelhouse import Entry, Wheelhouse
from smwheel.wheels.fatbin import Kind, code_of
from smwheel.wheels.repair import read_facts, repair_wheel
from smwheel.wheels.wheelfile import Wheel, rewrite_wheel

CMAKE_BACKEND = "scikit_build_core.build"
"""The backend that takes CMake's variables and targets as settings."""

LOCK_SECONDS = 2.0
"""How long a second build of the same work directory waits before it says who holds it."""

_TRIALS = ("CMakeScratch", "CMakeTmp", "CompilerId", "cmTC_", "a.out")
"""What the units of CMake's own trials are named after."""


@dataclass(frozen=True)
class Built:
    """A wheel as the backend made it, what the governor counted, and the seconds it took."""

    wheel: Path
    counts: dict[str, Any]
    seconds: float


def build_pep517(prepared: Prepared, reporter: Reporter) -> list[Entry]:
    """Build the package's wheel into the wheelhouse and return its entry.

    Raises:
        LockedError: another live build works on the same tree and architecture.
        BuildEnvironmentError: the package asks for something to build with that the recipe does not lock.
        BuildError: configuring or a unit failed; says the innermost cause.
        VerifyError, VerifyIncompleteError: the wheel is not what the plan says.
    """
    plan, site = prepared.plan, prepared.site
    wheelhouse = Wheelhouse(site.options.wheelhouse)
    if made := wheelhouse.made_from(plan.fingerprint):
        reporter.stage("unchanged", f"{plan.resolution.name} is in the wheelhouse as this plan makes it")
        return made
    with locked(site.work / "lock", timeout=LOCK_SECONDS):
        if killed := kill_survivors(site.build_id):
            reporter.line(f"ended {killed} processes that an earlier run of this build left behind")
        built = compile_wheel(prepared, reporter)
        with tempfile.TemporaryDirectory(dir=site.work / "tmp") as scratch:
            finished = _finish(prepared, built.wheel, Path(scratch), reporter)
            entry = admit(
                finished,
                plan,
                from_resolution(plan.resolution),
                wheelhouse=wheelhouse,
                reporter=reporter,
                holds=_code_of(finished, Path(scratch)),
                evidence={
                    "build.json": built.counts
                    | {"compile_seconds": round(built.seconds, 1), "libraries": _libraries(finished, plan.resolution)}
                },
                logs=sorted((site.work / "log").glob("*.log")),
            )
    reporter.line(f"compiled in {duration(built.seconds)}")
    wheelhouse.complete(plan.fingerprint, [entry])
    return [entry]


def compile_wheel(prepared: Prepared, reporter: Reporter, *, policy: LaunchPolicy | None = None) -> Built:
    """Have the package's backend build its wheel; `policy` is the target's own unless another is given.

    Raises:
        BuildEnvironmentError, BuildError: see `build_pep517`.
    """
    begun = time.monotonic()
    site = prepared.site
    source = _private_copy(site.tree.path, site.work / "source") / site.build.directory
    backend = _backend(source, site)
    settings = _settings(site, backend["build-backend"])
    governor = Governor(
        measure(site.options.memory, site.options.jobs),
        {},
        site.work,
        ledger=ledger().path,
        build=ledger_key(prepared.plan),
        build_id=site.build_id,
        policy=policy or LaunchPolicy.for_arch(site.resolution.arch),
        on_event=lambda event: _say(event, reporter),
    )
    reporter.stage("compile", f"{site.resolution.name} with {backend['build-backend']}")
    shutil.rmtree(site.work / "dist", ignore_errors=True)
    (site.work / "dist").mkdir()
    log = site.work / "log" / "compile.log"
    with governor:
        runner = _Runner(site, _environment(site, governor), log)
        hooks = BuildBackendHookCaller(
            str(source),
            backend["build-backend"],
            backend.get("backend-path"),
            runner=runner,
            python_executable=site.sandbox.inside(site.environment.python),
        )
        try:
            with _exchanging_in(site.work / "tmp"):
                name = hooks.build_wheel(site.sandbox.inside(site.work / "dist"), settings)
        except subprocess.CalledProcessError as error:
            raise configuring.failure(log, error.returncode, third_party=site.third_party) from None
    assert governor.summary is not None  # noqa: S101 - set when the governor's block ends
    counts = {
        "governor": governor.summary.as_json(),
        "network": "allowed" if site.sandbox.network else "none",
        **count(read_events(governor.events_path), governor.compiles_path),
    }
    return Built(site.work / "dist" / name, counts, time.monotonic() - begun)


def count(events: Iterable[Mapping[str, Any]], compiles: Path) -> dict[str, Any]:
    """Return how many units there were, how many of them hold GPU code, and for how many architectures each.

    Of the run that the files are of: what an interrupted run finished before is not in them. A unit that was compiled
    twice is one, and CMake's own trials are not counted.
    """
    finished = [event for event in events if event["event"] == "finished" and not _is_trial(event["unit"])]
    device = {
        one["unit"]: sorted(set(one["codes"]))
        for one in configuring.read_lines(compiles)
        if one["codes"] and not _is_trial(one["unit"])
    }
    by_code = Counter(code for codes in device.values() for code in codes)
    return {
        "units": len({event["unit"] for event in finished}),
        "device_units": len(device),
        "device_compilations": sum(by_code.values()),
        "device_compilations_by_code": dict(sorted(by_code.items())),
        "cpu_seconds": round(sum(event["cpu"] for event in finished), 1),
    }


def _is_trial(unit: str) -> bool:
    return any(
        part in unit
        for part in ("CMakeScratch", "CMakeTmp", "CompilerId", "cmTC_", "a.out", "CMakeFiles/4.", "CMakeFiles/3.")
    )


@contextmanager
def _exchanging_in(directory: Path) -> Iterator[None]:
    """Have the files that a hook is asked and answers with in a directory that it may write to."""
    before, tempfile.tempdir = tempfile.tempdir, str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before


class _Runner:
    """Runs a hook of the backend in the sandbox; everything printed goes to the log."""

    def __init__(self, site: Site, environment: dict[str, str], log: Path) -> None:
        self._site, self._environment, self._log = site, environment, log

    def __call__(
        self, cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        site = self._site
        wrapped = site.sandbox.wrap([site.sandbox.inside(word) for word in cmd], cwd=Path(cwd or site.work))
        with self._log.open("ab") as sink:
            done = subprocess.run(
                wrapped,
                env=self._environment | dict(extra_environ or {}) | {BUILD_ID: site.build_id},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                check=False,
                preexec_fn=die_with_parent,
            )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, list(cmd))


def _backend(source: Path, site: Site) -> dict[str, Any]:
    """Return the package's build-system table, whose requirements must all be locked.

    Raises:
        SourceError: there is no such table.
        BuildEnvironmentError: a requirement is missing, or locked in a version that does not do.
    """
    try:
        table = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
        requires = [Requirement(text) for text in table["requires"]]
        table["build-backend"]
    except (OSError, KeyError, ValueError) as error:
        raise SourceError(
            f"its pyproject.toml has no usable [build-system] table ({error})", where=site.resolution.name
        ) from error
    name = site.build.requirements.format(torch=site.resolution.stack.torch)
    lock = read_locked(site.resolution.recipe.directory / name)
    for requirement in requires:
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        version = lock.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            raise BuildEnvironmentError(
                f"the package asks for {requirement} to be built with, and the recipe locks {version or 'none'}",
                where=name,
                cure=f"add {requirement} to the recipe's build requirements and lock them again",
            )
    return dict(table)


def _settings(site: Site, backend: str) -> dict[str, Any]:
    """Return the settings that the backend is given.

    Raises:
        RecipeError: the recipe has CMake's variables or targets for a backend that does not take them.
    """
    build = site.build
    targets = _targets(site)
    if backend != CMAKE_BACKEND:
        if build.defines or build.targets or site.third_party:
            raise RecipeError(
                f"has defines, targets or third parties, and the package's backend {backend} takes none",
                where=site.resolution.name,
                cure="say them in build.environment, as that backend reads them",
            )
        return {}
    inside = site.sandbox.inside
    defines = {
        "CMAKE_CUDA_ARCHITECTURES": site.resolution.arch.cmake,
        "FETCHCONTENT_FULLY_DISCONNECTED": "ON",
        # Without it CMake goes on as if nothing had been asked for, and the compiler finds that a header is missing.
        "CMAKE_POLICY_DEFAULT_CMP0170": "NEW",
        **{f"FETCHCONTENT_SOURCE_DIR_{name.upper()}": inside(path) for name, path in _third_party(site).items()},
        **site.filled(build.defines),
    }
    return {
        "build-dir": inside(site.work / "cmake"),
        "build.verbose": "true",
        **({"build.targets": ";".join(targets)} if targets else {}),
        **{f"cmake.define.{name}": value for name, value in defines.items()},
    }


def _targets(site: Site) -> list[str]:
    """Return the CMake targets to build; none means all.

    Raises:
        ArchError: the recipe says for other architectures which targets they can use.
    """
    targets, number = site.build.targets, str(site.resolution.arch.number)
    if targets and number not in targets and "*" not in targets:
        raise ArchError(
            f"{site.resolution.name} is not compiled for {site.resolution.arch.sm}",
            where="--arch",
            cure=f"it is compiled for {', '.join(targets)}; --strategy thin cuts down the published wheel",
        )
    return targets.get(number, targets.get("*", []))


def _third_party(site: Site) -> dict[str, Path]:
    """Return where each third party's tree lies; one that the build writes into is a private copy."""
    writable = {source.id for source in site.resolution.data.third_party if source.writable}
    return {
        name: _private_copy(tree.path, site.work / "third" / name) if name in writable else tree.path
        for name, tree in site.third_party.items()
    }


def _private_copy(tree: Path, target: Path) -> Path:
    """Copy a tree into the work directory, once; the work directory is of one tree only."""
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = target.with_name(target.name + ".new")
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(tree, staging, symlinks=True)
        staging.rename(target)
    return target


def _environment(site: Site, governor: Governor) -> dict[str, str]:
    """Return the variables of the backend: the site's own, with every compiler behind the launcher."""
    inside = site.sandbox.inside
    governed = governor.environment(cuda_home=site.toolchain.home, seen=inside)
    path = f"{inside(governor.directory / 'cuda' / 'bin')}:{site.variables['PATH']}"
    return site.variables | governed | {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def _say(event: Mapping[str, Any], reporter: Reporter) -> None:
    """Pass on what the governor warns of."""
    if event["event"] in ("warning", "killed"):
        reporter.warn(str(event.get("text") or event))


def _finish(prepared: Prepared, wheel: Path, scratch: Path, reporter: Reporter) -> Path:
    """Add the stubs, leave out what thinning does, graft what nobody else brings, write version, tags and plan.

    Raises:
        VerifyError: it is a wheel of another version than the recipe says.
    """
    plan, resolution = prepared.plan, prepared.plan.resolution
    with Wheel(wheel) as opened:
        members, version = list(opened.members), opened.name.version
    if version.public != Version(resolution.version).public:
        raise VerifyError(
            f"the source builds version {version}, and the recipe says {resolution.version}",
            where=wheel.name,
            cure="correct the commit or tag of the recipe's source",
        )
    drop = resolution.data.thin.drop if resolution.data.thin else {}
    left_out = [name for name in members if any(fnmatchcase(name, pattern) for pattern in drop)]
    stubs: dict[str, bytes | Path] = {}
    for stub in stubs_of(resolution.data):
        if not any(fnmatchcase(name, stub.replaces) for name in members):
            stubs[stub.path] = resolution.recipe.directory / stub.file
            reporter.line(f"{stub.path} stands in for {stub.replaces}: {stub.reason}")
    repaired = repair_wheel(wheel, scratch / "repaired", leave=_declared(resolution))
    return rewrite_wheel(
        repaired,
        scratch,
        version=plan.label,
        remove=left_out,
        replace=stubs | _torch_required(repaired, resolution.stack.torch, scratch),
        extra_dist_info={"plan.json": plan_json(plan).encode()},
    )


def _torch_required(wheel: Path, torch: str, scratch: Path) -> dict[str, bytes]:
    """Return METADATA with the torch that was built against, if the libraries need one and it names none."""
    with Wheel(wheel) as opened:
        name = f"{opened.dist_info}/METADATA"
        text = opened.read(name)
    head, blank, body = text.replace(b"\r\n", b"\n").partition(b"\n\n")
    stated = [line.partition(b":")[2].decode() for line in head.splitlines() if line.startswith(b"Requires-Dist:")]
    needed = {soname for facts in read_facts(wheel, scratch).values() for soname in facts.needed}
    names = [str(canonicalize_name(Requirement(one).name)) for one in stated]
    if "torch" in names or not any(soname.startswith("libtorch") for soname in needed):
        return {}
    minor = ".".join(map(str, Version(torch).release[:2]))
    return {name: head.rstrip(b"\n") + f"\nRequires-Dist: torch=={minor}.*".encode() + (blank or b"\n\n") + body}


def _libraries(wheel: Path, resolution: Resolution) -> dict[str, list[str]]:
    """Return which libraries beside torch's and CUDA's the wheel brings itself, and which it wants of the system."""
    with Wheel(wheel) as opened:
        grafted = [name for name in opened.members if name.partition("/")[0].endswith(".libs")]
    return {"grafted": grafted, "of the system": _declared(resolution)}


def _declared(resolution: Resolution) -> list[str]:
    return [need.library for need in resolution.data.system if need.stage == "run" and need.library]


def _code_of(wheel: Path, scratch: Path) -> dict[str, int]:
    """Return how many cubins a wheel holds for each architecture."""
    held: Counter[str] = Counter()
    with Wheel(wheel) as opened:
        for name in opened.members:
            if name.endswith(".so"):
                file = scratch / "library"
                file.write_bytes(opened.read(name))
                held.update({arch.code: n for (kind, arch), n in code_of(file).items() if kind is Kind.CUBIN})
    return dict(held)
