"""Findings: one function a fault, registered with a stable code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from smwheel.errors import SmwheelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smwheel.doctor.case import Case

    Function = Callable[[Case], Iterable["Found | NotSeen"]]


class Level(StrEnum):
    """A fault: something will not work. A warning: it works, and will surprise."""

    FAULT = "fault"
    WARNING = "warning"


@dataclass(frozen=True)
class Found:
    """What a finding says: one sentence that stands alone, why that is so, and the one command that cures it."""

    sentence: str
    why: str
    cure: str
    about: str = ""


@dataclass(frozen=True)
class NotSeen:
    """Something that could not be looked at, and why."""

    text: str


@dataclass(frozen=True)
class Finding:
    """A fault or warning that was found."""

    code: str
    level: Level
    sentence: str
    why: str
    cure: str
    about: str

    def as_json(self) -> dict[str, str]:
        """Return it as the object that `--json` prints."""
        return {
            "code": self.code,
            "level": str(self.level),
            "sentence": self.sentence,
            "why": self.why,
            "cure": self.cure,
            "about": self.about,
        }


@dataclass(frozen=True)
class Look:
    """One thing to look for; `title` names the fault in the list of the guide."""

    code: str
    level: Level
    title: str
    function: Function

    def make(self, case: Case) -> tuple[list[Finding], list[str]]:
        """Return what was found, and what could not be looked at."""
        found: list[Finding] = []
        unseen: list[str] = []
        try:
            for one in self.function(case):
                if isinstance(one, NotSeen):
                    unseen.append(one.text)
                else:
                    found.append(Finding(self.code, self.level, one.sentence, one.why, one.cure, one.about))
        except SmwheelError as error:
            unseen.append(f"{self.title} ({self.code}): {error}")
        except OSError as error:
            unseen.append(f"{self.title} ({self.code}): {error.filename}: {error.strerror}")
        return found, unseen


_LOOKS: dict[str, Look] = {}


def look_for(code: str, title: str, *, level: Level = Level.FAULT) -> Callable[[Function], Function]:
    """Register a function that looks for the fault `code`."""

    def register(function: Function) -> Function:
        if code in _LOOKS:
            raise ValueError(f"two findings have the code {code}")
        _LOOKS[code] = Look(code, level, title, function)
        return function

    return register


def registered() -> dict[str, Look]:
    """Return everything that is looked for, by code."""
    return dict(sorted(_LOOKS.items()))
