"""The bound, the summary and the trace of a build's events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smwheel.governor.bound import lower_bound
from smwheel.governor.limits import GIB
from smwheel.governor.trace import read_events, summarize, write_trace


@pytest.mark.parametrize(
    ("units", "binding", "seconds"),
    [
        ([(1, 10)] * 8, "cores", 20),
        ([(4, 10)] * 8, "memory", 40),
        ([(1, 10), (1, 70)], "longest", 70),
        ([(5, 30), (5, 30)], "large", 60),
        ([(99, 10)], "memory", 10),
        ([], "cores", 0),
    ],
)
def test_the_greatest_of_four_bounds(units: list[tuple[float, float]], binding: str, seconds: float) -> None:
    bound = lower_bound(units, budget=8, cores=4)
    assert bound.seconds == seconds
    assert bound.binding == binding


def event(kind: str, time: float, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "time": time, **fields}


def started(time: float, ticket: int, reserved: int = 2 * GIB) -> dict[str, Any]:
    return event(
        "started", time, ticket=ticket, unit=f"u{ticket}", alone=False, waited=0.0, reserved=reserved,
        source="same unit", reserved_total=reserved,
    )  # fmt: skip


def ended(kind: str, time: float, ticket: int, peak: int = GIB, cpu: float = 10, code: int = 0) -> dict[str, Any]:
    return event(
        kind, time, code=code, ticket=ticket, unit=f"u{ticket}", peak=peak, cpu=cpu, reserved=2 * GIB,
        source="same unit", reserved_total=0,
    )  # fmt: skip


EVENTS = [
    event("waiting", 100.0, ticket=1, unit="u1"),
    started(100.0, 1),
    started(100.5, 2),
    event("memory", 101.0, used=3 * GIB, left=GIB, reserved=4 * GIB),
    ended("killed", 105.0, 2, peak=3 * GIB, code=137),
    ended("finished", 110.0, 1),
    started(110.0, 2),
    ended("finished", 130.0, 2, peak=2 * GIB, cpu=20),
    event("closed", 130.5, cgroup_peak=5 * GIB),
]


def test_the_summary_counts_what_happened() -> None:
    summary = summarize(EVENTS, budget=4 * GIB, cores=2)
    assert (summary.units, summary.kills, summary.failed) == (2, 1, 0)
    assert summary.makespan == 30
    assert summary.bound.seconds == 20
    assert summary.ratio == 1.5
    assert (summary.largest_peak, summary.most_used) == (2 * GIB, 3 * GIB)
    assert summary.cgroup_peak == 5 * GIB
    assert summary.prediction_error == 1.0
    assert summary.as_json()["bound_by"] == "longest"
    assert "2 units in 30 s, 1.50 times the bound of 20 s (longest); 1 killed" in str(summary)


def test_units_that_failed_are_counted_apart() -> None:
    failed = [ended("finished", 140.0, 3, peak=1, cpu=500, code=1), event("failed", 150.0, unit="u4", ticket=4)]
    summary = summarize([*EVENTS, *failed], budget=4 * GIB, cores=2)
    assert (summary.units, summary.failed) == (2, 2)
    assert summary.bound.seconds == 20
    assert summary.prediction_error == 1.0


def test_the_trace_has_a_row_for_each_unit_that_runs_at_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(EVENTS, path, budget=4 * GIB, memory=5 * GIB)
    trace = json.loads(path.read_text())
    slices = [(one["name"], one["tid"], one["dur"], one["cat"]) for one in trace if one["ph"] == "X"]
    assert slices == [
        ("u2", 1, 4.5e6, "killed"),
        ("u1", 0, 10e6, "finished"),
        ("u2", 0, 20e6, "finished"),
    ]
    limits = {one["name"]: one["args"]["MiB"] for one in trace if one["ph"] == "C" and one["name"] != "reserved"}
    assert limits == {"used": 3072, "budget": 4096, "limit": 5120}


def test_events_of_a_build_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps(EVENTS[0]) + "\n" + '{"event": "star')
    assert read_events(path) == EVENTS[:1]
