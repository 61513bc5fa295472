"""Checks: one function each, registered with a stable code, what it means when it passes, and what to do when not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smwheel.errors import MalformedError
from smwheel.verify.verdict import Problem, Result, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smwheel.verify.expectations import Expectations
    from smwheel.verify.subject import Subject

    Function = Callable[[Subject, Expectations], Iterable[Problem | str]]

_HOW_TO_GIVE = {
    "arch": "the architecture is not known: give --arch",
    "recipe": "the recipe's rules are not known: they need --recipe, --arch and --stack",
    "cuda": "the stack's CUDA version is not known: give --stack",
    "torch": "the stack's torch version is not known: give --stack",
    "original": "the original's sha256 is not known: give --recipe of a package that is cut from a published wheel",
    "against": "the original wheel is not given: give --against",
}


@dataclass(frozen=True)
class Check:
    """One check; `needs` names the expectations without which it cannot be made."""

    code: str
    means: str
    cure: str
    needs: tuple[str, ...]
    function: Function

    def make(self, subject: Subject, expect: Expectations) -> Result:
        """Make the check: a text yielded is a note, a Problem makes it fail; so does a file that cannot be read."""
        unknown = [_HOW_TO_GIVE[need] for need in self.needs if getattr(expect, need) in (None, "")]
        if unknown:
            return self._result(Status.NOT_MADE, reason="; ".join(unknown), cure="give what is missing")
        problems: list[Problem] = []
        notes: list[str] = []
        try:
            for found in self.function(subject, expect):
                if isinstance(found, Problem):
                    problems.append(found)
                else:
                    notes.append(found)
        except NotMade as reason:
            if not problems:
                return self._result(Status.NOT_MADE, notes=notes, reason=str(reason), cure=reason.cure)
        except MalformedError as error:
            problems.append(Problem(error.message, file=subject.member_name(error.where), cure=error.cure))
        status = Status.FAILED if problems else Status.PASSED
        return self._result(status, problems=problems, notes=notes, cure=self.cure)

    def _result(
        self,
        status: Status,
        *,
        problems: Iterable[Problem] = (),
        notes: Iterable[str] = (),
        reason: str = "",
        cure: str = "",
    ) -> Result:
        return Result(
            code=self.code,
            means=self.means,
            status=status,
            problems=tuple(problems),
            notes=tuple(notes),
            reason=reason,
            cure=cure,
        )


class NotMade(Exception):  # noqa: N818  # an outcome of a check, not a failure of the program
    """A check cannot be made; the text says why, `cure` what to do."""

    def __init__(self, reason: str, *, cure: str = "") -> None:
        super().__init__(reason)
        self.cure = cure


_CHECKS: dict[str, Check] = {}


def check(code: str, means: str, *, cure: str, needs: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Register a function as the check `code`."""

    def register(function: Function) -> Function:
        if code in _CHECKS:
            raise ValueError(f"two checks have the code {code}")
        _CHECKS[code] = Check(code, means, cure, needs, function)
        return function

    return register


def registered() -> list[Check]:
    """Return every check, by code."""
    return [_CHECKS[code] for code in sorted(_CHECKS)]
