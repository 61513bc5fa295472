"""Processes of a build that outlived it: found by the mark in their environment, whoever their parent is now."""

from __future__ import annotations

import os
import signal
from pathlib import Path

MARK = "SMWHEEL_BUILD"


def find_survivors(build: str, *, group: int | None = None) -> list[int]:
    """Return the processes that carry the mark of `build`, all or those of one process group; never this one."""
    wanted = f"{MARK}={build}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            marked = wanted in (entry / "environ").read_bytes().split(b"\0")
            if marked and (group is None or os.getpgid(int(entry.name)) == group):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def end_survivors(build: str, *, group: int | None = None) -> list[int]:
    """Kill what `find_survivors` finds; return their numbers."""
    found = find_survivors(build, group=group)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    return found
