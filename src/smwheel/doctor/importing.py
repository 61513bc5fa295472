"""D7: the real import, in a child process of the environment, and what its innermost error means."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from smwheel.doctor.finding import Finding, Level

if TYPE_CHECKING:
    from smwheel.doctor.case import Case

CODE = "D701"
TITLE = "The import was tried, and fails (only with --import)."
TIMEOUT = 300
"""Seconds that an import may take: torch alone needs up to a minute on a cold disk."""

# What an innermost error is about: pattern → the findings that explain it, if they were made.
_ABOUT = (
    (re.compile(r"libcuda\.so|libnvidia-ml"), ("D102", "D403")),
    (re.compile(r"lib(cudart|cublas\w*|nvrtc|nvJitLink)\.so"), ("D401", "D403", "D202")),
    (re.compile(r"undefined symbol.*(2at|3c10|5torch|6caffe2)"), ("D501", "D502")),
    (re.compile(r"lib(c10|torch)\w*\.so"), ("D201", "D202", "D503")),
    (re.compile(r"cannot open shared object file"), ("D403",)),
    (re.compile(r"AttributeError"), ("D601",)),
)


def try_imports(case: Case, findings: list[Finding]) -> tuple[list[Finding], list[str], list[str]]:
    """Import each installed package of kernels; return findings, what could not be tried, and what worked."""
    python = case.environment.python
    modules = [(one.title, one.known.module) for one in case.installed if one.known and one.known.module]
    modules += [
        (case.environment.distributions[name].title, known.module)
        for known in case.knowledge.packages
        if known.pure
        for name in known.distributions
        if name in case.environment.distributions
    ]
    if python is None or case.environment.problem:
        return [], ["the import: the environment has no Python that runs"], []
    found, fine = [], []
    for title, module in modules:
        errors = _import(python, module)
        if errors:
            found.append(_explained(title, module, errors, findings))
        else:
            fine.append(f"`import {module}` works ({title})")
    return found, [], fine


def _import(python: Path, module: str) -> list[str]:
    """Import a module in a new process; return its errors, innermost last (none: it worked)."""
    with (
        tempfile.TemporaryDirectory(prefix="smwheel-") as work,
        resources.as_file(resources.files("smwheel.verify") / "probe.py") as probe,
    ):
        request, response = Path(work) / "request.json", Path(work) / "response.json"
        asked = {"torch_first": False, "capability": "", "modules": [module], "ops": [], "site": work}
        request.write_text(json.dumps(asked))
        command = [str(python), str(probe), str(request), str(response)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return [str(error)]
        if not response.is_file():
            lines = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
            return [f"the process ended without an answer: {lines[-1]}"]
        return list(json.loads(response.read_text())["error"])


def _explained(title: str, module: str, errors: list[str], findings: list[Finding]) -> Finding:
    inner = errors[-1]
    explained = next((codes for pattern, codes in _ABOUT if pattern.search(inner)), ())
    cause = next((one for code in explained for one in findings if one.code == code), None)
    shown = f" Python shows it as '{errors[0]}'." if len(errors) > 1 else ""
    return Finding(
        CODE,
        Level.FAULT,
        f"`import {module}` fails ({title}); the innermost error is: {inner}.",
        (f"That is what {cause.code} says: {cause.sentence}" if cause else "No other finding here explains it.")
        + shown,
        cause.cure if cause else f"search for the innermost error, not for the last one; it comes from {module}",
        title.partition(" ")[0],
    )
