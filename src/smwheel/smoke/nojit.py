"""Proof that nothing is compiled: run a command where no compiler can be found, and list who asked for one.

PATH is empty; in a private mount namespace, shims that note the call and fail lie over every compiler found on
the machine, and its CUDA toolkits are not there; and an audit hook in every Python process notes the request
itself with the code that made it. What a shell could not find is read from the output. What asked, and what to
do about it, the recipe knows (`nojit.toml`). Without the namespace a program that starts a compiler by its full
path from machine code is not seen, so such a run proves nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from smwheel import inject, recipe
from smwheel.build.sandbox import namespaces_unusable
from smwheel.errors import UsageError, VerifyError, VerifyIncompleteError
from smwheel.tomlfile import Strict, read_toml

COMPILERS = (
    *("nvcc", "cicc", "cudafe++", "ptxas", "nvlink", "fatbinary", "ninja", "cmake", "make"),
    *("cc", "c++", "gcc", "g++", "clang", "clang++", "cc1", "cc1plus", "as", "ld", "ld.gold", "ld.lld"),
)
PLACES = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/local/cuda*/bin", "/usr/local/cuda*/nvvm/bin", "/opt/cuda*/bin")
IN_ENVIRONMENT = (
    "bin",
    "lib/python3*/site-packages/nvidia/*/bin",
    "lib/python3*/site-packages/nvidia/*/nvvm/bin",
    "lib/python3*/site-packages/triton/backends/nvidia/bin",
)
TOOLKITS = ("/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda", "/opt/cuda-*")
TOOLKIT_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "CC", "CXX", "CUDACXX", "TRITON_PTXAS_PATH")
PROBES = frozenset({"--version", "-V", "-v", "--help", "-dumpversion", "-print-prog-name=ld", "--list-gpu-arch"})
LIBRARY_SEARCH = "/ctypes/util.py:"
"""Python's own search for a library asks gcc and ld where it is; it compiles nothing."""

_NOT_FOUND = re.compile(rf"^.*?\b({'|'.join(map(re.escape, COMPILERS))}): (?:command )?not found", re.MULTILINE)

_SHIM = """#!/bin/sh
asker=
read -r asker < "/proc/$PPID/cmdline" 2>/dev/null
printf '%s\\t%s\\t%s\\t%s\\n' "$$" "$PPID" "$0 $*" "$asker" >> "$SMWHEEL_INJECT_LOG/shims.tsv"
echo "$0: hidden by smwheel smoke nojit" >&2
exit 127
"""

_HIDE = """
set -e
path=$1
shift
while [ "$1" != -- ]; do
  mount --rbind "$1" "$2"
  shift 2
done
shift
PATH=$path exec "$@"
"""


class Attribution(Strict):
    """Who asks for a compiler, and what to do about it."""

    asks: str = Field(default="", description="regular expression for the asking frames and the command")
    says: str = Field(default="", description="regular expression for what is printed when it finds no compiler")
    name: str
    cure: str

    @field_validator("asks", "says")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from error
        return value


class NoJit(Strict):
    """`nojit.toml` beside a recipe: what a compiler-free server is started with, and who asks for compilers."""

    environment: dict[str, str] = {}
    attributions: list[Attribution] = []


