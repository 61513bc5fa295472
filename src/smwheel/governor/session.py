"""What a build uses of the governor: a context in which every compiler that it starts is admitted by the broker.

with Governor(measure(memory, jobs), predictions, work_dir) as governor:
    ninja(jobs=governor.ninja_jobs, command_prefix=governor.launcher_command(unit_id))
print(governor.summary)
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from smwheel.errors import BuildError
from smwheel.governor.client import launcher
from smwheel.governor.learning import learner_to_json
from smwheel.governor.ledger import Build
from smwheel.governor.limits import MIB, Limits
from smwheel.governor.prediction import Prediction
from smwheel.governor.shim import shim_compiler, shim_toolkit
from smwheel.governor.survivors import MARK
from smwheel.governor.trace import Event, Summary, read_events, summarize, write_trace

if TYPE_CHECKING:
    from smwheel.governor.policy import LaunchPolicy

# A launcher that waits holds about 4 MiB of its own, and the build system must have many waiting to choose from.
PARKED_BYTES = 5 * MIB
PARKED_MOST = 192  # or twice the cores
PARKED_SHARE = 0.08

# A machine that is very busy, or emulated, takes long to start a program.
START_SECONDS = 120.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.1


class Governor:
    """One build's governor. All its files are in `<work_dir>/governor`.

    `events.jsonl` there grows while the build runs: each line has `time`, `event` (`waiting`, `started`,
    `finished`, `killed`, `failed`, `lost`, `memory` or `warning`) and what belongs to it; what a person should
    hear of is in `text`. `trace.json` and `summary.json` are written at the end; `rewrites.jsonl` holds every
    change of a command line, `compiles.jsonl` the architectures that each run of nvcc compiles for.
    """

    def __init__(
        self,
        limits: Limits,
        predictions: Mapping[str, Prediction],
        work_dir: Path,
        *,
        families: Mapping[str, str] | None = None,
        ledger: Path | None = None,
        build: Build | None = None,
        build_id: str | None = None,
        policy: LaunchPolicy | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Prepare; nothing is started or written yet.

        Args:
            limits: what the build may use (`limits.measure`).
            predictions: unit → what it is expected to need, for all units that are known beforehand.
            work_dir: the build's own directory; units without a name are called after their output below it.
            families: unit → family, for what one unit tells of another.
            ledger: the SQLite file in which costs are kept, with `build` as their key; None keeps none.
            build: recipe, version, architecture, toolkit and flags of this build.
            build_id: the mark in the environment of every process of the build; made up if not given.
            policy: what is enforced on nvcc's command lines; None leaves them as they are.
            on_event: called with each event, from a thread.

        """
        self.limits = limits
        self.build_id = build_id or secrets.token_hex(8)
        self.directory = work_dir.resolve() / "governor"
        self.events_path = self.directory / "events.jsonl"
        self.rewrites_path = self.directory / "rewrites.jsonl"
        self.compiles_path = self.directory / "compiles.jsonl"
        self.summary: Summary | None = None
        self._work_dir = work_dir.resolve()
        self._predictions = dict(predictions)
        self._families = dict(families or {})
        self._ledger = ledger
        self._build = build
        self._policy = policy
        self._on_event = on_event
        self._server: subprocess.Popen[bytes] | None = None
        self._lock = -1
        self._ended = threading.Event()
        self._follower: threading.Thread | None = None

    @property
    def ninja_jobs(self) -> int:
        """The `-j` to give a build system: so many units wait at the broker that it has a choice."""
        affordable = int(self.limits.budget * PARKED_SHARE) // PARKED_BYTES
        return max(2, min(affordable, max(PARKED_MOST, 2 * self.limits.jobs)))

    @property
    def budget(self) -> int:
        """The bytes that units are admitted into: without what the waiting launchers take."""
        return self.limits.budget - self.ninja_jobs * PARKED_BYTES

    @property
    def alive(self) -> bool:
        """Whether the broker runs; without it units run one at a time."""
        return self._server is not None and self._server.poll() is None

    def launcher_command(self, unit_id: str | None = None) -> list[str]:
        """Return what to put before a unit's command; without an id the unit is named after its output."""
        program = [sys.executable, "-I", "-S", launcher.__file__, "--governor", str(self.directory)]
        return [*program, "--unit", unit_id, "--"] if unit_id else program

    def environment(
        self,
        *,
        cuda_home: Path | None = None,
        seen: Callable[[Path | str], str] = str,
        cxx: Path | None = None,
        cc: Path | None = None,
    ) -> dict[str, str]:
        """Return the variables that bring the launcher into CMake, torch's BuildExtension and everything else.

        With a toolkit (`cuda_home`), CUDA_HOME becomes one of links with a wrapped nvcc; with host compilers,
        CXX and CC become wrapped ones. A compiler that is wrapped twice is admitted once. `seen` says
        where compilers see a path, if they see it elsewhere.
        """
        jobs = str(self.ninja_jobs)
        launcher = [seen(word) for word in self.launcher_command()]
        variables = {
            MARK: self.build_id,
            "SMWHEEL_GOVERNOR": seen(self.directory),
            "MAX_JOBS": jobs,
            "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        }
        for language in ("C", "CXX", "CUDA"):
            variables[f"CMAKE_{language}_COMPILER_LAUNCHER"] = ";".join(launcher)
        if cuda_home is not None:
            shim = shim_toolkit(cuda_home, self.directory / "cuda", launcher, seen_as=Path(seen(cuda_home)))
            nvcc = seen(shim / "bin" / "nvcc")
            variables |= {"CUDA_HOME": seen(shim), "CUDA_PATH": seen(shim), "CUDACXX": nvcc, "PYTORCH_NVCC": nvcc}
        for name, compiler in (("CXX", cxx), ("CC", cc)):
            if compiler is not None:
                shim = shim_compiler(compiler, self.directory / "bin" / compiler.name, launcher)
                variables[name] = seen(shim)
        return variables

    @property
    def launcher_line(self) -> str:
        """The launcher as one shell word sequence, for a build system's own variable that takes a prefix."""
        return shlex.join(self.launcher_command())

    def shim_cuda_home(self, real: Path, destination: Path) -> Path:
        """Make a CUDA_HOME of links to `real` with a wrapped `bin/nvcc`; return it.

        Raises:
            ToolchainError: `real` is no toolkit.

        """
        return shim_toolkit(real, destination, self.launcher_command())

    def __enter__(self) -> Self:
        """Start the broker.

        Raises:
            BuildError: it does not start.

        """
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in (self.events_path, self.rewrites_path, self.compiles_path):
            path.unlink(missing_ok=True)
        self._lock = os.open(self.directory / "session.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._write("session.json", self._session())
        self._write("broker.json", self._configuration())
        log = (self.directory / "broker.log").open("wb")
        with log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "smwheel.governor.server", str(self.directory)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # An interrupt from the terminal must not end the broker before the build.
                start_new_session=True,
            )
        self._wait_until_open()
        self._follower = threading.Thread(target=self._follow, name="governor events", daemon=True)
        self._follower.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the broker and whatever still runs; write the trace and the summary."""
        assert self._server is not None  # noqa: S101  # entered before
        assert self._server.stdin is not None  # noqa: S101  # asked for as a pipe
        # First: a launcher that sees the broker end must see that the build is over.
        os.close(self._lock)
        self._server.stdin.close()
        try:
            self._server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._ended.set()
        if self._follower is not None:
            self._follower.join()
        events = read_events(self.events_path)
        self.summary = summarize(events, budget=self.budget, cores=self.limits.jobs)
        write_trace(events, self.directory / "trace.json", budget=self.budget, memory=self.limits.memory)
        self._write("summary.json", self.summary.as_json())

    def _session(self) -> dict[str, Any]:
        """Return what the launchers read."""
        return {
            "build": self.build_id,
            "root": str(self._work_dir),
            "policy": self._policy.as_json() if self._policy else None,
        }

    def _configuration(self) -> dict[str, Any]:
        """Return what the broker reads."""
        return {
            "build": self.build_id,
            "budget": self.budget,
            "limits": self.limits.as_json(),
            "learning": learner_to_json(self._predictions, self._families, self._ledger, self._build),
        }

    def _write(self, name: str, value: dict[str, Any]) -> None:
        temporary = self.directory / f"{name}.new"
        temporary.write_text(json.dumps(value), encoding="utf-8")
        temporary.replace(self.directory / name)

    def _wait_until_open(self) -> None:
        assert self._server is not None  # noqa: S101  # just started
        until = time.monotonic() + START_SECONDS
        while not (self.events_path.exists() and self.events_path.stat().st_size):
            if self._server.poll() is not None or time.monotonic() > until:
                self._server.kill()
                lines = (self.directory / "broker.log").read_text(errors="replace").splitlines()
                raise BuildError(
                    f"the broker did not start: {lines[-1] if lines else 'no message'}",
                    where=str(self.directory / "broker.log"),
                    cure="look at that file; is the work directory on a file system with Unix sockets?",
                )
            time.sleep(0.01)

    def _follow(self) -> None:
        """Give each event to the callback as it comes."""
        if self._on_event is None:
            return
        pending = b""
        with self.events_path.open("rb") as file:
            while True:
                last = self._ended.wait(POLL_SECONDS)
                *lines, pending = (pending + file.read()).split(b"\n")
                for line in lines:
                    self._on_event(json.loads(line))
                if last:
                    return
