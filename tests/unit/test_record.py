"""Recording: every process of a command is watched, nothing it does is changed, and a proposal says it is one."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from smwheel import record
from smwheel.errors import UsageError, VerifyIncompleteError

RECIPE = """schema = 1
name = "demo"
summary = "a demo"
license = "Apache-2.0"

[versions."1.0"]
sources = [{ id = "s", kind = "sdist", project = "demo", file = "demo-1.0.tar.gz", size = 1, sha256 = "%s" }]
targets = [{ request = ["120"], code = "120a", why = "a demo" }]

[versions."1.0".build]
requirements = "requirements.txt"
""" % ("0" * 64)
RECORDER = """
import json
import helper

def install(report):
    helper.reports = report
    genuine = json.dumps
    def dumps(value, **options):
        if isinstance(value, dict) and "kernel" in value:
            json.dumps = genuine
            report(value)
            json.dumps = dumps
        return genuine(value, **options)
    json.dumps = dumps
"""
PROPOSER = """
import json, sys
request = json.load(open(sys.argv[1]))
if request["board"] == "none":
    raise SystemExit("no such board")
specs = [{"kernel": "a", "tp": request["tensor_parallel"]}] * 2
json.dump({"specs": specs, "excluded": [{"name": "x", "reason": "y"}]}, open(sys.argv[2], "w"))
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    folder = tmp_path / "recipes/demo"
    folder.mkdir(parents=True)
    for name, text in {
        "recipe.toml": RECIPE,
        "record.py": RECORDER,
        "helper.py": "reports = None\n",
        "propose.py": PROPOSER,
    }.items():
        (folder / name).write_text(text)
    return str(folder)


def python(code: str, *flags: str) -> list[str]:
    return [sys.executable, *flags, "-c", code]


def test_every_process_is_recorded_and_each_request_given_once(recipe: str) -> None:
    child = "import json; json.dumps({'kernel': 'b'}); json.dumps({'kernel': 'a'})"
    start = f"subprocess.run([sys.executable, '-c', {child!r}])"
    code = f"import json, subprocess, sys; json.dumps({{'kernel': 'a'}}); {start}"
    made = record.record(python(code), recipe_name=recipe, name="mine")
    assert made.document["set"] == "mine"
    assert made.document["specs"] == [{"kernel": "a"}, {"kernel": "b"}]
    assert (made.processes, made.status) == (2, 0)
    assert made.sentence == "2 modules asked for by 2 processes; the command ended with status 0"


def test_a_command_that_fails_keeps_what_was_seen(recipe: str) -> None:
    code = "import json; json.dumps({'kernel': 'a'}); raise SystemExit(3)"
    made = record.record(python(code), recipe_name=recipe, name="mine")
    assert (made.document["specs"], made.status) == ([{"kernel": "a"}], 3)


def test_an_interrupt_reaches_the_command_once_and_keeps_what_was_seen(recipe: str, tmp_path: Path) -> None:
    ready, log = tmp_path / "ready", tmp_path / "log"
    code = f"""
import json, signal, sys, time
json.dumps({{"kernel": "a"}})
def stop(*_):
    with open({str(log)!r}, "a") as file: file.write("stopped once. ")
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(5))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
signal.signal(signal.SIGINT, stop)
open({str(ready)!r}, "w").close()
while True: time.sleep(60)
"""

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    # A shell that starts the tests in the background has them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        made = record.record(python(code), recipe_name=recipe, name="mine")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (made.document["specs"], made.status) == ([{"kernel": "a"}], 5)
    assert log.read_text() == "stopped once. "


def test_nothing_asked_for_is_an_empty_set_and_no_error(recipe: str) -> None:
    assert record.record(python("pass"), recipe_name=recipe, name="mine").document["specs"] == []


def test_a_command_that_cannot_be_watched_is_no_recording(recipe: str) -> None:
    with pytest.raises(VerifyIncompleteError, match="no Python process of the command could be watched"):
        record.record(python("pass", "-E"), recipe_name=recipe, name="mine")


def test_a_recorder_that_fails_is_named_and_does_not_stop_the_command(recipe: str, tmp_path: Path) -> None:
    (Path(recipe) / "record.py").write_text("raise RuntimeError('another version')\n")
    mark = tmp_path / "mark"
    with pytest.raises(VerifyIncompleteError, match="RuntimeError: another version"):
        record.record(python(f"open({str(mark)!r}, 'w')"), recipe_name=recipe, name="mine")
    assert mark.exists()


def test_the_commands_own_path_and_variables_are_kept(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "demo_module.py").write_text("kernel = {'kernel': 'mine'}\n")
    code = "import json, demo_module; json.dumps(demo_module.kernel)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    made = record.record(python(code), recipe_name=recipe, name="mine", environment=environment)
    assert made.document["specs"] == [{"kernel": "mine"}]


def test_what_cannot_be_run_or_recorded_is_a_usage_error(recipe: str) -> None:
    with pytest.raises(UsageError, match="cannot be run"):
        record.record(["/no/such/program"], recipe_name=recipe, name="mine")
    (Path(recipe) / "record.py").unlink()
    with pytest.raises(UsageError, match="has no record"):
        record.record(python("pass"), recipe_name=recipe, name="mine")


def propose(recipe: str, model: Path, board: str = "demo") -> dict[str, object]:
    return record.propose(
        Path(sys.executable), recipe_name=recipe, model=model, tensor_parallel=8, speculative="", board=board
    )


def test_a_proposal_says_that_it_is_one(recipe: str, tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text("{}")
    document = propose(recipe, model)
    assert document["proposal"] is True
    assert document["specs"] == [{"kernel": "a", "tp": 8}]
    assert document["excluded"] == [{"name": "x", "reason": "y"}]
    assert "not recorded from a server" in str(document["summary"])


def test_a_proposal_that_cannot_be_made_is_named(recipe: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        propose(recipe, tmp_path / "config.json")
    model = tmp_path / "config.json"
    model.write_text("{}")
    with pytest.raises(VerifyIncompleteError, match="could not be asked: no such board"):
        propose(recipe, model, board="none")


def test_a_set_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    document = record.set_document("mine", "a test", [{"b": 1}, {"a": 1}, {"b": 1}])
    record.write(document, path)
    assert json.loads(path.read_text()) == {"set": "mine", "summary": "a test", "specs": [{"a": 1}, {"b": 1}]}
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.json"]
