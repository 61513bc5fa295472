"""The commands about serving: what they refuse, and what they print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from smwheel import record
from smwheel.cli import app, serve
from smwheel.errors import UsageError
from smwheel.smoke import nojit
from smwheel.smoke.nojit import Attempt, NoJit, Outcome

runner = CliRunner()


def invoke(*arguments: str) -> Any:
    return runner.invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["record", "--recipe", "sglang-jit"], "there is no command to record"),
        (["record", "--recipe", "sglang-jit", "--dry"], "--dry needs --model and --python"),
        (["smoke", "nojit", "--recipe", "sglang-jit"], "there is no command to run"),
        (["smoke", "nojit", "--recipe", "flashinfer", "--", "true"], "has no nojit.toml"),
        (["record", "--recipe", "no-such-recipe", "--", "true"], "there is no recipe"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(arguments: list[str], said: str) -> None:
    result = invoke(*arguments)
    assert isinstance(result.exception, UsageError)
    assert said in result.exception.message


def test_the_recipes_own_check_runs_when_no_command_is_given() -> None:
    command = serve.check_command("sglang-jit", Path("/env/bin/python"))
    assert command[0] == "/env/bin/python"
    assert command[1].endswith("recipes/sglang-jit/check.py")


def test_a_recording_is_written_and_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []

    def recorded(command: list[str], **options: Any) -> record.Recording:
        seen.append((command, options))
        return record.Recording({"set": "mine", "summary": "s", "specs": [{"a": 1}]}, processes=2, status=0)

    monkeypatch.setattr(record, "record", recorded)
    output = tmp_path / "mine.json"
    result = invoke("record", "--recipe", "demo", "-o", str(output), "--name", "mine", "--", "serve", "--tp", "8")
    assert seen == [(["serve", "--tp", "8"], {"recipe_name": "demo", "name": "mine"})]
    assert "1 modules asked for by 2 processes" in result.output
    assert json.loads(output.read_text())["specs"] == [{"a": 1}]


def test_a_proposal_is_told_apart_from_a_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(record, "propose", lambda python, **_: {"specs": [{"a": 1}], "proposal": True})
    model = str(tmp_path / "config.json")
    result = invoke("record", "--recipe", "demo", "--dry", "--model", model, "--python", sys.executable)
    assert '"proposal": true' in result.output
    assert "1 modules proposed: this is no recording of a server" in result.output


def test_nojit_prints_what_was_seen_and_fails_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt("nvcc a.cu", "audit", "demo.py:3 jit", "the demo", "set DEMO_JIT=0", probe=False)
    outcome = Outcome(0, (attempt,), (), ("/usr/bin/nvcc",), ())
    monkeypatch.setattr(nojit, "load", lambda _: NoJit())
    monkeypatch.setattr(nojit, "run", lambda *_: outcome)
    result = invoke("smoke", "nojit", "--recipe", "demo", "--json", "--", "serve")
    assert json.loads(result.stdout)["compiles"][0]["asked_by"] == "demo.py:3 jit"
    assert "the demo asks for a compiler" in str(result.exception)
    text = invoke("smoke", "nojit", "--recipe", "demo", "--", "serve").stdout
    assert "the demo: nvcc a.cu" in text
    assert "to do: set DEMO_JIT=0" in text
