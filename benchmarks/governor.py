"""The governor beside ninja's default and upstream's formula, on real units under a memory limit that binds.

    python benchmarks/governor.py [--bundle BUNDLE] [--memory GIB] [--modes cold,warm,ninja,formula] [--json FILE]

Without a bundle one is packed first (`governor_set.py`). Each way builds the same named units (`SMALL`) from
nothing, in a memory cgroup of its own (v1 or v2; needs root; where none can be made, the memory is only watched).
Prints a table: wall seconds, the most memory that
was used, kills, the ratio to the bound for schedules that reserve peaks. Exit 1 unless warm had no kill and came
within 1.2 times the bound. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import governor_cgroup
import governor_set
from governor_set import GIB, MIB

MOST_RATIO = 1.2
MODES = "cold,warm,ninja,formula"


def main() -> None:
    """Build each way, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--cuda", type=Path, required=True, help="the CUDA toolkit that compiles")
    parser.add_argument("--memory", type=float, default=governor_set.SMALL_LIMIT / GIB, help="the limit, in GiB")
    parser.add_argument("--modes", default=MODES)
    parser.add_argument("--set", choices=["small", "quarter", "all"], default="small", dest="which")
    parser.add_argument("--window", type=float, default=3600.0, help="stop each way after so many seconds")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(inside(options)))
        return
    with tempfile.TemporaryDirectory(prefix="smwheel-bench-") as scratch:
        if options.bundle is None:
            options.bundle = Path(scratch) / "set.tar.xz"
            governor_set.pack(options.bundle)
        results = [one_way(mode, options, Path(scratch)) for mode in options.modes.split(",")]
    print_table(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    warm = next((result for result in results if result["mode"] == "warm"), None)
    if warm and (warm["kernel_kills"] or warm["done"] < warm["units"] or warm["governor"]["ratio"] > MOST_RATIO):
        sys.exit("warm: a kill, or more than 1.2 times the bound")


def one_way(mode: str, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Build one way, in a cgroup and a directory of its own."""
    work = scratch / mode
    work.mkdir()
    program = [sys.executable, __file__, "--inside", mode, "--work", str(work), "--bundle", str(options.bundle)]
    program += ["--cuda", str(options.cuda), "--memory", str(options.memory), "--set", options.which]
    program += ["--window", str(options.window)]
    try:
        with governor_cgroup.limited(int(options.memory * GIB)) as group:
            result = run(group.command(program))[0]
            peak = {"kernel_kills": group.kills, "cgroup": group.version, "peak_mib": group.peak // MIB}
            return result | peak
    except governor_cgroup.NoCgroupError as error:
        print(f"{error}: the limit binds nobody but the governor; 'kills' says whether it was passed", file=sys.stderr)
    result, most = run(program)
    return result | {"kernel_kills": int(most > options.memory * GIB), "cgroup": 0, "peak_mib": most // MIB}


def run(program: list[str]) -> tuple[dict[str, Any], int]:
    """Run this program inside; return what it printed, and the most memory that it held."""
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    watch = governor_cgroup.Watch(process.pid)
    output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"the build ended with {process.returncode}: {output[-2000:]}")
    value: dict[str, Any] = json.loads(output)
    return value, watch.peak


def inside(options: argparse.Namespace) -> dict[str, Any]:
    """Build one way, here; the cold run's ledger serves the warm one."""
    units = governor_set.unpack(options.bundle, options.work)
    if options.which == "small":
        units = governor_set.subset(units, governor_set.SMALL)
    elif options.which == "quarter":
        units = governor_set.quarter(units)
    return governor_set.build(
        units,
        options.work,
        cuda=options.cuda,
        mode=options.inside,
        limit=int(options.memory * GIB),
        window=options.window,
        ledger=options.work.parent / "costs.sqlite",
    )


def print_table(results: list[dict[str, Any]]) -> None:
    """Print the results as a Markdown table.

    Ways that measure nothing are compared with the bound of the warm run beside them, else with the table's.
    """
    warm = next((one["governor"]["bound_s"] for one in results if one["mode"] == "warm" and one["code"] == 0), None)
    print("| way | -j | wall s | done | CPU s done | kills | peak MiB | bound s | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for one in results:
        bound = one["governor"]["bound_s"] if "governor" in one else warm or one["table_bound_s"]
        finished = one["done"] == one["units"]
        ratio = f"{one['wall_s'] / bound:.2f}" if finished else "-"
        print(
            f"| {one['mode']} | {one['jobs']} | {one['wall_s']} | {one['done']}/{one['units']} | {one['cpu_done_s']} "
            f"| {one['kernel_kills']} | {one['peak_mib']} | {bound} | {ratio} |"
        )


if __name__ == "__main__":
    main()
