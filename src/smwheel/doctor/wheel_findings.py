"""D210 and on: a wheel that was given: whether it is for this machine and this Python at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from smwheel.doctor.case import joined
from smwheel.doctor.finding import Found, Level, look_for

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from smwheel.doctor.case import Case

_LINUX = re.compile(r"(?:linux|(?:many|musl)linux(?:\d+|_\d+_\d+))_(?P<processor>\w+)")


@look_for("D210", "A wheel that was given is for another machine or another Python: pip will refuse it.")
def wheel_for_another_machine(case: Case) -> Iterable[Found]:
    """Compare the tags in the wheel's file name, by which pip decides, with the machine and the interpreter."""
    here, python = case.machine.processor, case.environment.version
    for package in case.wheels:
        tags = _tags(package.wheel) if package.wheel else frozenset()
        processors = sorted({_processor(tag.platform) for tag in tags})
        wrong = ""
        if here and processors and not {here, "any"} & set(processors):
            wrong = f"{joined(processors)}, this machine is {here}"
        elif python and tags and not any(_fits(tag, python) for tag in tags):
            pythons = sorted({f"{tag.interpreter}-{tag.abi}" for tag in tags})
            wrong = f"another Python ({joined(pythons)}), this is Python {python[0]}.{python[1]}"
        if wrong:
            yield Found(
                f"{package.title}: this wheel is for {wrong}; pip will refuse it.",
                f"Its file name says so: {package.wheel.name if package.wheel else ''}. What else is said of it here "
                "holds where it can be installed.",
                f"{case.environment.pip} install --no-deps {package.name}=={package.public}  # takes the one that fits",
                package.name,
            )


@look_for("D211", "A wheel that was given installs the same import as another package.", level=Level.WARNING)
def wheels_of_one_import(case: Case) -> Iterable[Found]:
    """Look for distributions of one import name (as the data beside the recipes says) besides the wheel's own."""
    for number, package in enumerate(case.wheels):
        for other in (*case.wheels[number + 1 :], *case.installed):
            if package.known is None or other.known is not package.known or not package.known.module:
                continue
            if other.name == package.name:
                continue
            yield Found(
                f"{package.title} and {other.title} overwrite each other: both install {package.known.module}/.",
                "They are one package under two names; pip does not know, and would list both as installed.",
                f"install one of {package.name} and {other.name} only"
                if other.wheel
                else f"{case.environment.pip} uninstall -y {other.name}  # before {package.name} is installed",
                package.name,
            )


def _tags(wheel: Path) -> frozenset[Tag]:
    try:
        return parse_wheel_filename(wheel.name)[3]
    except InvalidWheelFilename:
        return frozenset()  # renamed by hand: nothing is known


def _processor(platform: str) -> str:
    """Return a platform tag's kind of processor on Linux; of other systems, and of `any`, the tag itself."""
    match = _LINUX.fullmatch(platform)
    return match["processor"] if match else platform


def _fits(tag: Tag, python: tuple[int, int]) -> bool:
    interpreter = f"cp{python[0]}{python[1]}"
    fitting = [*cpython_tags(python, [interpreter], ["any"]), *compatible_tags(python, interpreter, ["any"])]
    return any((tag.interpreter, tag.abi) == (one.interpreter, one.abi) for one in fitting)
