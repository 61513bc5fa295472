"""Wheels that are none: each command says what is wrong with one, and what to do."""

from __future__ import annotations

import stat
import sys
import zipfile
from pathlib import Path

import pytest

from smwheel.cli import main
from smwheel.errors import MalformedError, UsageError, VerifyError

METADATA = {
    "bad-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: bad\nVersion: 1\n",
    "bad-1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


def _zip(path: Path, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def _linked(path: Path) -> None:
    link = zipfile.ZipInfo("bad/a")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "/etc/passwd")


BROKEN = {
    "cut short": lambda path: path.write_bytes(_zip(path, {"bad/a.py": "x" * 99}).read_bytes()[:80]),
    "no zip": lambda path: path.write_bytes(b"<html>404</html>"),
    "empty": lambda path: path.touch(),
    "a directory": lambda path: path.mkdir(),
    "not there": lambda path: None,
    "no metadata directory": lambda path: _zip(path, {"bad/a.py": ""}),
    "a link": _linked,
    "no METADATA": lambda path: _zip(path, {"bad-1.dist-info/RECORD": ""}),
    "a bad RECORD": lambda path: _zip(path, METADATA | {"bad-1.dist-info/RECORD": 'bad/a.py,sha256=x,4\n"'}),
    "a bad tag": lambda path: _zip(path, METADATA | {"bad-1.dist-info/WHEEL": "Tag: what"}),
}
HARMLESS = ("a directory", "a bad RECORD")
"""What `inspect` can look into all the same."""


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("command", ["inspect", "thin", "verify"])
def test_a_broken_wheel_is_told_with_what_to_do(
    tmp_path: Path, how: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "inspect" and how in HARMLESS:
        pytest.skip("it does not hinder looking into it")
    path = tmp_path / "bad-1-py3-none-any.whl"
    BROKEN[how](path)  # type: ignore[no-untyped-call]
    more = ["--arch", "120", "-o", str(tmp_path / "out")] if command == "thin" else []
    monkeypatch.setattr(sys, "argv", ["smwheel", command, str(path), *more])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code in (UsageError.exit_code, MalformedError.exit_code, VerifyError.exit_code)
    assert "to do:" in said.out + said.err


def test_every_error_of_a_format_says_what_to_do() -> None:
    assert MalformedError("is damaged").cure
    assert MalformedError("is damaged", cure="do this").cure == "do this"
