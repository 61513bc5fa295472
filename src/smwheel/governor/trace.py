"""What a build's events tell: a Chrome/Perfetto trace to look at, and a summary in numbers.

Format of the trace: the Trace Event Format (JSON array form); it opens in ui.perfetto.dev and chrome://tracing.
Times there are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smwheel.governor.bound import Bound, lower_bound
from smwheel.governor.limits import GIB, MIB

Event = dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """How well a build used the machine; seconds and bytes.

    `bound` is for schedules that reserve each unit's measured peak; `prediction_error` is the median of
    |reserved / peak - 1| over units that were predicted from a measurement. `cgroup_peak` is the kernel's own figure
    for the build's cgroup, file cache included; 0 if it has none.
    """

    units: int
    makespan: float
    bound: Bound
    kills: int
    failed: int
    cpu: float
    largest_peak: int
    most_used: int
    cgroup_peak: int
    prediction_error: float | None

    @property
    def ratio(self) -> float:
        """The makespan over the bound; 1 is the best there is."""
        return self.makespan / self.bound.seconds if self.bound.seconds else 1.0

    def as_json(self) -> dict[str, Any]:
        """Return the summary as the object that the build's evidence holds."""
        return {
            "units": self.units,
            "makespan_s": round(self.makespan, 2),
            "bound_s": round(self.bound.seconds, 2),
            "bound_by": self.bound.binding,
            "ratio": round(self.ratio, 3),
            "kills": self.kills,
            "failed": self.failed,
            "cpu_s": round(self.cpu, 1),
            "largest_peak": self.largest_peak,
            "most_used": self.most_used,
            "cgroup_peak": self.cgroup_peak,
            "prediction_error": self.prediction_error,
        }

    def __str__(self) -> str:
        return (
            f"{self.units} units in {self.makespan:.0f} s, {self.ratio:.2f} times the bound of "
            f"{self.bound.seconds:.0f} s ({self.bound.binding}); {self.kills} killed for memory and done again; "
            f"largest unit {self.largest_peak / GIB:.1f} GiB"
        )


def read_events(path: Path) -> list[Event]:
    """Read a build's events; a last line that was being written when all ended is left out."""
    events = []
    for line in path.read_bytes().splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


def summarize(events: Iterable[Event], *, budget: int, cores: int) -> Summary:
    """Return the summary of a build's events, for the budget and the number of units at once it had."""
    events = list(events)
    ended_well = [event for event in events if event["event"] == "finished" and event["code"] == 0]
    begun = [event["time"] for event in events if event["event"] == "waiting"]
    ended = [event["time"] for event in events if event["event"] in ("finished", "killed")]
    errors = sorted(
        abs(event["reserved"] / event["peak"] - 1)
        for event in ended_well
        if event["peak"] and event["source"] != "prior"
    )
    return Summary(
        units=len(ended_well),
        makespan=max(ended) - min(begun) if begun and ended else 0.0,
        bound=lower_bound([(e["peak"], e["cpu"]) for e in ended_well], budget=budget, cores=cores),
        kills=sum(event["event"] == "killed" for event in events),
        failed=sum(e["event"] == "failed" or (e["event"] == "finished" and e["code"] != 0) for e in events),
        cpu=sum(event["cpu"] for event in ended_well),
        largest_peak=max((event["peak"] for event in ended_well), default=0),
        most_used=max((event["used"] for event in events if event["event"] == "memory"), default=0),
        cgroup_peak=max((event["cgroup_peak"] for event in events if event["event"] == "closed"), default=0),
        prediction_error=round(errors[len(errors) // 2], 3) if errors else None,
    )


def write_trace(events: Iterable[Event], path: Path, *, budget: int, memory: int) -> None:
    """Write the trace: one row a core with the units on it, and the memory used, reserved and allowed."""
    out: list[Event] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "units"}},
        {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "memory (MiB)"}},
    ]
    lanes: dict[int, int] = {}
    started: dict[int, Event] = {}
    for event in events:
        kind, at = event["event"], event["time"] * 1e6
        if kind == "started":
            lane = next(n for n in range(len(lanes) + 1) if n not in lanes.values())
            lanes[event["ticket"]] = lane
            started[event["ticket"]] = event
            out.append(_counter(at, "reserved", event["reserved_total"]))
        elif kind in ("finished", "killed", "lost") and event["ticket"] in started:
            begin = started.pop(event["ticket"])
            out.append(_slice(begin, event, lanes.pop(event["ticket"])))
            if "reserved_total" in event:
                out.append(_counter(at, "reserved", event["reserved_total"]))
        elif kind == "memory":
            out += [
                _counter(at, "used", event["used"]),
                _counter(at, "budget", budget),
                _counter(at, "limit", memory),
            ]
    path.write_text(json.dumps(out), encoding="utf-8")


def _slice(begin: Event, end: Event, lane: int) -> Event:
    return {
        "ph": "X",
        "pid": 1,
        "tid": lane,
        "name": begin["unit"],
        "cat": end["event"],
        "ts": begin["time"] * 1e6,
        "dur": (end["time"] - begin["time"]) * 1e6,
        "cname": "terrible" if end["event"] != "finished" else "good",
        "args": {
            "outcome": end["event"],
            "alone": begin["alone"],
            "predicted from": begin["source"],
            "reserved MiB": begin["reserved"] // MIB,
            "peak MiB": end.get("peak", 0) // MIB,
            "cpu s": end.get("cpu"),
            "waited s": begin["waited"],
        },
    }


def _counter(at: float, name: str, value: int) -> Event:
    return {"ph": "C", "pid": 2, "name": name, "ts": at, "args": {"MiB": value // MIB}}
