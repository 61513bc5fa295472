"""The broker on a virtual clock: all 2,637 units of FlashInfer 0.6.4 for sm_120a, on machines of every size.

    python benchmarks/governor_simulation.py [--cores 8,16,32,64,128] [--memory 16,32,64,128,256,512]
        [--error 0.4 | --cold] [--window 192] [--markdown FILE] [--svg FILE]

The broker is the one that builds use, object for object; only clock, compilers and memory are simulated. A unit's
memory follows the measured ramp of cicc; when the sum goes over the machine's memory the largest process is killed,
as the kernel does. `--error 0.4` multiplies each predicted peak and time by an independent factor of 0.6 to 1.4.
With `--cold` nothing is known before, as in the first build of a recipe without costs: 4 GiB are assumed, and the first
units of a family tell of the others. Units ask in the order of expected time, `--window` of them at once (as ninja's
-j has it), and the broker knows the plan; cold, they ask in an order drawn by `--seed`. Costs: `governor_units.tsv`, 76
units measured and the others drawn from their family.

Prints one row a machine; exit 1 if exact predictions led to a kill or to more than 1.25 times the bound.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

from smwheel.governor.bound import Bound, lower_bound  # noqa: E402  # found through the line above
from smwheel.governor.broker import Broker, Outcome  # noqa: E402
from smwheel.governor.learning import Learner  # noqa: E402
from smwheel.governor.limits import CGROUP_RESERVE, GIB, MIB  # noqa: E402
from smwheel.governor.prediction import PRIOR, Prediction, Source  # noqa: E402

MOST_RATIO = 1.25
STEP = 1.0  # seconds between looks at the memory, where it could run out

# Share of the time → share of the peak: a heavy unit looks like a light one at first, climbs, is above half of its
# peak for 26 % of its time and above 90 % for 9.6 %, and falls sharply near the end (measured on a unit of 8.8 GB).
RAMP = ((0, 0.12), (0.2, 0.12), (0.7, 0.5), (0.865, 0.9), (0.94, 1), (0.96, 0.9), (0.965, 0.5), (1, 0.1))


@dataclass(frozen=True)
class Unit:
    """One unit: what it really takes (seconds on a core, bytes at its peak)."""

    name: str
    seconds: float
    peak: float

    def memory(self, since: float) -> float:
        """Return the bytes it holds so many seconds after its start."""
        share = min(since / self.seconds, 1.0)
        for (left, low), (right, high) in pairwise(RAMP):
            if share <= right:
                return self.peak * (low + (high - low) * (share - left) / (right - left))
        return 0.0


@dataclass(frozen=True)
class Result:
    """How a machine did: seconds, the bound, kills and the CPU seconds that these wasted."""

    cores: int
    memory: int
    makespan: float
    bound: Bound
    kills: int
    wasted: float
    failed: int

    @property
    def ratio(self) -> float:
        """The makespan over the bound."""
        return self.makespan / self.bound.seconds


class Oracle:
    """Predicts each unit from its real cost, off by an independent factor; learns nothing."""

    def __init__(self, units: list[Unit], error: float, seed: int) -> None:
        """Draw the errors."""
        draw = random.Random(seed)
        self.table = {
            unit.name: Prediction(
                int(unit.peak * (1 + draw.uniform(-error, error))),
                unit.seconds * (1 + draw.uniform(-error, error)),
                Source.SAME,
            )
            for unit in units
        }

    def predict(self, unit: str) -> Prediction:
        """Return the prediction that was drawn."""
        return self.table[unit]

    def planned(self) -> dict[str, Prediction]:
        """Return what is predicted of all units."""
        return self.table

    def learn(self, unit: str, outcome: Outcome) -> None:
        """Take no note: each unit is built once."""


def beginner(units: list[Unit]) -> Learner:
    """Return a predictor that knows nothing of these units but their families."""
    return Learner(
        known=dict.fromkeys((unit.name for unit in units), PRIOR),
        families={unit.name: unit.name.partition(":")[0] for unit in units},
    )


class Machine:
    """Cores, memory, a clock, and what runs."""

    def __init__(
        self,
        units: list[Unit],
        predictor: Oracle | Learner,
        *,
        cores: int,
        memory: int,
        window: int,
        shuffle: int | None = None,
    ) -> None:
        """Prepare a machine whose broker knows the plan; units of whom the same is expected ask by name, or drawn."""
        share, lowest, highest = CGROUP_RESERVE
        self.cores, self.memory = cores, memory
        self.budget = memory - int(min(max(memory * share, lowest), highest))
        self.units = units
        self.failed = self.kills = 0
        self.wasted = self.now = 0.0
        self.broker = Broker(
            budget=self.budget,
            cores=cores,
            memory=memory,
            memory_source="the simulation",
            predictor=predictor,
            record=lambda _event: None,
        )
        planned = predictor.planned()
        self.broker.scheduler.plan(planned)
        order = sorted(range(len(units)), key=lambda n: units[n].name)
        if shuffle is not None:
            random.Random(shuffle).shuffle(order)
        self.queue = sorted(order, key=lambda n: planned[units[n].name].seconds)
        self.window = window
        self.running: dict[int, float] = {}
        self.asked: set[int] = set()

    def run(self) -> Result:
        """Run to the end."""
        self._ask()
        while self.asked:
            used = self._used()
            for request in self.broker.admit(now=self.now, left=int(self.memory - used)):
                self.running[request.ticket] = self.now
            self._advance()
            self._ask()
        bound = lower_bound([(u.peak, u.seconds) for u in self.units], budget=self.budget, cores=self.cores)
        return Result(self.cores, self.memory, self.now, bound, self.kills, self.wasted, self.failed)

    def _ask(self) -> None:
        while self.queue and len(self.asked) < self.window:
            ticket = self.queue.pop()
            self.asked.add(ticket)
            self.broker.ask(ticket, self.units[ticket].name, now=self.now)

    def _advance(self) -> None:
        """Go on to the next end of a unit, or one step where the memory could run out before it."""
        first = min(self.running, key=lambda ticket: (self.running[ticket] + self.units[ticket].seconds, ticket))
        end = self.running[first] + self.units[first].seconds
        could_run_out = sum(self.units[ticket].peak for ticket in self.running) > self.memory
        if could_run_out and end > self.now + STEP:
            self.now += STEP
            while self._used() > self.memory:
                self._kill_the_largest()
            return
        self.now = end
        del self.running[first]
        self.asked.remove(first)
        unit = self.units[first]
        self.broker.done(first, Outcome(0, unit.seconds, unit.seconds, int(unit.peak)), now=self.now)

    def _used(self) -> float:
        return sum(self.units[ticket].memory(self.now - started) for ticket, started in self.running.items())

    def _kill_the_largest(self) -> None:
        ticket = max(self.running, key=lambda t: self.units[t].memory(self.now - self.running[t]))
        ran = self.now - self.running.pop(ticket)
        self.kills += 1
        self.wasted += ran
        peak = int(self.units[ticket].memory(ran))
        if self.broker.done(ticket, Outcome(137, ran, ran, peak, killed=True), now=self.now).action != "retry":
            self.failed += 1
            self.asked.remove(ticket)


def read_units(path: Path) -> list[Unit]:
    """Read the costs; units of a kind get numbers."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader((line for line in file if not line.startswith("#")), delimiter="\t"))
    return [
        Unit(f"{row['family']}:{row['measured']}#{number}", float(row["cpu_s"]), float(row["peak_mib"]) * MIB)
        for row in rows
        for number in range(int(row["units"]))
    ]


