"""Units run by ninja: one file for the whole build, our launcher before every command.

ninja's own log is the record of what is finished: it is written after a unit's process has ended, flushed at once, and
holds a digest of the command. A unit that was in flight when the build was killed is not in it and runs again.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import ninja as ninja_package

from smwheel.build.sandbox import BUILD_ID, Sandbox, die_with_parent
from smwheel.errors import BuildError, OutOfMemoryError

if TYPE_CHECKING:
    from smwheel.plan import Unit

LAUNCHER = "SMWHEEL_LAUNCHER"
"""Environment variable that names the program standing before every command; it is given the unit's id first."""

_STATUS = re.compile(r"^\[smwheel\] (.*)$")
_DIED_ALONE = "killed for memory although it ran alone"
"""What the launcher says of a unit that no smaller company would have saved."""


def ninja_binary() -> Path:
    """Return the ninja that is installed beside smwheel."""
    return Path(ninja_package.BIN_DIR) / "ninja"


def write_file(path: Path, units: list[Unit]) -> None:
    """Write the ninja file of these units; written only when its text changes.

    Every command is `$SMWHEEL_LAUNCHER ID COMMAND…`: the launcher is named by the environment, so that a newer one
    does not make a finished unit run again.
    """
    lines = ["ninja_required_version = 1.10", "rule unit", "  command = $cmd", "  description = $unit", ""]
    for unit in units:
        inputs = [*([unit.source_path] if unit.source_path else []), *unit.inputs]
        command = shlex.join([unit.id, *unit.command]).replace("$", "$$")
        lines += [
            f"build {_path(unit.output)}: unit {' '.join(map(_path, inputs))}",
            f'  cmd = "$${LAUNCHER}" {command}',
            f"  unit = {unit.id.replace('$', '$$')}",
        ]
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        temporary = path.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def _path(text: str | Path) -> str:
    return re.sub(r"([$ :])", r"$\1", str(text))


def pending(path: Path, sandbox: Sandbox, *, cwd: Path) -> list[str]:
    """Return the units that ninja would run now."""
    command = sandbox.wrap([str(ninja_binary()), "-n", "-f", sandbox.inside(path)], cwd=cwd)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_status_environment({}))
    return [match[1] for line in done.stdout.splitlines() if (match := _STATUS.match(line))]


def run(
    path: Path,
    sandbox: Sandbox,
    *,
    cwd: Path,
    jobs: int,
    build_id: str,
    environment: dict[str, str],
    log: Path,
) -> Iterator[str]:
    """Run every unit that is not finished; yield each as it ends, a failed one too.

    `jobs` is ninja's own bound; what really runs is admitted by the launcher. Everything printed goes to `log`.

    Raises:
        BuildError: a unit failed: names it, with its command and its own last lines.
        OutOfMemoryError: it did because it was killed for memory even when it ran alone.
    """
    command = sandbox.wrap([str(ninja_binary()), f"-j{jobs}", "-f", sandbox.inside(path)], cwd=cwd)
    variables = _status_environment(environment) | {BUILD_ID: build_id}
    failed, last, failure = "", "", list[str]()
    with (
        log.open("a", encoding="utf-8") as sink,
        subprocess.Popen(
            command,
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one prctl call, no locks taken
        ) as process,
    ):
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        try:
            for line in process.stdout:
                sink.write(line)
                sink.flush()
                if line.startswith("FAILED: "):
                    failed, failure = last, [line.rstrip("\n")]
                elif match := _STATUS.match(line.rstrip("\n")):
                    last = match[1]
                    yield last
                elif failure and len(failure) < 4000:
                    failure.append(line.rstrip("\n"))
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise _failure(failed, failure, process.returncode, log)


def _status_environment(environment: dict[str, str]) -> dict[str, str]:
    return os.environ | environment | {"NINJA_STATUS": "[smwheel] "}


def _failure(unit: str, lines: list[str], code: int, log: Path) -> BuildError:
    if not lines:
        return BuildError(f"ninja ended with code {code} and named no unit", cure=f"read {log}")
    command = lines[1] if len(lines) > 1 else ""
    own = [line for line in lines[2:] if not line.startswith("ninja: ")][-25:]
    text = "\n".join(["failed", f"command: {command}", *own])
    if any(_DIED_ALONE in line for line in own):
        cure = f"give the build more memory (--memory, or a larger machine); the whole output is in {log}"
        return OutOfMemoryError(text, where=f"unit {unit}", cure=cure)
    return BuildError(text, where=f"unit {unit}", cure=f"the whole output is in {log}")
