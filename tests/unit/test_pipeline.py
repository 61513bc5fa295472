"""What tells one build from another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from smwheel.pipeline import Site


def test_builds_of_one_plan_in_two_work_directories_are_told_apart() -> None:
    nothing = cast("Any", None)

    def build_id(work: str) -> str:
        return Site(*[nothing] * 7, work=Path(work)).build_id

    assert build_id("/a/demo-1.0") == build_id("/a/demo-1.0")
    assert build_id("/a/demo-1.0") != build_id("/b/demo-1.0")
