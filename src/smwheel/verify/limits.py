"""W7: sizes, within the recipe's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smwheel.verify.registry import check
from smwheel.verify.verdict import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smwheel.verify.expectations import Expectations
    from smwheel.verify.subject import Subject

_CURE = (
    "look for code of other architectures or bundled libraries; raise the limit in the recipe if the growth is right"
)


@check("W701", "The wheel is not larger than the recipe allows.", cure=_CURE, needs=("recipe",))
def wheel_size(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Compare the file's size."""
    return _compare(subject.path.stat().st_size, expect.max_wheel, "the wheel")


@check("W702", "What is installed is not larger than the recipe allows.", cure=_CURE, needs=("recipe",))
def installed_size(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Compare the sum of the files' sizes."""
    return _compare(sum(size for _, size in subject.digests.values()), expect.max_installed, "the installation")


def _compare(size: int, limit: int | None, what: str) -> Iterable[Problem | str]:
    said = f"{what} is {size / 1e6:.1f} MB"
    if limit is None:
        yield f"{said}; the recipe sets no limit"
    elif size > limit:
        yield Problem(f"{said}, at most {limit / 1e6:.1f} MB are allowed")
    else:
        yield f"{said} of at most {limit / 1e6:.1f} MB"
