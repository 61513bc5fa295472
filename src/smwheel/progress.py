"""What a build says while it runs: stages, units done, time left, finished modules and wheels.

Plain lines when there is no terminal; with one, the unit count stays on a line of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from smwheel.errors import UsageError

MIB = 1 << 20
QUIET_SECONDS = 20.0
"""Without a terminal, the unit count is printed at most this often."""


@dataclass
class Reporter:
    """Prints a build's progress on standard error, so that `--json` has standard output to itself."""

    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False, soft_wrap=True))
    started: float = field(default_factory=time.monotonic)

    def stage(self, name: str, text: str) -> None:
        """Say that a stage begins or what it found, e.g. `sources   flashinfer_python-0.7.2.tar.gz (52 MiB)`."""
        self.console.print(f"[bold]{escape(name):<11}[/] {escape(text)}")

    def line(self, text: str) -> None:
        """Say one thing below the current stage."""
        self.console.print(f"{'':<11} {escape(text)}")

    def warn(self, text: str) -> None:
        """Say something that the user should act on or know."""
        self.console.print(f"[bold yellow]warning[/]     {escape(text)}")

    def download(self) -> Callable[[str, int, int], None]:
        """Return what is told of a download's bytes: a line every few seconds while a large one is under way."""
        last = time.monotonic()

        def tell(name: str, done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last >= QUIET_SECONDS / 4 and done < total:
                last = time.monotonic()
                self.line(f"{name}: {size(done)} of {size(total)}")

        return tell

    @contextmanager
    def units(self, total: int, left: dict[str, float], jobs: int) -> Iterator[UnitProgress]:
        """Show the units of a build: `left` are those still to run, with the seconds expected of each."""
        progress = UnitProgress(self, total, left, jobs)
        with progress:
            yield progress


class UnitProgress:
    """The running count of a build's units, and how long the rest will take."""

    def __init__(self, reporter: Reporter, total: int, left: dict[str, float], jobs: int) -> None:
        self._reporter = reporter
        self._total = total
        self._left = dict(left)
        self._jobs = jobs
        self._expected = sum(left.values())
        self._begun = self._last = time.monotonic()
        self._bar: Progress | None = None
        if reporter.console.is_terminal:
            self._bar = Progress(
                TextColumn("compile    "),
                BarColumn(bar_width=30),
                TextColumn("{task.completed}/{task.total} units  {task.description}"),
                console=reporter.console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=total, completed=total - len(left))

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def ended(self, unit: str) -> None:
        """Say that a unit has ended."""
        self._left.pop(unit, None)
        done = self._total - len(self._left)
        left = f"about {duration(self.seconds_left())} left"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=f"{left}  {unit[-60:]}")
            return
        now = time.monotonic()
        if now - self._last >= QUIET_SECONDS or not self._left:
            self._last = now
            self._reporter.line(f"{done}/{self._total} units" + (f", {left}" if self._left else ""))

    def seconds_left(self) -> float:
        """Return the seconds that the rest should take: as expected, corrected by how the build went so far."""
        rest = sum(self._left.values())
        elapsed, done = time.monotonic() - self._begun, self._expected - rest
        as_expected = rest / self._jobs
        share = done / self._expected if self._expected else 1.0
        as_seen = elapsed * rest / done if done else as_expected
        return share * as_seen + (1 - share) * as_expected


def duration(seconds: float) -> str:
    """Return seconds as people say them, e.g. `45 s`, `3 min 20 s`, `1 h 40 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{round(whole / 60)} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: int) -> str:
    """Return bytes as people say them, e.g. `640 KiB`, `52.1 MiB`, `5.2 GiB`."""
    if count == 0:
        return "nothing"
    if count < MIB:
        return f"{max(1, round(count / 1024))} KiB"
    return f"{count / MIB:.1f} MiB" if count < 1024 * MIB else f"{count / (1 << 30):.1f} GiB"


def parse_size(text: str | None) -> int | None:
    """Return bytes for `24G`, `512M` or `1.5GiB`; G and M mean GiB and MiB everywhere in smwheel.

    Raises:
        UsageError: the text is no size.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or not 0 < float(match[1]) < 1e6:
        raise UsageError(f"{text[:40]!r} is no size", where="--memory", cure="write it as 24G or 512M (GiB, MiB)")
    return int(float(match[1]) * (1 << {"K": 10, "M": 20, "G": 30, "T": 40}[match[2].upper()]))
