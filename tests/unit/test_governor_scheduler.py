"""The rule that admits, and the broker around it, on a clock of the test's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from smwheel.governor.bound import lower_bound
from smwheel.governor.broker import Broker, Outcome
from smwheel.governor.prediction import PRIOR, Prediction, Source
from smwheel.governor.scheduler import GUARD, PATIENCE, Scheduler

GIB = 1 << 30
BUDGET = 16 * GIB
CORES = 4


def need(gib: float, seconds: float = 10.0) -> Prediction:
    return Prediction(int(gib * GIB), seconds, Source.SAME)


class Table:
    """Predicts from a table; remembers what it was taught."""

    def __init__(self, table: dict[str, Prediction] | None = None) -> None:
        self.table = table or {}
        self.taught: list[str] = []

    def predict(self, unit: str) -> Prediction:
        return self.table.get(unit, PRIOR)

    def learn(self, unit: str, outcome: Outcome) -> None:
        self.taught.append(unit)


def make_broker(table: dict[str, Prediction] | None = None, **options: Any) -> tuple[Broker, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    values = {"budget": BUDGET, "cores": CORES, "memory": BUDGET + GIB, "memory_source": "--memory", **options}
    return Broker(predictor=Table(table), record=events.append, **values), events


def fine(peak: float = 1.0) -> Outcome:
    return Outcome(code=0, wall=10, cpu=10, peak=int(peak * GIB))


def killed(peak: float = 1.0) -> Outcome:
    return Outcome(code=137, wall=5, cpu=5, peak=int(peak * GIB), killed=True)


def admitted(scheduler: Scheduler, now: float = 0.0, **options: float) -> list[str]:
    return [request.unit for request in scheduler.admit(now=now, **options)]


def fill(needs: dict[str, Prediction], cores: int = CORES) -> Scheduler:
    scheduler = Scheduler(budget=BUDGET, cores=cores)
    for ticket, (unit, prediction) in enumerate(needs.items()):
        scheduler.ask(ticket, unit, prediction, now=0.0)
    return scheduler


def test_starts_no_more_than_the_cores() -> None:
    assert len(admitted(fill({f"u{n}": need(0.1) for n in range(9)}))) == CORES


def test_long_units_come_first() -> None:
    needs = {f"short{n}": need(0.3, 5) for n in range(20)} | {"long": need(0.3, 200)}
    assert admitted(fill(needs))[0] == "long"


def test_a_heavy_unit_runs_beside_light_ones() -> None:
    needs = {f"light{n}": need(0.4, 10) for n in range(20)} | {"a": need(9, 100), "b": need(9, 100)}
    started = admitted(fill(needs))
    assert "a" in started
    assert "b" not in started
    assert len(started) == CORES


def test_heavy_units_leave_room_for_the_light_ones_while_these_keep_the_cores_busy() -> None:
    """Two heavies would fill the memory and leave two of four cores idle, with 400 s of light work waiting."""
    needs = {f"light{n}": need(3, 10) for n in range(160)} | {f"heavy{n}": need(7.9, 10) for n in range(20)}
    started = admitted(fill(needs))
    assert sum(unit.startswith("heavy") for unit in started) == 1
    assert sum(unit.startswith("light") for unit in started) == 2


@pytest.mark.parametrize(("few", "end"), [(4, 60.0), (3, 80.0)])
def test_with_few_units_left_the_rule_that_ends_first_decides(
    monkeypatch: pytest.MonkeyPatch, few: int, end: float
) -> None:
    """The largest beside the light one, then the two that fill the memory together: 60 s, as short as it can be."""
    monkeypatch.setattr("smwheel.governor.scheduler.FEW", few)
    scheduler = fill({"a": need(8, 30), "b": need(1, 20), "c": need(10, 30), "d": need(8, 20)})
    now, ends = 0.0, dict[int, float]()
    while scheduler.waiting or scheduler.running:
        ends |= {request.ticket: now + request.prediction.seconds for request in scheduler.admit(now=now)}
        first = min(scheduler.running, key=lambda ticket: (ends[ticket], ticket))
        now = ends[first]
        scheduler.release(first)
    assert now == end


def test_planned_units_count_before_they_ask() -> None:
    heavies = {f"heavy{n}": need(7.9, 10) for n in range(20)}
    without, planned = fill(heavies), fill(heavies)
    planned.plan({f"light{n}": need(3, 10) for n in range(160)})
    assert len(admitted(without)) == 2
    assert len(admitted(planned)) == 1


def test_memory_is_held_for_the_one_that_does_not_fit_yet() -> None:
    scheduler = fill({"running": need(10, 100)})
    assert admitted(scheduler) == ["running"]
    scheduler.ask(10, "next", need(12, 500), now=1.0)
    scheduler.ask(11, "slow", need(5, 450), now=1.0)  # would be in the way of `next` at 100 s
    scheduler.ask(12, "quick", need(5, 50), now=1.0)  # ends before
    scheduler.ask(13, "small", need(0.5, 400), now=1.0)  # fits beside it
    assert set(admitted(scheduler, now=1.0)) == {"quick", "small"}


def test_an_oversized_unit_runs_alone_and_first() -> None:
    needs = {f"u{n}": need(1) for n in range(3)} | {"monster": need(40)}
    scheduler = fill(needs)
    assert admitted(scheduler) == ["monster"]
    assert admitted(scheduler, now=1.0) == []
    scheduler.release(3)
    assert len(admitted(scheduler, now=2.0)) == 3


def test_a_unit_to_be_tried_alone_waits_for_the_others() -> None:
    scheduler = fill({"a": need(1), "b": need(1)})
    scheduler.ask(9, "again", need(1), now=0.0, alone=True)
    assert set(admitted(scheduler)) == {"a", "b"}
    scheduler.release(0)
    assert admitted(scheduler) == []
    scheduler.release(1)
    assert admitted(scheduler) == ["again"]


def test_nothing_joins_near_the_real_limit_but_an_idle_machine_goes_on() -> None:
    scheduler = fill({"a": need(1, 20)})
    assert admitted(scheduler, left_share=0.0) == ["a"]
    scheduler.ask(5, "b", need(1), now=0.0)
    assert admitted(scheduler, left_share=GUARD / 2) == []
    assert admitted(scheduler, left_share=GUARD * 2) == ["b"]


@pytest.mark.parametrize("patient", [need(15, 1), need(0.1, 1)])
def test_no_unit_waits_for_ever_while_others_keep_coming(patient: Prediction) -> None:
    scheduler = Scheduler(budget=BUDGET, cores=2)
    scheduler.ask(0, "patient", patient, now=0.0)
    running: dict[int, float] = {}
    ticket = 1
    for now in range(int(PATIENCE) + 300):
        for done in [t for t, end in running.items() if end <= now]:
            scheduler.release(done)
            del running[done]
        while len(scheduler.waiting) < 6:
            scheduler.ask(ticket, f"stream{ticket}", need(6, 100), now=float(now))
            ticket += 1
        for request in scheduler.admit(now=float(now)):
            if request.unit == "patient":
                return
            running[request.ticket] = now + 100
    pytest.fail("it never started")


def test_once_its_patience_is_over_nothing_starts_before_it() -> None:
    scheduler = fill({"running": need(10, 10 * PATIENCE)})
    assert admitted(scheduler) == ["running"]
    scheduler.ask(1, "patient", need(12), now=0.0)
    scheduler.ask(2, "quick", need(1, 1), now=PATIENCE)
    assert admitted(scheduler, now=PATIENCE) == ["quick"]
    scheduler.ask(3, "quick too", need(1, 1), now=PATIENCE + 1)
    assert admitted(scheduler, now=PATIENCE + 1) == []


UNITS = st.lists(
    st.tuples(st.floats(0.05, 24), st.floats(0.5, 300)).map(lambda pair: need(*pair)), min_size=1, max_size=30
)


# Few values, so that units end together and are alike.
ALIKE = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 6.5, 13, 20]), st.sampled_from([0.1, 0.3, 1, 2, 7.7])).map(lambda v: need(*v)),
    min_size=1,
    max_size=30,
)


@given(units=UNITS | ALIKE, cores=st.integers(1, 16), data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_order_of_arrival_does_not_matter(units: list[Prediction], cores: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(units))))
    assert history(units, list(range(len(units))), cores) == history(units, order, cores)


def test_the_order_of_arrival_does_not_matter_when_units_end_together() -> None:
    units = [need(1, 1), need(1, 2), need(1, 2), need(4, 2), need(13, 1), need(4, 1)]
    assert history(units, [0, 1, 2, 3, 4, 5], 3) == history(units, [1, 2, 3, 4, 0, 5], 3)


def history(units: list[Prediction], order: list[int], cores: int) -> list[list[str]]:
    """Return what is admitted together until all are done, if units ask in this order."""
    scheduler = Scheduler(budget=BUDGET, cores=cores)
    for ticket, index in enumerate(order):
        scheduler.ask(ticket, f"u{index:02}", units[index], now=0.0)
    told, now = [], 0.0
    ends: dict[str, float] = {}
    while scheduler.waiting or scheduler.running:
        started = scheduler.admit(now=now)
        told.append([request.unit for request in started])
        ends |= {request.unit: now + request.prediction.seconds for request in started}
        first = min(scheduler.running.values(), key=lambda request: (ends[request.unit], request.unit))
        now = ends[first.unit]
        scheduler.release(first.ticket)
    return told


@given(units=UNITS, cores=st.integers(1, 16))
@settings(max_examples=150, deadline=None)
def test_every_unit_runs_and_none_goes_over_the_budget_but_alone(units: list[Prediction], cores: int) -> None:
    scheduler = fill({f"u{n:02}": unit for n, unit in enumerate(units)}, cores)
    now, ran, ends = 0.0, 0, {}
    while scheduler.waiting or scheduler.running:
        for request in scheduler.admit(now=now):
            ends[request.ticket] = now + request.prediction.seconds
        assert scheduler.reserved <= BUDGET or len(scheduler.running) == 1
        assert 1 <= len(scheduler.running) <= cores
        first = min(scheduler.running, key=lambda t: ends[t])
        now = ends[first]
        scheduler.release(first)
        ran += 1
    assert ran == len(units)
    bound = lower_bound([(u.peak_bytes, u.seconds) for u in units], budget=BUDGET, cores=cores)
    assert now >= bound.seconds * (1 - 1e-9)


class AnyHistory(RuleBasedStateMachine):
    """Clients ask, end, are killed for memory and die at any point, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.next = 0
        self.broker, self.events = make_broker(
            {f"u{n}": need(gib, 10) for n, gib in enumerate((0.2, 0.4, 3, 5, 7.9, 9, 15.9, 30))}
        )

    @rule(unit=st.integers(0, 8))
    def ask(self, unit: int) -> None:
        self.broker.ask(self.next, f"u{unit}", now=self.now)
        self.next += 1

    @rule(seconds=st.floats(0, 2000), left=st.sampled_from([None, 0, 8 * GIB]))
    def admit(self, seconds: float, left: int | None) -> None:
        self.now += seconds
        self.broker.admit(now=self.now, left=left)

    @precondition(lambda self: self.broker.scheduler.running)
    @rule(data=st.data(), outcome=st.sampled_from([fine(), killed(), Outcome(1, 1, 1, GIB)]))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.broker.scheduler.running)))
        lone = self.broker.scheduler.running[ticket].lone
        verdict = self.broker.done(ticket, outcome, now=self.now)
        expected = "accept" if not outcome.killed else "fail" if lone else "retry"
        assert verdict.action == expected

    @precondition(lambda self: self.next)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.broker.gone(data.draw(st.integers(0, self.next - 1)), now=self.now)

    @invariant()
    def holds_what_runs(self) -> None:
        scheduler = self.broker.scheduler
        assert not scheduler.waiting.keys() & scheduler.running.keys()
        assert scheduler.reserved == sum(r.prediction.peak_bytes for r in scheduler.running.values())
        lone = [r for r in scheduler.running.values() if r.lone]
        assert scheduler.reserved <= BUDGET or len(scheduler.running) == 1
        assert not lone or len(scheduler.running) == 1
        assert len(scheduler.running) <= CORES

    def teardown(self) -> None:
        """Whatever happened, all that waits gets its turn, and in the end nothing is held."""
        scheduler = self.broker.scheduler
        while scheduler.waiting or scheduler.running:
            started = self.broker.admit(now=self.now)
            assert started or scheduler.running
            self.broker.gone(next(iter(scheduler.running)), now=self.now)
        assert scheduler.reserved == 0


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase


