"""What `--modules-from` is given: it is named in every error, and nothing is built before it is understood."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo_build import counted, make_demo

from smwheel.errors import UsageError

ANSWER = """
import json, sys
request = json.load(open(sys.argv[1]))
text = open(request["modules_from"]).read() if request["modules_from"] else ""
response = {"protocol": 1, "modules": [], "units": [], "missing": text.split(), "notes": ["give a real log"]}
if "big" in text:
    response |= {"missing": [], "excluded": [{"name": "big", "reason": "it is too big"}]}
json.dump(response, open(sys.argv[2], "w"))
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no module of demo 1.0 is named there"),
        ("nope other", "nope, other: demo 1.0 has no such module"),
        ("1 2 3 4 5 6 7", "1, 2, 3, 4, 5 and 2 more: demo"),
        ("big", r"leaves out all that is asked for: big \(it is too big\)"),
    ],
)
def test_a_log_that_names_nothing_is_bad_input(tmp_path: Path, text: str, sentence: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(text)
    with pytest.raises(UsageError, match=sentence) as caught:
        make_demo(tmp_path, generator=ANSWER, modules_from=log)
    error = caught.value
    assert error.where == str(log), "the copy is named, not what the user gave"
    assert "give a real log" in error.cure
    assert "smwheel plan demo" in error.cure
    assert counted(tmp_path) == []


def test_a_profile_without_a_module_is_said_as_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no module in this profile") as caught:
        make_demo(tmp_path, generator=ANSWER)
    assert caught.value.where == "--profile"
