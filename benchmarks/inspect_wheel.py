"""Measure inspect on a wheel and on its largest library, beside cuobjdump if that is given.

    python benchmarks/inspect_wheel.py WHEEL [--cuobjdump PATH] [--runs 3]

Each measurement is a fresh process; the least of the runs is shown, with its peak memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from smwheel.wheels.wheelfile import Wheel

WHEEL = "from smwheel.wheels.inspect import inspect; import sys; inspect(sys.argv[1])"
LIBRARY = (
    "from smwheel.wheels.fatbin import list_entries; from pathlib import Path; import sys; "
    "list_entries(Path(sys.argv[1]))"
)
NOTHING = "import smwheel.wheels.inspect"


def measure(command: list[str], runs: int) -> tuple[float, float, float]:
    """Return wall seconds, processor seconds and peak MiB of the run that took least."""
    best = (float("inf"), 0.0, 0.0)
    for _ in range(runs):
        start = time.monotonic()
        process = os.posix_spawnp(
            command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        )
        _, status, used = os.wait4(process, 0)
        if status:
            raise SystemExit(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
        best = min(best, (time.monotonic() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024))
    return best


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--cuobjdump", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':<34} {'seconds':>8} {'cpu':>8} {'MiB':>7}")

    def show(name: str, command: list[str]) -> None:
        wall, cpu, peak = measure(command, options.runs)
        print(f"{name:<34} {wall:>8.3f} {cpu:>8.3f} {peak:>7.0f}")

    show("start of Python and imports", [sys.executable, "-c", NOTHING])
    show("inspect the wheel, unextracted", [sys.executable, "-c", WHEEL, str(options.wheel)])
    with Wheel(options.wheel) as wheel, tempfile.TemporaryDirectory() as work:
        name = max((name for name in wheel.members if ".so" in name), key=lambda n: wheel.members[n].file_size)
        wheel.extract(Path(work), [name])
        path = Path(work) / name
        print(f"{name}: {path.stat().st_size} bytes")
        show("list it by mmap", [sys.executable, "-c", LIBRARY, str(path)])
        if options.cuobjdump:
            show("cuobjdump --list-elf", [str(options.cuobjdump), "--list-elf", str(path)])


if __name__ == "__main__":
    main()
