"""What a look at a wheel found: results, the verdict they add up to, and how far the wheel is proven."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from smwheel.errors import SmwheelError, VerifyError, VerifyIncompleteError

FORMAT = 1
"""Version of the JSON that `Verdict.as_json` gives; its schema is the `verdict` of `docs/verify.schema.json`."""


class Level(StrEnum):
    """How far a wheel is proven, weakest first. It is never called proven without its level."""

    NONE = "none"
    STATIC = "static"
    IMPORTED = "imported"
    LAUNCHED_ELSEWHERE = "launched on another architecture"
    LAUNCHED = "launched on this one"
    SERVED = "served"


class Status(StrEnum):
    """What became of a check. One that could not be made has not passed."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_MADE = "not made"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: a sentence, the file of the wheel it is about, and what to do if not the check's."""

    message: str
    file: str = ""
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.message}" if self.file else self.message


@dataclass(frozen=True)
class Result:
    """One check's outcome. `means` is the sentence that is true when it passed; `reason` why it was not made."""

    code: str
    means: str
    status: Status
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    cure: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as the object that `--json` prints."""
        return {
            "code": self.code,
            "means": self.means,
            "status": str(self.status),
            "problems": [
                {"file": one.file, "message": one.message, "cure": one.cure or self.cure} for one in self.problems
            ],
            "notes": list(self.notes),
            "reason": self.reason,
            "cure": self.cure if self.status is not Status.PASSED else "",
        }


@dataclass(frozen=True)
class Verdict:
    """All results for one wheel. `asked` is the level that the checks made could prove."""

    wheel: str
    sha256: str
    asked: Level
    results: tuple[Result, ...]

    def having(self, status: Status) -> tuple[Result, ...]:
        """Return the results of one status."""
        return tuple(result for result in self.results if result.status is status)

    @property
    def status(self) -> Status:
        """Failed if any check failed, else not made if any was not, else passed."""
        for status in (Status.FAILED, Status.NOT_MADE):
            if self.having(status):
                return status
        return Status.PASSED

    @property
    def level(self) -> Level:
        """What is proven: the level asked for if every check was made and passed; static if only those did."""
        if self.status is Status.PASSED and self.results:
            return self.asked
        static = [result for result in self.results if not result.code.startswith("W6")]
        if self.asked is not Level.STATIC and static and all(one.status is Status.PASSED for one in static):
            return Level.STATIC
        return Level.NONE

    def error(self) -> SmwheelError | None:
        """Return the error that ends the program, or None when every check was made and passed."""
        failed, unmade = self.having(Status.FAILED), self.having(Status.NOT_MADE)
        if failed:
            first = failed[0]
            problem = first.problems[0]
            more = ", ".join(result.code for result in failed[1:])
            return VerifyError(
                f"{first.code}: {problem}" + (f" (failed too: {more})" if more else ""),
                where=self.wheel,
                cure=problem.cure or first.cure,
            )
        if unmade:
            reasons = "; ".join(dict.fromkeys(result.reason for result in unmade))
            return VerifyIncompleteError(
                f"incomplete: {', '.join(result.code for result in unmade)} not made: {reasons}",
                where=self.wheel,
                cure=unmade[0].cure,
            )
        return None

    def as_json(self) -> dict[str, Any]:
        """Return it as the object that `--json` prints."""
        error = self.error()
        return {
            "format": FORMAT,
            "wheel": self.wheel,
            "sha256": self.sha256,
            "status": {Status.NOT_MADE: "incomplete"}.get(self.status, str(self.status)),
            "level": str(self.level),
            "exit_code": error.exit_code if error else 0,
            "checks": [result.as_json() for result in self.results],
        }
