"""How much memory and how many CPUs this build may use, and where each number came from.

Memory is the least of what the user allows, what every cgroup above this process still gives (v1 and v2), and
what the host has available, less a reserve. What is in use already counts, but for file cache, which the kernel
gives back under pressure. CPUs are those of the affinity mask, within the cgroup quotas.

Formats: the kernel's cgroup-v1/memory, cgroup-v2 and proc(5) documents.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from smwheel.errors import SystemNeedError, UsageError

MIB = 1 << 20
GIB = 1 << 30

# cgroup v1 shows "no limit" as the largest multiple of a page below 2^63.
UNLIMITED = 1 << 60

# Kept free: inside a cgroup for the build system and the parked launchers, on a host for everything else too.
CGROUP_RESERVE = (0.05, 64 * MIB, 8 * GIB)
HOST_RESERVE = (0.08, 512 * MIB, 32 * GIB)


@dataclass(frozen=True)
class Reading:
    """One bound on the build's memory: `room` bytes, as `source` (a file, or `--memory`) said at the start."""

    source: str
    room: int


@dataclass(frozen=True)
class Limits:
    """What a build may use; bytes. `memory` less `reserve` is what units are admitted into."""

    memory: int
    memory_source: str
    reserve: int
    cpus: int
    cpus_source: str
    jobs: int
    jobs_source: str
    readings: tuple[Reading, ...] = ()

    @property
    def budget(self) -> int:
        """The bytes that the predicted peaks of all running units together may take."""
        return self.memory - self.reserve

    def as_json(self) -> dict[str, Any]:
        """Return the limits as the object that `plan --json` prints."""
        return {
            "memory": self.memory,
            "memory_source": self.memory_source,
            "reserve": self.reserve,
            "budget": self.budget,
            "cpus": self.cpus,
            "cpus_source": self.cpus_source,
            "jobs": self.jobs,
            "jobs_source": self.jobs_source,
            "readings": [{"source": reading.source, "room": reading.room} for reading in self.readings],
        }

    def __str__(self) -> str:
        return (
            f"{self.memory / GIB:.1f} GiB of memory (from {self.memory_source}), {self.reserve / GIB:.1f} GiB of "
            f"it kept free; {self.jobs} units at once (from {self.jobs_source})"
        )


def measure(memory: int | None = None, jobs: int | None = None, *, root: Path = Path("/")) -> Limits:
    """Return what this build may use.

    Args:
        memory: the most bytes the user allows (`--memory`), or None.
        jobs: the most units at once the user allows (`--jobs`), or None.
        root: where `proc` and `sys` are looked for.

    Raises:
        UsageError: `memory` or `jobs` leave nothing to build in.
        SystemNeedError: the host does not say how much memory it has.

    """
    if jobs is not None and jobs < 1:
        raise UsageError("at least one unit must run at a time", where=f"--jobs {jobs}", cure="give 1 or more")
    physical = physical_rooms(root)
    readings = [Reading("--memory", memory), *physical] if memory is not None else physical
    least = min(readings, key=lambda reading: reading.room)
    share, lowest, highest = CGROUP_RESERVE if "cgroup" in least.source or memory is not None else HOST_RESERVE
    reserve = min(max(int(least.room * share), lowest), highest)
    if least.room - reserve < lowest:
        raise UsageError(
            f"{least.room // MIB} MiB of memory is too little to compile anything in",
            where=least.source,
            cure="give the build more memory",
        )
    cpus, cpus_source = _cpus(root)
    wanted = cpus if jobs is None else min(cpus, jobs)
    return Limits(
        memory=least.room,
        memory_source=least.source,
        reserve=reserve,
        cpus=cpus,
        cpus_source=cpus_source,
        jobs=wanted,
        jobs_source=cpus_source if wanted == cpus else "--jobs",
        readings=tuple(readings),
    )


def physical_rooms(root: Path = Path("/")) -> list[Reading]:
    """Return what the host and every cgroup above this process could still give now, in bytes."""
    rooms = [Reading(str(root / "proc/meminfo"), _host_available(root))]
    for directory in _ancestors(root, "memory"):
        rooms += _cgroup_room(directory)
    return rooms


class Meter:
    """Reads, again and again, how much memory was taken since the limits were measured, and how much is left."""

    def __init__(self, limits: Limits, *, root: Path = Path("/")) -> None:
        self._root = root
        self._start = {r.source: r.room for r in limits.readings if r.source != "--memory"}

    def read(self) -> tuple[int, int]:
        """Return the bytes used since the start, and the bytes left before the nearest limit."""
        now = {reading.source: reading.room for reading in physical_rooms(self._root)}
        taken = [room - now[source] for source, room in self._start.items() if source in now]
        return max(0, *taken, 0), min(now.values())


