"""How fast a build could be at best, for any schedule that reserves each unit's peak for its whole time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum


@dataclass(frozen=True)
class Bound:
    """The four lower bounds of the makespan, in seconds; the build cannot be faster than the greatest."""

    cores: float
    memory: float
    longest: float
    large: float

    @property
    def seconds(self) -> float:
        """The greatest of the four."""
        return max(self.cores, self.memory, self.longest, self.large)

    @property
    def binding(self) -> str:
        """Which of the four it is."""
        parts = {"cores": self.cores, "memory": self.memory, "longest": self.longest, "large": self.large}
        return max(parts, key=lambda name: parts[name])


def lower_bound(units: Iterable[tuple[float, float]], *, budget: float, cores: int) -> Bound:
    """Return the bound for units of (peak in bytes, seconds on one core).

    No two units above half the budget run together, so their times add up. A unit above the whole budget runs
    alone and is counted as all of it.
    """
    pairs = [(min(peak, budget), seconds) for peak, seconds in units]
    return Bound(
        cores=fsum(seconds for _, seconds in pairs) / cores,
        memory=fsum(peak * seconds for peak, seconds in pairs) / budget,
        longest=max((seconds for _, seconds in pairs), default=0.0),
        large=fsum(seconds for peak, seconds in pairs if peak > budget / 2),
    )