@dataclass(frozen=True)
class Attempt:
    """One request for a compiler: the command, who made it, and what to do about it."""

    command: str
    seen_by: str
    asked_by: str
    name: str
    cure: str
    probe: bool
    frames: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a command went without compilers: its status, every attempt, and known failures in its output."""

    status: int
    attempts: tuple[Attempt, ...]
    failures: tuple[Attribution, ...]
    hidden: tuple[str, ...]
    last_lines: tuple[str, ...]

    @property
    def compiles(self) -> list[Attempt]:
        """The attempts that were no mere question for a compiler's version."""
        return [attempt for attempt in self.attempts if not attempt.probe]

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "status": self.status,
            "compiles": [asdict(attempt) for attempt in self.compiles],
            "probes": [asdict(attempt) for attempt in self.attempts if attempt.probe],
            "failures": [failure.model_dump() for failure in self.failures],
            "hidden": list(self.hidden),
            "last_lines": list(self.last_lines),
        }

    def as_text(self) -> str:
        """Return who asked for what, and what to do about it."""
        lines = [f"hidden: {len(self.hidden)} compilers and toolkits; the command ended with status {self.status}"]
        for attempt in self.compiles:
            lines += [f"  {attempt.name}: {attempt.command[:120]}", f"    asked by {attempt.asked_by}"]
            lines.append(f"    to do: {attempt.cure}")
        for failure in self.failures:
            lines += [f"  {failure.name}", f"    to do: {failure.cure}"]
        probes = len(self.attempts) - len(self.compiles)
        if probes:
            lines.append(f"  {probes} questions for a compiler's version were answered with 'not there'")
        return "\n".join(lines)

    def raise_for_attempts(self) -> None:
        """Raise unless the command succeeded and nothing asked for a compiler.

        Raises:
            VerifyError: names the first cause and its cure.
        """
        for attempt in self.compiles:
            raise VerifyError(f"{attempt.name} asks for a compiler", where=attempt.asked_by, cure=attempt.cure)
        for failure in self.failures:
            raise VerifyError(failure.name, cure=failure.cure)
        if self.status != 0:
            last = self.last_lines[-1] if self.last_lines else "it said nothing"
            raise VerifyError(f"the command ended with status {self.status}: {last}", cure="read its output above")


def load(recipe_name: str) -> NoJit:
    """Return what a recipe knows of compilers at serve time.

    Raises:
        UsageError: the recipe says nothing of it.
        RecipeError: its `nojit.toml` is wrong.
    """
    path = recipe.load(recipe_name).directory / "nojit.toml"
    if not path.is_file():
        raise UsageError(f"recipe {recipe_name} has no nojit.toml", where="--recipe", cure="name one that has")
    return read_toml(path, NoJit)


def run(command: list[str], knowledge: NoJit, *, environment: Mapping[str, str] | None = None) -> Outcome:
    """Run a command with every compiler hidden; its output goes where ours goes.

    Raises:
        VerifyIncompleteError: compilers cannot be hidden here, or a process could not be watched.
        UsageError: the command does not exist.
    """
    reason = namespaces_unusable(network=True)
    if reason:
        raise VerifyIncompleteError(
            f"compilers cannot be hidden: {reason}", cure="run as root, or allow unprivileged user namespaces"
        )
    program = shutil.which(command[0])
    if program is None:
        raise UsageError("there is no such program", where=command[0], cure="give a command that exists")
    given = dict(environment if environment is not None else os.environ)
    with tempfile.TemporaryDirectory(prefix="smwheel-nojit-") as folder:
        log = Path(folder)
        shim = make_shim(log / "shim")
        (log / "empty").mkdir()
        variables = {name: value for name, value in given.items() if name not in TOOLKIT_VARIABLES}
        variables = inject.injected("audit.py", log=log, environment=variables | knowledge.environment)
        variables |= {"PATH": str(log / "empty"), "SMWHEEL_COMPILERS": ":".join(COMPILERS)}
        compilers = find_compilers(given.get("PATH", ""), prefix=Path(program).parent.parent)
        toolkits = [path for place in TOOLKITS for path in Path("/").glob(place.lstrip("/"))]
        mounts = [(shim, compiler) for compiler in compilers] + without(toolkits, log / "staging")
        status, output = _run_hidden([program, *command[1:]], mounts, variables)
        inject.check(log)
        attempts = tuple(_attempt(raw, knowledge.attributions) for raw in read_attempts(log, output))
    hidden = tuple(map(str, [*compilers, *toolkits]))
    failures = known_failures(output, knowledge.attributions)
    return Outcome(status, attempts, failures, hidden, tuple(output.splitlines()[-20:]))


def make_shim(path: Path) -> Path:
    """Write the program that lies over every compiler, and return its path."""
    path.write_text(_SHIM, encoding="utf-8")
    path.chmod(0o755)
    return path


