"""The predictions of one build, which get better while it runs: what its first units needed tells of the others."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from smwheel.governor.broker import Outcome
from smwheel.governor.ledger import Build, Cost, Ledger
from smwheel.governor.prediction import PRIOR, Prediction, Source

# Predictions that a measured unit of the same family makes better.
WEAK = (Source.PRIOR, Source.FAMILY)


@dataclass
class Learner:
    """Predicts from what was known at the start and from this build's own families; writes the ledger."""

    known: Mapping[str, Prediction]
    families: Mapping[str, str]
    ledger: Ledger | None = None
    build: Build | None = None
    warn: Callable[[str], None] = lambda _: None
    _seen: dict[str, list[Outcome]] = field(default_factory=dict)

    def planned(self) -> dict[str, Prediction]:
        """Return the units that are expected to ask."""
        return dict(self.known)

    def predict(self, unit: str) -> Prediction:
        """Return the best that is known of a unit now."""
        best = self.known.get(unit) or self._from_ledger(unit)
        seen = self._seen.get(self.families.get(unit, ""), [])
        if best.source in WEAK and seen:
            seconds = sum(outcome.cpu for outcome in seen) / len(seen)
            now = Prediction.of(max(outcome.peak for outcome in seen), seconds, Source.FAMILY)
            return now.at_least(best.peak_bytes) if best.source is Source.FAMILY else now
        return best

    def learn(self, unit: str, outcome: Outcome) -> None:
        """Take note of what a unit needed, for its family and for later builds."""
        family = self.families.get(unit, "")
        if family:
            self._seen.setdefault(family, []).append(outcome)
        if self.ledger is None or self.build is None:
            return
        cost = Cost(
            **asdict(self.build),
            unit=unit,
            family=family,
            peak=outcome.peak,
            cpu=outcome.cpu,
            wall=outcome.wall,
        )
        try:
            self.ledger.record(cost)
        except sqlite3.Error as error:
            # What was learned is lost; the build is not.
            self.warn(f"{self.ledger.path}: what {unit} took was not kept: {error}")

    def _from_ledger(self, unit: str) -> Prediction:
        """Return what the ledger knows of a unit that no plan named (another build system's)."""
        if self.ledger is None or self.build is None:
            return PRIOR
        build = self.build
        return self.ledger.predict(build.recipe, build.version, unit, "", build.arch, build.toolkit, build.flags)


def learner_to_json(
    known: Mapping[str, Prediction], families: Mapping[str, str], ledger: Path | None, build: Build | None
) -> dict[str, Any]:
    """Return a learner's beginnings as the broker's configuration holds them."""
    return {
        "known": {unit: prediction.as_json() for unit, prediction in known.items()},
        "families": dict(families),
        "ledger": str(ledger) if ledger else None,
        "build": asdict(build) if build else None,
    }


def learner_from_json(value: dict[str, Any], warn: Callable[[str], None]) -> Learner:
    """Return the learner that `learner_to_json` describes; `warn` hears of a ledger that cannot be written."""
    return Learner(
        warn=warn,
        known={unit: Prediction.from_json(one) for unit, one in value["known"].items()},
        families=value["families"],
        ledger=Ledger(Path(value["ledger"])) if value["ledger"] else None,
        build=Build(**value["build"]) if value["build"] else None,
    )