def test_a_killed_unit_is_predicted_higher_and_runs_again_alone() -> None:
    broker, events = make_broker({"u": need(2)})
    broker.ask(1, "u", now=0)
    broker.ask(2, "other", now=0)
    broker.admit(now=0)
    assert broker.done(1, killed(3), now=5).action == "retry"
    assert broker.scheduler.waiting[1].prediction.peak_bytes == int(4.5 * GIB)
    broker.done(2, fine(), now=6)
    assert [request.lone for request in broker.admit(now=6)] == [True]
    assert broker.done(1, fine(4), now=9).action == "accept"
    assert [event["event"] for event in events].count("killed") == 1


def test_only_a_unit_that_dies_alone_fails_and_says_what_to_do() -> None:
    broker, events = make_broker({"u": need(2)})
    broker.ask(1, "u", now=0)
    broker.admit(now=0)
    assert broker.done(1, killed(), now=5).action == "retry"
    broker.admit(now=5)
    verdict = broker.done(1, killed(15), now=9)
    assert verdict.action == "fail"
    assert "u: killed for memory" in verdict.message
    assert "needed more than 17.0 GiB; the limit is 17.0 GiB (from --memory)" in verdict.message
    assert "To do:" in verdict.message
    assert events[-1]["event"] == "failed"


def test_an_ordinary_failure_is_neither_retried_nor_learned() -> None:
    broker, events = make_broker({"u": need(2)})
    broker.ask(1, "u", now=0)
    broker.admit(now=0)
    assert broker.done(1, Outcome(1, 1, 1, GIB), now=1).action == "accept"
    assert broker._predictor.taught == []
    assert events[-1]["code"] == 1


def test_an_oversized_unit_is_warned_of() -> None:
    broker, events = make_broker({"u": need(30)})
    broker.ask(1, "u", now=0)
    assert [e["text"] for e in events if e["event"] == "warning"] == [
        "u: expected to need 30.0 GiB, more than the 16.0 GiB that units may use: it runs alone"
    ]
