"""The field report: what is in it, and that nothing of who sent it is."""

from __future__ import annotations

import getpass
import importlib.util
import json
import socket
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "field-report"


@pytest.fixture
def script() -> ModuleType:
    loader = SourceFileLoader("field_report", str(SCRIPT))
    spec = importlib.util.spec_from_loader("field_report", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def fake_smwheel(tmp_path: Path, script: ModuleType, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    program = tmp_path / "smwheel"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setattr(script, "smwheel", lambda: [str(program)])


def test_nothing_personal_is_left(script: ModuleType) -> None:
    text = f"/home/{getpass.getuser()}/x/tree.txt on {socket.gethostname()} at 10.1.2.3 https://me:secret@example.org/x"
    left = script.neutral({"a": [text, 1, None]})["a"]
    assert left[1:] == [1, None]
    assert "tree.txt" in left[0]
    assert "https://example.org/x" in left[0]
    for name in (getpass.getuser(), socket.gethostname(), "10.1.2.3", "secret", "/home"):
        assert name not in left[0]
    assert len(script.neutral("x" * 9999)) <= script.MESSAGE_BYTES + 1
    assert script.neutral("/srv/smwheel/work/a.o and 0.4.10") == "/srv/smwheel/work/a.o and 0.4.10"


def test_a_build_that_worked(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"wheels": [{"file": "sglang_kernel-0.4.10-x.whl", "size": 5, "holds": {"120a": 35}, "path": "/home/me"}]}
    verdict = {"wheels": [{"results": [{"code": "W101", "status": "passed"}, {"code": "W205", "status": "failed"}]}]}
    body = f"""case $1 in
build) while [ "$1" != --wheelhouse ]; do shift; done
  mkdir -p "$2/evidence"; echo '{{"device_compilations": 4}}' > "$2/evidence/build.json"; echo '{json.dumps(made)}' ;;
verify) echo '{json.dumps(verdict)}' ;;
esac"""
    fake_smwheel(tmp_path, script, monkeypatch, body)
    one = script.build("120", "sglang-0.5.23", None)
    assert one["wheels"][0] == {"file": "sglang_kernel-0.4.10-x.whl", "size": 5, "sha256": None,
                                "holds": {"120a": 35}, "level": None}  # fmt: skip
    assert one["counts"] == {"device_compilations": 4}
    assert one["checks"]["sglang_kernel-0.4.10-x.whl"] == {"W101": "passed", "W205": "failed"}
    report = {"arch": "120", "machine": script.machine(), "builds": [one]}
    (tmp_path / "r.json").write_text(json.dumps(report))
    assert "| sglang_kernel 0.4.10 | 120 |" in script.table(tmp_path)
    assert "| built; not passed: W205 | 4 |" in script.table(tmp_path)


def test_a_build_that_failed(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"wheels": [], "failures": {"sgl-kernel": {"error": "recipe", "message": "no pin"}}}
    fake_smwheel(tmp_path, script, monkeypatch, f"echo '{json.dumps(failed)}'; exit 3")
    one = script.build("120", "sglang-0.5.9", "/usr/local/cuda")
    assert one["exit_code"] == 3
    assert one["error"]["message"] == "no pin"
    (tmp_path / "r.json").write_text(json.dumps({"arch": "120", "machine": {}, "builds": [one]}))
    assert "| not built: no pin |" in script.table(tmp_path)


def test_no_answer_at_all(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smwheel(tmp_path, script, monkeypatch, "exit 70")
    one = script.build("120", "sglang-0.5.9", None)
    assert (one["exit_code"], one["error"], one["wheels"], one["checks"]) == (70, None, [], {})
