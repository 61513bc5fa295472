"""Run a command so that every Python process in it first runs a script of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from smwheel.errors import VerifyIncompleteError


def injected(script: str, *, log: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with a script of `smwheel/injected` put into every Python process that inherits it.

    `log` is the directory that the script writes to, and where its own failures are found.
    """
    scripts = Path(str(resources.files("smwheel.injected")))
    hook = log / "hook"
    hook.mkdir(parents=True, exist_ok=True)
    (hook / "sitecustomize.py").write_bytes((scripts / "sitecustomize.py").read_bytes())
    paths = [str(hook), environment.get("PYTHONPATH", "")]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "SMWHEEL_INJECT": str(scripts / script),
        "SMWHEEL_INJECT_LOG": str(log),
    }


def check(log: Path) -> None:
    """Raise if the script failed in some process: what that one did was not seen.

    Raises:
        VerifyIncompleteError: names the failure.
    """
    for problem in sorted(log.glob("problem-*.txt")):
        lines = problem.read_text(encoding="utf-8").strip().splitlines()
        raise VerifyIncompleteError(
            f"a process could not be watched: {lines[-1]}",
            where=problem.stem.removeprefix("problem-"),
            cure="run the command with the Python of the environment that serves",
        )
