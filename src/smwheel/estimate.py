"""What a plan's units are expected to take on this machine, and how much of that was measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from smwheel.governor.bound import lower_bound
from smwheel.governor.ledger import Build, CostRow, Ledger, predict_from_rows, read_costs_tsv
from smwheel.governor.limits import Limits
from smwheel.governor.prediction import MEASURED, Prediction
from smwheel.paths import cache_dir
from smwheel.plan import Plan, Unit
from smwheel.progress import duration, size

OVERHEAD = 1.2
"""A build takes about this many times its lower bound: ninja, links, and cores that wait for memory."""


@dataclass(frozen=True)
class Estimate:
    """Expected time (seconds) and peak memory (bytes) of a plan here; `measured` of `units` are not guesses."""

    units: int
    measured: int
    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return the object that `plan --json` prints."""
        return vars(self) | {"basis": self.basis}

    @property
    def basis(self) -> str:
        """How sure the estimate is, in words."""
        if self.measured == 0:
            return "guessed"
        return "measured" if self.measured == self.units else f"{self.measured} of {self.units} units measured"

    def as_text(self) -> str:
        """Return the estimate as a line of a plan."""
        return (
            f"about {duration(self.wall_seconds)} here ({duration(self.cpu_seconds)} of CPU), "
            f"largest unit {size(self.peak_bytes)} ({self.basis})"
        )


def ledger_key(plan: Plan) -> Build:
    """Return under which key this plan's units are kept in the ledger of costs."""
    resolution = plan.resolution
    return Build(resolution.recipe.name, resolution.version, resolution.arch.code, plan.toolchain["version"])


def ledger() -> Ledger:
    """Return this machine's ledger of costs, in the cache."""
    return Ledger(cache_dir() / "costs.sqlite")


def predict(plan: Plan) -> dict[str, Prediction]:
    """Return what each unit of a plan is expected to take.

    Raises:
        RecipeError: the recipe's costs.tsv is wrong.
    """
    key, known = ledger_key(plan), ledger()
    path = plan.resolution.recipe.directory / "costs.tsv"
    rows = read_costs_tsv(path) if path.is_file() else []
    return {unit.id: _predict_unit(unit, key, known, rows) for unit in plan.units}


def _predict_unit(unit: Unit, key: Build, known: Ledger, rows: list[CostRow]) -> Prediction:
    """Return what the ledger and the recipe's costs say of a unit; a recipe may name it by its source too."""
    names = (unit.id, f"{unit.module}/{PurePosixPath(unit.source).name}")

    def said() -> Prediction:
        return predict_from_rows(rows, version=key.version, names=names, family=unit.family, arch=key.arch)

    return known.predict(key.recipe, key.version, unit.id, unit.family, key.arch, key.toolkit, key.flags, said)


def estimate(predictions: dict[str, Prediction], limits: Limits) -> Estimate:
    """Return what units take together under these limits."""
    pairs = [(float(each.peak_bytes), each.seconds) for each in predictions.values()]
    bound = lower_bound(pairs, budget=limits.budget, cores=limits.jobs)
    return Estimate(
        units=len(pairs),
        measured=sum(each.source in MEASURED for each in predictions.values()),
        cpu_seconds=sum(seconds for _, seconds in pairs),
        wall_seconds=bound.seconds * OVERHEAD,
        peak_bytes=max((each.peak_bytes for each in predictions.values()), default=0),
    )