def memory_kills(root: Path = Path("/")) -> int:
    """Return how many processes the kernel has killed for memory in the cgroups above this one, so far."""
    files = [
        directory / name for directory in _ancestors(root, "memory") for name in ("memory.events", "memory.oom_control")
    ]
    return max((_keyed(file).get("oom_kill", 0) for file in files), default=0)


def cgroup_peak(root: Path = Path("/")) -> int:
    """Return the most that this process's own cgroup has ever used, file cache included; 0 if not to be known."""
    own = next(_ancestors(root, "memory"), None)
    if own is None:
        return 0
    return max(_number(own / name) or 0 for name in ("memory.peak", "memory.max_usage_in_bytes"))


def _host_available(root: Path) -> int:
    fields = _keyed(root / "proc/meminfo", unit=1024)
    if "MemAvailable:" not in fields:
        raise SystemNeedError(
            "the host does not say how much memory is available",
            where=str(root / "proc/meminfo"),
            cure="mount /proc, or use Linux 3.14 or newer",
        )
    return fields["MemAvailable:"]


def _cgroup_room(directory: Path) -> Iterator[Reading]:
    """Yield what one cgroup still gives: its limit less what it uses that is not reclaimable file cache."""
    for limit_name, used_name, cache_names in (
        ("memory.max", "memory.current", ("inactive_file", "active_file")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    ):
        limit = _number(directory / limit_name)
        if limit is None or limit >= UNLIMITED:
            continue
        stat = _keyed(directory / "memory.stat")
        used = (_number(directory / used_name) or 0) - sum(stat.get(name, 0) for name in cache_names)
        yield Reading(f"cgroup {directory / limit_name}", limit - max(used, 0))


def _ancestors(root: Path, controller: str) -> Iterator[Path]:
    """Yield the directories of the cgroup that this process is in and of all above, v1 and v2, for a controller."""
    mounts = _cgroup_mounts(root, controller)
    for line in _lines(root / "proc/self/cgroup"):
        number, names, path = line.split(":", 2)
        version = 2 if number == "0" and not names else 1
        if version == 1 and controller not in names.split(","):
            continue
        for mount_root, mount_point in mounts.get(version, ()):
            yield from _walk_up(root / mount_point.lstrip("/"), _inside(path, mount_root))


def _walk_up(top: Path, inside: PurePosixPath) -> Iterator[Path]:
    for relative in (inside, *inside.parents):
        yield top / relative


def _inside(path: str, mount_root: str) -> PurePosixPath:
    """Return a cgroup's path below a mount; in a container that mounts only its own part, that part's top."""
    try:
        return PurePosixPath(path).relative_to(mount_root)
    except ValueError:
        return PurePosixPath()


def _cgroup_mounts(root: Path, controller: str) -> dict[int, list[tuple[str, str]]]:
    """Return cgroup version → (root of the mount, where it is mounted), from mountinfo (proc(5))."""
    found: dict[int, list[tuple[str, str]]] = {}
    for line in _lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        kind, _source, options = [*right.split(" ", 2), "", ""][:3]
        mount_root, mount_point = left.split(" ")[3:5]
        if kind == "cgroup2":
            found.setdefault(2, []).append((mount_root, mount_point))
        elif kind == "cgroup" and controller in options.split(","):
            found.setdefault(1, []).append((mount_root, mount_point))
    return found


def _cpus(root: Path) -> tuple[int, str]:
    best, source = len(os.sched_getaffinity(0)), "CPU affinity"
    for directory in _ancestors(root, "cpu"):
        for name, read in (("cpu.max", _quota_v2), ("cpu.cfs_quota_us", _quota_v1)):
            quota = read(directory)
            if quota is not None and math.ceil(quota) < best:
                best, source = max(1, math.ceil(quota)), f"cgroup {directory / name}"
    return best, source


def _quota_v2(directory: Path) -> float | None:
    for line in _lines(directory / "cpu.max"):
        quota, period = line.split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _quota_v1(directory: Path) -> float | None:
    quota, period = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """Return the number in a file; None if the file is not there or says `max`."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].lstrip("-").isdigit() else None


def _keyed(path: Path, *, unit: int = 1) -> dict[str, int]:
    fields = [line.split() for line in _lines(path)]
    return {field[0]: int(field[1]) * unit for field in fields if len(field) >= 2 and field[1].isdigit()}
