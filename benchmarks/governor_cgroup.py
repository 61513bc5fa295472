"""A memory limit around a command, by a cgroup of its own: v1 or v2, whichever this machine has (needs root)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


class NoCgroupError(Exception):
    """No memory cgroup can be made here; says why."""


@dataclass(frozen=True)
class Group:
    """A memory cgroup with a limit."""

    path: Path
    version: int

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that moves itself into the cgroup first."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh", *command]

    @property
    def peak(self) -> int:
        """The most that was used, file cache included, in bytes; 0 on kernels that do not say (v2 before 5.19)."""
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        file = self.path / name
        return int(file.read_text()) if file.is_file() else 0

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed in it."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        fields = dict(line.split() for line in (self.path / name).read_text().splitlines())
        return int(fields["oom_kill"])

    def settle(self) -> None:
        """Wait until nothing runs in it any more: what was killed may take a moment to go, and counts until then.

        Raises:
            TimeoutError: something still runs after 60 seconds.

        """
        until = time.monotonic() + 60
        while left := (self.path / "cgroup.procs").read_text():
            if time.monotonic() > until:
                raise TimeoutError(f"still in {self.path}: {left.split()}")
            time.sleep(0.1)


@contextmanager
def limited(size: int, name: str = "smwheel-bench") -> Iterator[Group]:
    """Make a cgroup that may use `size` bytes and no swap; end what is left in it and remove it afterwards.

    Raises:
        NoCgroupError: it cannot be made.

    """
    group = _make(f"{name}-{os.getpid()}", size)
    try:
        yield group
    finally:
        for _ in range(100):
            for pid in (group.path / "cgroup.procs").read_text().split():
                try:
                    os.kill(int(pid), 9)
                except ProcessLookupError:
                    continue
            try:
                group.path.rmdir()
                break
            except OSError:
                time.sleep(0.1)


class Watch(threading.Thread):
    """Where no cgroup can be made: the most that a process's descendants have held together, by looking often."""

    def __init__(self, pid: int) -> None:
        """Begin to watch a process and its descendants."""
        super().__init__(daemon=True)
        self.peak = 0
        self._pid = pid
        self.start()

    def run(self) -> None:
        """Look ten times a second, until the process has ended."""
        while Path(f"/proc/{self._pid}").exists():
            self.peak = max(self.peak, sum(_resident(self._pid)))
            time.sleep(0.1)


def _resident(pid: int) -> Iterator[int]:
    """Yield the resident bytes, without shared files, of a process and all below it."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    yield (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    for child in children:
        yield from _resident(int(child))


def _make(name: str, size: int) -> Group:
    try:
        if (V1 / "memory.limit_in_bytes").exists():
            path = V1 / name
            path.mkdir()
            (path / "memory.limit_in_bytes").write_text(str(size))
            return Group(path, 1)
        _delegate_memory()
        path = V2 / name
        path.mkdir()
        (path / "memory.max").write_text(str(size))
        if (path / "memory.swap.max").exists():
            (path / "memory.swap.max").write_text("0")
        return Group(path, 2)
    except OSError as error:
        raise NoCgroupError(f"a memory cgroup cannot be made: {error}") from error


def _delegate_memory() -> None:
    """Give children of the top the memory controller; in a container its processes must leave the top first."""
    control = V2 / "cgroup.subtree_control"
    if "memory" in control.read_text().split():
        return
    try:
        control.write_text("+memory")
    except OSError:
        aside = V2 / "aside"
        aside.mkdir(exist_ok=True)
        for pid in (V2 / "cgroup.procs").read_text().split():
            try:
                (aside / "cgroup.procs").write_text(pid)
            except OSError:
                continue
        control.write_text("+memory")


if __name__ == "__main__":
    if len(sys.argv) < 3 or not shutil.which(sys.argv[2]):
        sys.exit("usage: governor_cgroup.py MIB COMMAND…")
    with limited(int(sys.argv[1]) << 20) as made:
        code = subprocess.run(made.command(sys.argv[2:]), check=False).returncode
        print(f"exit {code}, peak {made.peak >> 20} MiB, {made.kills} kills")
    sys.exit(code)