def find_compilers(search_path: str, *, prefix: Path) -> list[Path]:
    """Return the compilers of this machine and of the environment at `prefix`, links resolved."""
    folders = [Path(part) for part in search_path.split(os.pathsep) if part.startswith("/")]
    folders += [path for place in PLACES for path in Path("/").glob(place.lstrip("/"))]
    folders += [path for place in IN_ENVIRONMENT for path in prefix.glob(place)]
    return sorted({path.resolve() for folder in folders for name in COMPILERS if (path := folder / name).is_file()})


def without(toolkits: Iterable[Path], staging: Path) -> list[tuple[Path, Path]]:
    """Return the mounts after which the toolkit directories are not there at all.

    Packages take an empty toolkit directory for a toolkit, so each directory that holds one is replaced by a
    copy without it: everything else of it is mounted at its place in `staging`, and that over the directory.
    """
    gone = set(toolkits)
    mounts = []
    for number, parent in enumerate(sorted({path.parent for path in gone})):
        copy = staging / str(number)
        copy.mkdir(parents=True)
        for child in sorted(parent.iterdir()):
            if child in gone:
                continue
            place = copy / child.name
            if child.is_symlink():
                place.symlink_to(child.readlink())
                continue
            if child.is_dir():
                place.mkdir()
            else:
                place.touch()
            mounts.append((child, place))
        mounts.append((copy, parent))
    return mounts


def _run_hidden(command: list[str], mounts: list[tuple[Path, Path]], variables: Mapping[str, str]) -> tuple[int, str]:
    """Run with the mounts made; return the status and what was printed, which is passed on as it comes."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    pairs = [str(path) for mount in mounts for path in mount]
    hide = ["sh", "-c", _HIDE, "smwheel", variables["PATH"], *pairs, "--", *command]
    process = subprocess.Popen(
        ["unshare", "--mount", *user, *hide],
        env={**variables, "PATH": os.environ["PATH"]},  # for the mounts; the command gets its own
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # an interrupt reaches the command once, from here
    )
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    lines: list[str] = []
    while True:
        try:
            for line in process.stdout:
                lines.append(line)
                sys.stderr.write(line)
            return process.wait(), "".join(lines)
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)


def read_attempts(log: Path, output: str) -> list[dict[str, Any]]:
    """Return what the audit hooks, the shims and the shells noted; one request seen by several is given once."""
    found = [
        json.loads(line)
        for file in sorted(log.glob("attempts-*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    shims = log / "shims.tsv"
    for line in shims.read_text(encoding="utf-8", errors="replace").splitlines() if shims.is_file() else []:
        _, parent, command, asker = line.split("\t", 3)
        by_name = command[command.split(" ", 1)[0].rfind("/") + 1 :]
        if not any(by_name in " ".join(entry["command"]) for entry in found):
            found.append({"command": command.split(), "pid": int(parent), "seen_by": "shim", "frames": [asker]})
    for match in _NOT_FOUND.finditer(output):
        if not any(match[1] in " ".join(entry["command"]) for entry in found):
            found.append({"command": [match[1]], "pid": 0, "seen_by": "output", "frames": [match[0]]})
    return found


def known_failures(output: str, attributions: Iterable[Attribution]) -> tuple[Attribution, ...]:
    """Return the known causes that a command's output tells of."""
    return tuple(entry for entry in attributions if entry.says and re.search(entry.says, output, re.MULTILINE))


def _attempt(raw: dict[str, Any], attributions: list[Attribution]) -> Attempt:
    frames, command = raw["frames"], " ".join(raw["command"])
    text = "\n".join([*frames, command])
    known = next((entry for entry in attributions if entry.asks and re.search(entry.asks, text, re.MULTILINE)), None)
    question = bool(PROBES.intersection(raw["command"][1:])) and len(raw["command"]) <= 3
    ours = [frame for frame in frames if "/subprocess.py:" not in frame]
    return Attempt(
        command=command,
        seen_by=raw["seen_by"],
        asked_by=(ours or frames or ["unknown"])[-1],
        name=known.name if known else "something that smwheel does not know",
        cure=known.cure if known else "prebuild what it compiles, or turn it off",
        probe=question or any(LIBRARY_SEARCH in frame for frame in frames),
        frames=tuple(frames),
    )
