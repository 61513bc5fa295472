"""W8: a wheel that was cut from a published one, against that original."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from smwheel.verify.registry import check
from smwheel.verify.verdict import Problem
from smwheel.wheels.compare import compare

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smwheel.verify.expectations import Expectations
    from smwheel.verify.subject import Subject


@check(
    "W801",
    "The original is the file that the recipe pins.",
    cure="give the published wheel that the recipe names: another file proves nothing",
    needs=("against", "original"),
)
def original_is_pinned(_: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Compare the original's sha256 with the recipe's."""
    if expect.against is None:
        return
    with expect.against.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expect.original:
        yield Problem(f"{expect.against.name} has sha256 {found}, pinned is {expect.original}")


@check(
    "W802",
    "What was kept is byte for byte the original's, and nothing else was changed than a cut must change.",
    cure="do not use this wheel: it is not what its notice says; cut the original again",
    needs=("against",),
)
def nothing_else_changed(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Compare both wheels member by member."""
    if expect.against is None:
        return
    for difference in compare(expect.against, subject.path):
        yield Problem(difference.what, difference.name)
