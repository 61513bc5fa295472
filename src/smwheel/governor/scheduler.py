"""Which waiting unit starts next: pure decisions, no clock and no input or output of its own.

Each running unit holds a reservation of its predicted peak and one core. What may start is decided over all
waiting units at once:

- The unit that matters most goes first: the one that takes the largest share of the machine for the longest
  time, and before it those that would last when all else is done. So long and heavy units start early, and the
  many light ones fill what is left beside them.
- Units that take more than a core's share of the memory (heavy ones) leave room for the others (light ones):
  as much as those need, on average over what is left of the build, to be done in time. Without this the heavy
  ones fill the memory first while cores idle, and the light ones fill the cores later while memory idles.
- With few units left, filling the memory with the heaviest first can end sooner, since nothing stays behind to fill
  what the last heavy ones leave. So both rules are followed to the end in thought, with what is expected of each
  unit, and the one that ends first decides.
- When it does not fit yet, the memory it will start in is held for it: another may start before it only if it is
  expected to end by then or fits beside it then (backfilling with one reservation).
- A unit that has waited longer than `PATIENCE` goes before all others, oldest first; until it fits none starts.
- A unit that needs the machine for itself (its peak is over the budget, or it was killed beside others) starts
  when nothing runs; those that are known to be too large go first, when nothing has to be stopped for them,
  those to be tried again go last, so that one emptying of the machine serves them all.

Ties are broken by the unit's name and sums are exact, so the order of arrival does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import fsum

from smwheel.governor.bound import lower_bound
from smwheel.governor.prediction import Prediction

# A waiting unit is not overtaken for longer than this many seconds.
PATIENCE = 3600.0

# Nothing is admitted beside others while less than this share of the memory is left.
GUARD = 0.06

# A unit that takes more than this share of the time that the rest of the build must take comes first.
URGENT = 0.5

# With more units than this to come, one rule is as good as the other, and following them takes too long.
FEW = 150


class Rule(Enum):
    """Which units go first."""

    BALANCED = "the largest share of the machine for the longest time, with room left for light units"
    HEAVIEST = "the largest peak, with no room left for light units"


# A unit that runs longer than expected is taken to need this share of its expected time yet.
OVERDUE = 0.25


@dataclass
class Request:
    """One unit that waits or runs. `ticket` is the client's own number; times are the caller's clock, seconds."""

    ticket: int
    unit: str
    prediction: Prediction
    asked: float
    alone: bool = False
    started: float | None = None
    lone: bool = field(default=False)

    def expected_end(self, now: float) -> float:
        """Return when a running unit is expected to end."""
        assert self.started is not None  # noqa: S101  # only asked of running units
        seconds = self.prediction.seconds
        return max(self.started + seconds, now + OVERDUE * seconds)


class Scheduler:
    """The waiting and the running units of one build, and the rule that admits."""

    def __init__(self, *, budget: int, cores: int) -> None:
        """Admit into `budget` bytes and `cores` units at once."""
        self.budget = budget
        self.cores = cores
        self.waiting: dict[int, Request] = {}
        self.running: dict[int, Request] = {}
        self.planned: dict[str, Prediction] = {}

    @property
    def reserved(self) -> int:
        """The bytes that the running units hold together."""
        return sum(request.prediction.peak_bytes for request in self.running.values())

    def plan(self, units: Mapping[str, Prediction]) -> None:
        """Tell which units will ask some time, so that those that came first do not take their room."""
        self.planned = dict(units)

    def ask(self, ticket: int, unit: str, prediction: Prediction, *, now: float, alone: bool = False) -> Request:
        """Add a unit that wants to run; `alone` when it was killed beside others."""
        request = Request(ticket, unit, prediction, now, alone)
        self.waiting[ticket] = request
        self.planned.pop(unit, None)
        return request

    def repredict(self, ticket: int, prediction: Prediction) -> None:
        """Change what is expected of a unit that still waits."""
        if ticket in self.waiting:
            self.waiting[ticket].prediction = prediction

    def release(self, ticket: int) -> Request | None:
        """Forget a unit that ended, or whose client died, at any point; its reservation is free."""
        return self.running.pop(ticket, None) or self.waiting.pop(ticket, None)

    def admit(self, *, now: float, left_share: float = 1.0) -> list[Request]:
        """Start what may start now; `left_share` is how much of the real memory is still free (0 to 1)."""
        if any(request.lone for request in self.running.values()):
            return []
        started: list[Request] = []
        if self.running and left_share < GUARD:
            return started
        shared: list[Request] = []
        lone: list[Request] = []
        for request in self.waiting.values():
            (lone if self._needs_all(request) else shared).append(request)
        if lone and not self.running:
            too_large = [request for request in lone if not request.alone]
            late = [request for request in lone if now - request.asked > PATIENCE]
            if too_large or late or not shared:
                first = min(too_large or late or lone, key=lambda r: (-r.prediction.seconds, r.unit, r.ticket))
                return [self._start(first, now, lone=True)]
        if any(now - request.asked > PATIENCE for request in lone):
            return started
        return self._backfill(shared, now, self._better_rule(now) if shared else Rule.BALANCED)

    def _needs_all(self, request: Request) -> bool:
        return request.alone or request.prediction.peak_bytes > self.budget

    def _better_rule(self, now: float) -> Rule:
        """Return the rule under which the build is expected to end first."""
        if len(self.waiting) + len(self.planned) > FEW or len(self.running) >= self.cores:
            return Rule.BALANCED
        return min(Rule, key=lambda rule: self._forecast(rule, now))

    def _forecast(self, rule: Rule, now: float) -> float:
        """Return when all units would end under a rule if all were as expected; those that need the machine aside."""
        thought = Scheduler(budget=self.budget, cores=self.cores)
        ends = {}
        for ticket, request in self.running.items():
            thought.running[ticket] = replace(request)
            ends[ticket] = request.expected_end(now)
        known = [(request.unit, request.prediction) for request in self.waiting.values() if not request.alone]
        for ticket, (unit, prediction) in enumerate([*known, *self.planned.items()], start=1):
            if prediction.peak_bytes <= self.budget:
                thought.waiting[-ticket] = Request(-ticket, unit, prediction, now)
        while thought.waiting or thought.running:
            for request in thought._backfill(thought.waiting.values(), now, rule):
                ends[request.ticket] = now + request.prediction.seconds
            now = max(now, min(ends[ticket] for ticket in thought.running))
            # All that end now, so that it does not matter who of them asked first.
            thought.running = {ticket: one for ticket, one in thought.running.items() if ends[ticket] > now}
        return now

    def _backfill(self, shared: Iterable[Request], now: float, rule: Rule) -> list[Request]:
        started: list[Request] = []
        free_cores = self.cores - len(self.running)
        free = self.budget - self.reserved
        heavy = sum(r.prediction.peak_bytes for r in self.running.values() if self._is_heavy(r.prediction))
        bound, light_room = self._outlook(now) if rule is Rule.BALANCED else (0.0, 0.0)
        heavy_most = self.budget - light_room
        held: _Hold | None = None
        for request in sorted(shared, key=lambda r: self._order(r, now, bound, rule)):
            if free_cores <= 0:
                break
            peak = request.prediction.peak_bytes
            is_heavy = self._is_heavy(request.prediction)
            if peak > free:
                if now - request.asked > PATIENCE:
                    break
                held = held or self._hold_for(request, now)
                continue
            if is_heavy and heavy and heavy + peak > heavy_most and now - request.asked <= PATIENCE:
                continue
            if held is not None and not held.lets(request, now):
                continue
            started.append(self._start(request, now))
            free -= peak
            free_cores -= 1
            heavy += peak if is_heavy else 0
        return started

    def _is_heavy(self, prediction: Prediction) -> bool:
        """Return whether a unit takes more than a core's share of the memory."""
        return prediction.peak_bytes * self.cores > self.budget

    def _outlook(self, now: float) -> tuple[float, float]:
        """Return how long the rest of the build must take, and the bytes that light units hold on average then."""
        left = [(r.prediction.peak_bytes, r.prediction.seconds) for r in self.waiting.values()]
        left += [(r.prediction.peak_bytes, r.expected_end(now) - now) for r in self.running.values()]
        left += [(p.peak_bytes, p.seconds) for p in self.planned.values()]
        bound = lower_bound(left, budget=self.budget, cores=self.cores).seconds
        light = fsum(peak * seconds for peak, seconds in left if peak * self.cores <= self.budget)
        return bound, light / bound if bound else 0.0

    def _order(self, request: Request, now: float, bound: float, rule: Rule) -> tuple[int, float, str, int]:
        """Sort key: the patient by age; then as the rule says, those that take most of the time left before others."""
        seconds = request.prediction.seconds
        if now - request.asked > PATIENCE:
            rank, key = 0, request.asked
        elif rule is Rule.HEAVIEST:
            rank, key = 1, -float(request.prediction.peak_bytes)
        elif seconds > URGENT * bound:
            rank, key = 1, -seconds
        else:
            share = max(request.prediction.peak_bytes / self.budget, 1 / self.cores)
            rank, key = 2, -share * seconds
        return rank, key, request.unit, request.ticket

    def _hold_for(self, request: Request, now: float) -> _Hold:
        """Return when `request` can start if nothing else does, and what will be free beside it then."""
        free = self.budget - self.reserved - request.prediction.peak_bytes
        when = now
        for other in sorted(self.running.values(), key=lambda r: r.expected_end(now)):
            end = other.expected_end(now)
            if free >= 0 and end > when:
                break
            free += other.prediction.peak_bytes
            when = end
        return _Hold(when, free)

    def _start(self, request: Request, now: float, *, lone: bool = False) -> Request:
        request.started = now
        request.lone = lone
        self.running[request.ticket] = self.waiting.pop(request.ticket)
        return request


@dataclass
class _Hold:
    """Memory held for the most important unit that does not fit: from `when` on, all but `beside` bytes."""

    when: float
    beside: int

    def lets(self, request: Request, now: float) -> bool:
        """Return whether a less important unit may start now; one that stays longer takes from `beside`."""
        if now + request.prediction.seconds <= self.when:
            return True
        if request.prediction.peak_bytes > self.beside:
            return False
        self.beside -= request.prediction.peak_bytes
        return True