def markdown(results: list[Result]) -> str:
    """Return the results as a table."""
    lines = ["| cores | GiB | makespan s | bound s | bound by | ratio | kills | wasted CPU s |", "|---|" + "---|" * 7]
    lines += [
        f"| {r.cores} | {r.memory // GIB} | {r.makespan:.0f} | {r.bound.seconds:.0f} | {r.bound.binding} "
        f"| {r.ratio:.3f} | {r.kills} | {r.wasted:.0f} |"
        for r in results
    ]
    return "\n".join(lines)


def svg(results: list[Result], title: str) -> str:
    """Return a picture: a square a machine, its ratio in it, the darker the further from the bound."""
    cores = sorted({r.cores for r in results})
    sizes = sorted({r.memory for r in results})
    width, height = 110 + 92 * len(sizes), 96 + 46 * len(cores)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="14"><rect width="100%" height="100%" fill="white"/><text x="12" y="24" font-weight="bold">'
        f"{title}</text>"
    )
    parts = [head]
    for column, size in enumerate(sizes):
        parts.append(f'<text x="{150 + 92 * column}" y="52" text-anchor="middle">{size // GIB} GiB</text>')
    for row, count in enumerate(cores):
        parts.append(f'<text x="96" y="{88 + 46 * row}" text-anchor="end">{count} cores</text>')
    for r in results:
        x, y = 108 + 92 * sizes.index(r.memory), 62 + 46 * cores.index(r.cores)
        shade = int(255 - 150 * min(max(r.ratio - 1, 0) / 0.5, 1))
        kills = f" · {r.kills} k" if r.kills else ""
        parts.append(
            f'<rect x="{x}" y="{y}" width="86" height="40" rx="4" fill="rgb({shade},{shade},255)" stroke="#88a"/>'
            f'<text x="{x + 43}" y="{y + 26}" text-anchor="middle">{r.ratio:.2f}{kills}</text>'
        )
    return "".join([*parts, "</svg>\n"])


def main() -> None:
    """Simulate, print, and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cores", default="8,16,32,64,128")
    parser.add_argument("--memory", default="16,32,64,128,256,512", help="GiB")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--error", type=float, default=0.0)
    how.add_argument("--cold", action="store_true")
    parser.add_argument("--window", type=int, default=192)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    units = read_units(HERE / "governor_units.tsv")
    results = []
    for cores in map(int, options.cores.split(",")):
        for size in map(int, options.memory.split(",")):
            machine = Machine(
                units,
                beginner(units) if options.cold else Oracle(units, options.error, options.seed),
                cores=cores,
                memory=size * GIB,
                window=max(options.window, 2 * cores),
                shuffle=options.seed if options.cold else None,
            )
            results.append(machine.run())
            print(markdown(results[-1:]).splitlines()[-1], flush=True)
    if options.markdown:
        options.markdown.write_text(markdown(results) + "\n")
    if options.svg:
        known = f"predictions off by up to {options.error:.0%}" if options.error else "exact predictions"
        if options.cold:
            known = "nothing known before"
        options.svg.write_text(svg(results, f"Makespan over the bound, {len(units):,} units, {known}"))
    exact = not (options.error or options.cold)
    if any(r.failed for r in results) or (exact and any(r.kills or r.ratio > MOST_RATIO for r in results)):
        sys.exit("a unit failed, or exact predictions led to a kill or to more than 1.25 times the bound")


if __name__ == "__main__":
    main()
