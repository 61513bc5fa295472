"""What the broker decides when a launcher asks, reports or disappears; no socket and no clock of its own.

The same object runs behind the Unix socket (`server`), in the tests and on the virtual clock of the simulation.
Every method takes the time, every consequence is an event given to `record`; what a person should hear of it is
its `text`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from smwheel.governor.prediction import KILL_FACTOR, Prediction
from smwheel.governor.scheduler import Request, Scheduler

GIB = 1 << 30

Record = Callable[[dict[str, Any]], None]


class Predictor(Protocol):
    """Who says what a unit will need, and learns from what it needed."""

    def predict(self, unit: str) -> Prediction:
        """Return what `unit` is expected to need."""

    def learn(self, unit: str, outcome: Outcome) -> None:
        """Take note of what `unit` needed."""


@dataclass(frozen=True)
class Outcome:
    """How one run of a unit ended: exit code as the launcher saw it, seconds, peak in bytes.

    `killed` is the launcher's judgement that the memory ran out (137, signal 9, a stage that died of it).
    """

    code: int
    wall: float
    cpu: float
    peak: int
    killed: bool = False


@dataclass(frozen=True)
class Verdict:
    """What a launcher does with an outcome: give it on, run the command again, or give it on with a message."""

    action: Literal["accept", "retry", "fail"]
    message: str = ""


class Broker:
    """One build's broker: admission, rescue, learning."""

    def __init__(
        self,
        *,
        budget: int,
        cores: int,
        memory: int,
        memory_source: str,
        predictor: Predictor,
        record: Record,
    ) -> None:
        """Admit into `budget` bytes of `memory`, which `memory_source` allows, and `cores` units at once."""
        self.scheduler = Scheduler(budget=budget, cores=cores)
        self._memory = memory
        self._memory_source = memory_source
        self._predictor = predictor
        self._record = record

    def ask(self, ticket: int, unit: str, *, now: float) -> None:
        """Let a unit wait for its turn."""
        prediction = self._predictor.predict(unit)
        self.scheduler.ask(ticket, unit, prediction, now=now)
        self._record({"event": "waiting", "unit": unit, "ticket": ticket, **prediction.as_json()})
        if prediction.peak_bytes > self.scheduler.budget:
            self._record(
                {
                    "event": "warning",
                    "unit": unit,
                    "text": f"{unit}: expected to need {prediction.peak_bytes / GIB:.1f} GiB, more than the "
                    f"{self.scheduler.budget / GIB:.1f} GiB that units may use: it runs alone",
                }
            )

    def admit(self, *, now: float, left: int | None = None) -> list[Request]:
        """Return the units that start now; `left` is how many bytes the real limit still gives."""
        share = 1.0 if left is None else left / self._memory
        started = self.scheduler.admit(now=now, left_share=share)
        for request in started:
            self._record(
                {
                    "event": "started",
                    "unit": request.unit,
                    "ticket": request.ticket,
                    "alone": request.lone,
                    "again": request.alone,
                    "waited": round(now - request.asked, 3),
                    "reserved": request.prediction.peak_bytes,
                    "seconds": request.prediction.seconds,
                    "source": request.prediction.source.value,
                    "reserved_total": self.scheduler.reserved,
                }
            )
        return started

    def done(self, ticket: int, outcome: Outcome, *, now: float) -> Verdict:
        """Take the outcome of a running unit and say what its launcher does next."""
        request = self.scheduler.release(ticket)
        if request is None:
            return Verdict("accept")
        report = {
            "unit": request.unit,
            "ticket": ticket,
            "code": outcome.code,
            "wall": round(outcome.wall, 3),
            "cpu": round(outcome.cpu, 3),
            "peak": outcome.peak,
            "reserved": request.prediction.peak_bytes,
            "source": request.prediction.source.value,
            "reserved_total": self.scheduler.reserved,
        }
        if not outcome.killed:
            self._record({"event": "finished", **report})
            if outcome.code == 0:
                self._predictor.learn(request.unit, outcome)
                self._predict_again()
            return Verdict("accept")
        text = (
            f"{request.unit}: killed for memory at {outcome.peak / GIB:.1f} GiB, with "
            f"{request.prediction.peak_bytes / GIB:.1f} GiB reserved ({request.prediction.source.value})"
        )
        if not request.lone:
            text += "; it runs again, alone"
        self._record({"event": "killed", "alone": request.lone, "text": text, **report})
        if request.lone:
            message = self._needs_more(request, outcome)
            self._record({"event": "failed", "unit": request.unit, "ticket": ticket, "text": message})
            return Verdict("fail", message)
        higher = int(KILL_FACTOR * max(request.prediction.peak_bytes, outcome.peak))
        again = replace(request.prediction, peak_bytes=higher)
        self.scheduler.ask(ticket, request.unit, again, now=now, alone=True)
        return Verdict("retry")

    def gone(self, ticket: int, *, now: float) -> None:
        """Forget a client that died or hung up, wherever it was."""
        request = self.scheduler.release(ticket)
        if request is not None:
            held = now - request.started if request.started is not None else 0.0
            self._record({"event": "lost", "unit": request.unit, "ticket": ticket, "wall": round(held, 3)})

    def _predict_again(self) -> None:
        """Use what was just learned for the units that still wait; what a kill taught is kept."""
        for request in list(self.scheduler.waiting.values()):
            if not request.alone:
                self.scheduler.repredict(request.ticket, self._predictor.predict(request.unit))

    def _needs_more(self, request: Request, outcome: Outcome) -> str:
        needed = max(outcome.peak, self._memory if outcome.peak > self._memory / 2 else outcome.peak)
        return (
            f"{request.unit}: killed for memory although it ran alone: this unit needed more than "
            f"{needed / GIB:.1f} GiB; the limit is {self._memory / GIB:.1f} GiB (from {self._memory_source})\n"
            "To do: give the build more memory (--memory, the container's limit, or a larger machine)"
        )
