"""Real kills for memory: the benchmark's scenario, in a cgroup of whichever version this machine has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "governor_kills.py"


@pytest.mark.skipif(os.geteuid() != 0, reason="making a cgroup needs root")
def test_units_that_are_killed_are_rescued_and_the_build_ends_right() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    result, kernel = json.loads(lines[0]), json.loads(lines[1])
    assert result["right"]
    assert kernel["kernel_kills"] >= result["cold"]["kills"] > 0


@pytest.mark.skipif("SMWHEEL_VM_KERNEL" not in os.environ, reason="SMWHEEL_VM_KERNEL names no kernel to boot")
def test_the_same_under_cgroup_v2_in_an_emulated_machine() -> None:
    script = SCRIPT.with_name("governor_vm.py")
    command = [sys.executable, str(script), os.environ["SMWHEEL_VM_KERNEL"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
