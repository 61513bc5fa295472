"""Which modules a server asks for: recorded from a running one, or proposed from a model's configuration.

What sees a request is the recipe's (`record.py`, `propose.py` beside `recipe.toml`); this module runs the
command, gathers what every process reported, and writes a set file: `set`, `summary`, `specs`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smwheel import inject, recipe
from smwheel.errors import UsageError, VerifyIncompleteError


@dataclass(frozen=True)
class Recording:
    """What was seen: the set file's document, how many processes were watched, and how the command ended."""

    document: dict[str, Any]
    processes: int
    status: int

    @property
    def sentence(self) -> str:
        """What was seen, as people are told it."""
        count = len(self.document["specs"])
        return f"{count} modules asked for by {self.processes} processes; the command ended with status {self.status}"


def record(
    command: list[str], *, recipe_name: str, name: str, environment: Mapping[str, str] | None = None
) -> Recording:
    """Run a command to its end (or until interrupted) and return the modules that its processes asked for.

    The command is not changed: it compiles, falls back and fails as it would.

    Raises:
        UsageError: the recipe cannot record, or the command does not exist.
        VerifyIncompleteError: no process was watched, or one could not be.
    """
    recorder = _script(recipe_name, "record.py")
    with tempfile.TemporaryDirectory(prefix="smwheel-record-") as folder:
        log = Path(folder)
        variables = inject.injected("recorder.py", log=log, environment=environment or os.environ)
        status = _run(command, variables | {"SMWHEEL_RECORDER": str(recorder)})
        inject.check(log)
        files = sorted(log.glob("requests-*.jsonl"))
        specs = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    if not files:
        raise VerifyIncompleteError(
            "no Python process of the command could be watched",
            where=command[0],
            cure="it must inherit the environment: no -E, no -I, no env -i",
        )
    document = set_document(name, f"recorded from: {' '.join(command)}", specs)
    return Recording(document, len(files), status)


def propose(
    python: Path, *, recipe_name: str, model: Path, tensor_parallel: int, speculative: str, board: str
) -> dict[str, Any]:
    """Return a set file's document for a model's `config.json`, without a GPU; it says that it is a proposal.

    `python` is that of an environment where the package can be imported.

    Raises:
        UsageError: the recipe cannot propose, or the model's file is not there.
        VerifyIncompleteError: the package could not be asked.
    """
    if not model.is_file():
        raise UsageError("there is no such file", where=str(model), cure="give a model's config.json")
    request = {"model": str(model), "tensor_parallel": tensor_parallel, "speculative": speculative, "board": board}
    answer = _ask(python, _script(recipe_name, "propose.py"), request)
    summary = f"proposed for {model.name}, tensor-parallel {tensor_parallel}: not recorded from a server"
    document = set_document(model.parent.name or model.stem, summary, answer["specs"])
    return document | {"proposal": True, "excluded": answer["excluded"]}


def set_document(name: str, summary: str, specs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a set file's document: every request once, in an order that does not depend on the server's."""
    unique = {json.dumps(spec, sort_keys=True): spec for spec in specs}
    return {"set": name, "summary": summary, "specs": [unique[key] for key in sorted(unique)]}


def write(document: dict[str, Any], path: Path) -> None:
    """Write a set file; it appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def _script(recipe_name: str, name: str) -> Path:
    path = recipe.load(recipe_name).directory / name
    if not path.is_file():
        raise UsageError(f"recipe {recipe_name} has no {name}", where="--recipe", cure="name a recipe that has one")
    return path


def _run(command: list[str], environment: Mapping[str, str]) -> int:
    """Run to the end; an interrupt goes to the command, once, and what was recorded until then is kept."""
    try:
        process = subprocess.Popen(command, env=dict(environment), start_new_session=True)
    except OSError as error:
        raise UsageError(f"cannot be run: {error}", where=command[0], cure="give a command that exists") from error
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)


def _ask(python: Path, script: Path, request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="smwheel-propose-") as folder:
        question, answer = Path(folder) / "request.json", Path(folder) / "response.json"
        question.write_text(json.dumps(request), encoding="utf-8")
        done = subprocess.run(
            [python, script, question, answer], capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0 or not answer.is_file():
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise VerifyIncompleteError(
                f"the package could not be asked: {last}",
                where=str(python),
                cure="--python must be that of an environment with the package and its requirements",
            )
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return result
