"""Processes of a build that outlived it: found by the mark in their environment, whoever their parent is now."""

from __future__ import annotations

import os
import signal
from pathlib import Path

MARK = "SMWHEEL_BUILD"
UNIT_MARK = "SMWHEEL_UNIT"


def find_survivors(build: str, *, unit: str | None = None) -> list[int]:
    """Return the processes that carry the mark of `build`, all or those of one unit; never this one.

    They are found in process namespaces below this one too, where their numbers are others.
    """
    wanted = {f"{MARK}={build}".encode()} | ({f"{UNIT_MARK}={unit}".encode()} if unit is not None else set())
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def end_survivors(build: str, *, unit: str | None = None) -> list[int]:
    """Kill what `find_survivors` finds; return their numbers."""
    found = find_survivors(build, unit=unit)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    return found
