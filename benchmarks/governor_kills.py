"""Real kills: units that allocate on purpose, in a memory cgroup (v1 or v2), built by a real ninja.

    python benchmarks/governor_kills.py            # makes the cgroup; needs root
    python benchmarks/governor_kills.py --inside   # the machine, container or virtual machine is limited already

Twenty-one units of 60, 150 and 480 MiB in 900 MiB. Cold, each is believed to need 60 MiB, so that units are
killed: each must be rescued, without ninja seeing it, and the build end right. Warm, the ledger knows what they
need: none may be killed. Then one of 1,500 MiB, which must fail by name. One line of JSON; exit 1 unless all that
held. `--simple` takes nine units and no ninja (for an emulated machine, which is slow and holds Python only).
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import governor_cgroup

from smwheel.governor.ledger import Build, Ledger
from smwheel.governor.limits import MIB, measure
from smwheel.governor.prediction import Prediction, Source
from smwheel.governor.session import Governor

LIMIT = 900 * MIB
SIZES = [60, 150, 480] * 7
TOO_LARGE = 1500
SECONDS = 0.6
BUILD = Build("allocations", "1", "none", "none")

# Climbs in steps, as compilers do, says something on both streams, then writes its output.
UNIT = """
import sys, time
size, output = int(sys.argv[1]), sys.argv[2]
held = []
for _ in range(20):
    held.append(b"x" * (size << 20) if size < 20 else b"x" * ((size << 20) // 20))
    time.sleep({seconds} / 20)
print("built", output)
print("a warning of", output, file=sys.stderr)
open(output, "w").write(str(size))
"""


def main() -> None:
    """Make the limit and run inside, or run inside."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inside", action="store_true", help="run here: the limit is there already")
    parser.add_argument("--simple", action="store_true", help="fewer units, started without ninja")
    options = parser.parse_args()
    if options.inside:
        with tempfile.TemporaryDirectory(prefix="smwheel-kills-") as work:
            result = scenario(Path(work), simple=options.simple)
        print(json.dumps(result))
        sys.exit(0 if result["right"] else 1)
    with governor_cgroup.limited(LIMIT) as group:
        command = [sys.executable, __file__, "--inside", *(["--simple"] if options.simple else [])]
        code = subprocess.run(group.command(command), check=False).returncode
        print(json.dumps({"cgroup": group.version, "kernel_kills": group.kills, "peak_mib": group.peak // MIB}))
        sys.exit(code if group.kills else 1)


def scenario(work: Path, *, simple: bool = False) -> dict[str, Any]:
    """Run cold, warm and too large; return what happened and whether it was right."""
    ledger = Ledger(work / "costs.sqlite")
    names = [f"u{number:02}_{size}" for number, size in enumerate(SIZES[:9] if simple else SIZES)]
    wrong = {name: Prediction(60 * MIB, SECONDS, Source.COSTS) for name in names}
    cold = build(work / "cold", wrong, ledger, simple=simple)
    known = {name: ledger.predict("allocations", "1", name, "", "none", "none", "") for name in names}
    warm = build(work / "warm", known, ledger, simple=simple)
    large = f"u99_{TOO_LARGE}"
    lone = build(work / "large", {large: Prediction(60 * MIB, SECONDS, Source.COSTS)}, ledger, simple=simple)
    right = (
        cold["code"] == 0
        and cold["kills"] > 0
        and cold["built"] == len(names)
        and "Killed" not in cold["output"]
        and warm["code"] == 0
        and warm["kills"] == 0
        and warm["built"] == len(names)
        and lone["code"] != 0
        and f"{large}: killed for memory although it ran alone" in lone["output"]
    )
    for one in (cold, warm, lone):
        one["output"] = one["output"][-400:]
    return {"right": right, "cold": cold, "warm": warm, "too_large": lone}


def build(work: Path, predictions: dict[str, Prediction], ledger: Ledger, *, simple: bool = False) -> dict[str, Any]:
    """Build the units that are predicted; return how it ended."""
    work.mkdir()
    program = work / "unit.py"
    program.write_text(UNIT.format(seconds=SECONDS))
    limits = measure(jobs=8)
    limits = type(limits)(**{**limits.__dict__, "jobs": 8})
    governor = Governor(limits, predictions, work, ledger=ledger.path, build=BUILD)
    began = time.monotonic()
    with governor:
        commands = {
            name: [
                *governor.launcher_command(name),
                *(sys.executable, "-I", "-S", str(program), name.split("_")[1], str(work / name)),
            ]
            for name in predictions
        }
        code, output = at_once(commands) if simple else by_ninja(work, commands, governor.ninja_jobs)
    assert governor.summary is not None
    return {
        "code": code,
        "kills": governor.summary.kills,
        "built": sum((work / name).is_file() for name in predictions),
        "wall_s": round(time.monotonic() - began, 2),
        "budget_mib": governor.budget // MIB,
        "limit_from": limits.memory_source,
        "output": output,
    }


def by_ninja(work: Path, commands: dict[str, list[str]], jobs: int) -> tuple[int, str]:
    """Build with ninja; return its exit code and what it printed."""
    lines = ["rule unit", "  command = $run"]
    for name, command in commands.items():
        lines += [f"build {name}: unit", f"  run = {shlex.join(command).replace('$', '$$')}"]
    (work / "build.ninja").write_text("\n".join(lines) + "\n")
    ninja = shutil.which("ninja") or str(Path(sys.executable).parent / "ninja")
    done = subprocess.run([ninja, "-C", str(work), f"-j{jobs}"], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def at_once(commands: dict[str, list[str]]) -> tuple[int, str]:
    """Start all units together; return the largest exit code and what all printed."""
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands.values()
    ]
    outputs = [one.communicate()[0] for one in started]
    return max(abs(one.returncode) for one in started), "".join(outputs)


if __name__ == "__main__":
    main()
