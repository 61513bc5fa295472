"""What a unit is expected to need, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

GIB = 1 << 30


class Source(StrEnum):
    """Where a prediction came from, best first."""

    SAME = "same unit"
    VERSION = "another version's unit"
    FAMILY = "its family"
    COSTS = "costs.tsv"
    GUESSED = "costs.tsv, guessed"
    PRIOR = "prior"


MEASURED = (Source.SAME, Source.COSTS)
"""The sources that measured this very unit."""


# What is added to a measured peak: the same unit differs by about 1 % from run to run, the others by more.
MARGIN = {
    Source.SAME: 1.03,
    Source.VERSION: 1.10,
    Source.FAMILY: 1.15,
    Source.COSTS: 1.10,
    Source.GUESSED: 1.10,
    Source.PRIOR: 1.0,
}

PRIOR_PEAK = 4 * GIB
PRIOR_SECONDS = 30.0

# After a kill for memory the next guess is at least this many times what was reserved or seen.
KILL_FACTOR = 1.5


@dataclass(frozen=True)
class Prediction:
    """The peak to reserve (bytes) and the time (seconds on one core) expected of one unit."""

    peak_bytes: int
    seconds: float
    source: Source = Source.PRIOR

    @classmethod
    def of(cls, peak_bytes: float, seconds: float, source: Source) -> Prediction:
        """Return the prediction that follows from a measured peak: with the margin that its source asks for."""
        return cls(int(peak_bytes * MARGIN[source]), seconds, source)

    def at_least(self, peak_bytes: int) -> Prediction:
        """Return the prediction with no less than this peak to reserve (bytes)."""
        return replace(self, peak_bytes=max(self.peak_bytes, peak_bytes))

    def as_json(self) -> dict[str, Any]:
        """Return the prediction as the object that plans and the broker's configuration hold."""
        return {"peak_bytes": self.peak_bytes, "seconds": self.seconds, "source": self.source.value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Prediction:
        """Read what `as_json` wrote."""
        return cls(int(value["peak_bytes"]), float(value["seconds"]), Source(value["source"]))


PRIOR = Prediction(PRIOR_PEAK, PRIOR_SECONDS, Source.PRIOR)
