"""Ctrl-C: one line that says what is kept and how it goes on, and the exit code of a program that it ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import pytest

from smwheel.cli import main


@pytest.mark.parametrize(("command", "function"), [("build", "build_all"), ("fetch", "fetch_all")])
def test_ctrl_c_is_answered(
    tmp_path: Path, command: str, function: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"smwheel.cli.build.{function}", interrupted)
    monkeypatch.setattr(sys, "argv", ["smwheel", command, "flashinfer", "--arch", "120"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 130
    assert said.err.startswith("stopped: what ")
    assert "is kept, and the same command goes on from there" in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
