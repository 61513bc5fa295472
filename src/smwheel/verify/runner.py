"""Make all checks of a wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smwheel.verify import abi, contents, gpucode, libraries, limits, tags
from smwheel.verify.registry import Check, registered
from smwheel.verify.subject import Subject
from smwheel.verify.verdict import Level, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from smwheel.verify.expectations import Expectations

MODULES = (contents, gpucode, libraries, abi, tags, limits)
"""The modules whose checks are registered by being imported."""


def verify_wheel(path: Path, expect: Expectations) -> Verdict:
    """Make every static check of a wheel.

    Raises:
        MalformedError: it is no wheel that could be looked at: no zip, unsafe names, no metadata.

    """
    with Subject(path) as subject:
        results = tuple(check.make(subject, expect) for check in static_checks(expect))
        return Verdict(wheel=path.name, sha256=subject.sha256, asked=Level.STATIC, results=results)


def static_checks(expect: Expectations) -> list[Check]:
    """Return the checks that need no import; those against an original only when there is one to compare with."""
    cut = bool(expect.against or expect.original)
    return [one for one in registered() if not one.code.startswith("W6") and (cut or not one.code.startswith("W8"))]
