"""The broker's process: one a build, on a Unix socket; `python -m smwheel.governor.server DIRECTORY`.

It reads `broker.json` in the directory, listens on `broker.sock`, and appends every event to `events.jsonl`.
It ends when its standard input does (whoever started it has ended, in whatever way), and takes with it what runs.
"""

from __future__ import annotations

import itertools
import json
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from smwheel.governor.broker import Broker, Outcome
from smwheel.governor.learning import learner_from_json
from smwheel.governor.limits import Limits, Meter, Reading, cgroup_peak, memory_kills
from smwheel.governor.survivors import end_survivors

# How often memory is looked at while something runs, and how often that goes into the events; seconds.
SAMPLE_EVERY = 0.2
RECORD_EVERY = 1.0

# A build system starts its units one after the other; at the beginning wait until no more come for SETTLE seconds
# (for SETTLE_MOST in all), so that the choice is made over all of them.
SETTLE = 0.03
SETTLE_MOST = 0.5


@dataclass
class Client:
    """One launcher: its connection, what it has sent so far, and whether its compiler runs."""

    ticket: int
    connection: socket.socket
    pending: bytes = b""
    compiling: bool = False

    @property
    def mark(self) -> str:
        """What the environment of its compiler's processes holds, to find them by."""
        return str(self.ticket)


@dataclass
class Server:
    """The socket around the broker."""

    directory: Path
    config: dict[str, Any]
    listener: socket.socket
    events: BinaryIO
    clients: dict[int, Client] = field(default_factory=dict)
    first_ask: float | None = None
    last_ask: float = 0.0

    def __post_init__(self) -> None:
        config = self.config
        self._tickets = itertools.count(1)
        limits = _limits_from_json(config["limits"])
        self._meter = Meter(limits)
        learner = learner_from_json(config["learning"], lambda text: self.record({"event": "warning", "text": text}))
        self.broker = Broker(
            budget=config["budget"],
            cores=limits.jobs,
            memory=limits.memory,
            memory_source=limits.memory_source,
            predictor=learner,
            record=self.record,
        )
        self.broker.scheduler.plan(learner.planned())
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        self._sampled = 0.0
        self._recorded = 0.0
        self._kills_before = memory_kills()
        self._left: int | None = None

    def record(self, event: dict[str, Any]) -> None:
        """Append one event, with the time, to the events of this build."""
        if event["event"] == "killed":
            event = {**event, "kernel_kills": memory_kills() - self._kills_before}
        self.events.write(json.dumps({"time": round(time.time(), 3), **event}).encode() + b"\n")
        self.events.flush()

    def run(self) -> None:
        """Serve until standard input ends, then kill what still runs."""
        self.record({"event": "open", "pid": os.getpid()})
        while self._step():
            pass
        for client in self.clients.values():
            self._kill(client)
        self.record({"event": "closed", "cgroup_peak": cgroup_peak()})

    def _step(self) -> bool:
        for key, _ in self._selector.select(self._patience()):
            if key.fileobj is self.listener:
                self._accept()
            elif isinstance(key.data, Client):
                self._read(key.data)
            elif not os.read(sys.stdin.fileno(), 4096):
                return False
        now = time.monotonic()
        self._sample(now)
        if not self._more_may_come(now):
            for request in self.broker.admit(now=now, left=self._left):
                client = self.clients[request.ticket]
                client.compiling = True
                self._send(client, {"op": "go", "mark": client.mark})
        return True

    def _more_may_come(self, now: float) -> bool:
        """Return whether the build has only begun and its first units are still arriving."""
        if self.first_ask is None or not self.broker.scheduler.planned:
            return False
        return now - self.last_ask < SETTLE and now - self.first_ask < SETTLE_MOST

    def _patience(self) -> float | None:
        if self._more_may_come(time.monotonic()):
            return SETTLE
        scheduler = self.broker.scheduler
        return SAMPLE_EVERY if scheduler.running or scheduler.waiting else None

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        client = Client(next(self._tickets), connection)
        self.clients[client.ticket] = client
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _read(self, client: Client) -> None:
        try:
            data = client.connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        *lines, client.pending = (client.pending + data).split(b"\n")
        for line in lines:
            try:
                self._handle(client, json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                self.record({"event": "warning", "text": f"a message could not be read: {error!r}"})
                self._drop(client)
                return

    def _handle(self, client: Client, message: dict[str, Any]) -> None:
        now = time.monotonic()
        match message["op"]:
            case "ask":
                self.broker.ask(client.ticket, str(message["unit"]), now=now)
                self.first_ask = self.first_ask or now
                self.last_ask = now
            case "done":
                client.compiling = False
                outcome = Outcome(
                    code=int(message["code"]),
                    wall=float(message["wall"]),
                    cpu=float(message["cpu"]),
                    peak=int(message["peak"]),
                    killed=bool(message["killed"]),
                )
                verdict = self.broker.done(client.ticket, outcome, now=now)
                self._send(client, {"op": "verdict", "action": verdict.action, "message": verdict.message})

    def _send(self, client: Client, message: dict[str, Any]) -> None:
        try:
            client.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        if self.clients.pop(client.ticket, None) is None:
            return
        self._selector.unregister(client.connection)
        client.connection.close()
        self._kill(client)
        self.broker.gone(client.ticket, now=time.monotonic())

    def _kill(self, client: Client) -> None:
        """Kill a compiler whose launcher is dead: its stages hold memory that is no longer reserved."""
        if client.compiling:
            end_survivors(self.config["build"], unit=client.mark)

    def _sample(self, now: float) -> None:
        if not self.broker.scheduler.running or now - self._sampled < SAMPLE_EVERY:
            return
        self._sampled = now
        used, self._left = self._meter.read()
        if now - self._recorded >= RECORD_EVERY:
            self._recorded = now
            reserved = self.broker.scheduler.reserved
            self.record({"event": "memory", "used": used, "left": self._left, "reserved": reserved})


def _limits_from_json(value: dict[str, Any]) -> Limits:
    fields = {key: value[key] for key in Limits.__dataclass_fields__ if key != "readings"}
    return Limits(**fields, readings=tuple(Reading(**reading) for reading in value["readings"]))


def listen(directory: Path) -> socket.socket:
    """Return a listening socket `broker.sock` in a directory whose path may be longer than a socket's may be."""
    descriptor = os.open(directory, os.O_PATH)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    (directory / "broker.sock").unlink(missing_ok=True)
    listener.bind(f"/proc/self/fd/{descriptor}/broker.sock")
    listener.listen(4096)
    os.close(descriptor)
    return listener


def main() -> None:
    """Run the broker's process."""
    directory = Path(sys.argv[1])
    # An interrupt is for the build, which then closes standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = json.loads((directory / "broker.json").read_text(encoding="utf-8"))
    with (directory / "events.jsonl").open("ab") as events:
        Server(directory, config, listen(directory), events).run()


if __name__ == "__main__":
    main()
