"""D7: the real import, in a child process of the environment, and what its innermost error means."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Meaning:
    """What an innermost error is about: the findings that explain it, and what it means where none was made."""

    pattern: re.Pattern[str]
    codes: tuple[str, ...]
    why: str
    cure: str


MEANINGS = (
    Meaning(
        re.compile(r"libcuda\.so|libnvidia-ml"),
        ("D102", "D403"),
        "The NVIDIA driver brings that library, and there is none here: on a machine without it the import always "
        "fails.",
        "run it on the machine with the GPU (in a container: with --gpus all)",
    ),
    Meaning(
        re.compile(r"lib(cudart|cublas\w*|nvrtc|nvJitLink)\.so"),
        ("D401", "D403", "D202"),
        "A library of CUDA is missing.",
        "smwheel inspect on the package says which CUDA it needs; install the build for torch's CUDA",
    ),
    Meaning(
        re.compile(r"undefined symbol.*(2at|3c10|5torch|6caffe2)"),
        ("D501", "D502"),
        "That is a C++ name of torch: the package was built for another torch. No architecture is missing.",
        "install the build of the package for this torch",
    ),
    Meaning(
        re.compile(r"lib(c10|torch)\w*\.so"),
        ("D201", "D202", "D503"),
        "That is a library of torch, which was not loaded before.",
        "import torch first",
    ),
    Meaning(
        re.compile(r"cannot open shared object file"),
        ("D403",),
        "A library is missing that neither the package nor torch brings.",
        "install the package of your system that holds it",
    ),
    Meaning(
        re.compile(r"No module named '\w+'"),
        ("D203",),
        "A Python package is not installed.",
        "install what the package requires: pip check lists it",
    ),
)
_UNKNOWN = Meaning(
    re.compile(""), ("D601",), "No other finding explains it.", "search for this error, not for the last one"
)


def try_imports(case: Case, findings: list[Finding]) -> tuple[list[Finding], list[str], list[str]]:
    """Import each installed package of kernels; return findings, what could not be tried, and what worked."""
    python = case.environment.python
    modules = [(one.title, one.known.module) for one in case.installed if one.known and one.known.module]
    torch = case.environment.torch
    modules = [*([(f"torch {torch.version}", "torch")] if torch else []), *modules]
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
        except OSError as error:
            return [f"{python} cannot be started: {error.strerror}"]
        except subprocess.TimeoutExpired:
            return [f"the import did not end within {TIMEOUT} s"]
        if not response.is_file():
            lines = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
            return [f"the process ended without an answer: {lines[-1]}"]
        return list(json.loads(response.read_text())["error"])


def _explained(title: str, module: str, errors: list[str], findings: list[Finding]) -> Finding:
    inner = errors[-1]
    meaning = next((one for one in MEANINGS if one.pattern.search(inner)), _UNKNOWN)
    cause = next((one for code in meaning.codes for one in findings if one.code == code), None)
    shown = f" Python shows it as '{errors[0]}'." if len(errors) > 1 else ""
    return Finding(
        CODE,
        Level.FAULT,
        f"`import {module}` fails ({title}); the innermost error is: {inner}.",
        (f"That is what {cause.code} says: {cause.sentence}" if cause else meaning.why) + shown,
        cause.cure if cause else meaning.cure,
        title.partition(" ")[0],
    )
