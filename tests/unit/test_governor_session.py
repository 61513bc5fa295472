"""What a build is given by its governor, before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from smwheel.governor.limits import GIB, Limits
from smwheel.governor.session import PARKED_BYTES, PARKED_MOST, Governor


def governor(work: Path, *, gib: float = 64, jobs: int = 16) -> Governor:
    size = int(gib * GIB)
    return Governor(Limits(size, "--memory", size // 20, jobs, "CPU affinity", jobs, "CPU affinity"), {}, work)


@pytest.mark.parametrize(("gib", "jobs"), [(0.2, 2), (1, 128), (8, 2), (64, 16), (512, 256)])
def test_waiting_launchers_are_many_and_leave_room_for_compilers(tmp_path: Path, gib: float, jobs: int) -> None:
    made = governor(tmp_path, gib=gib, jobs=jobs)
    assert made.ninja_jobs >= 2
    assert made.budget >= 0.9 * made.limits.budget
    assert made.budget + made.ninja_jobs * PARKED_BYTES == made.limits.budget


def test_a_large_machine_has_enough_waiting_to_choose_from(tmp_path: Path) -> None:
    assert governor(tmp_path).ninja_jobs == PARKED_MOST
    assert governor(tmp_path, gib=512, jobs=256).ninja_jobs == 512


def test_the_launcher_is_plain_python_with_the_governors_directory(tmp_path: Path) -> None:
    made = governor(tmp_path)
    command = made.launcher_command("m/u.cu")
    assert command[:3] == [sys.executable, "-I", "-S"]
    assert command[4:] == ["--governor", str(tmp_path / "governor"), "--unit", "m/u.cu", "--"]
    assert made.launcher_command() == command[:6]
    assert not made.alive


def test_other_build_systems_get_variables(tmp_path: Path) -> None:
    made = governor(tmp_path)
    variables = made.environment()
    assert variables["CMAKE_CUDA_COMPILER_LAUNCHER"].split(";") == made.launcher_command()
    assert variables["MAX_JOBS"] == variables["CMAKE_BUILD_PARALLEL_LEVEL"] == str(made.ninja_jobs)
    assert variables["SMWHEEL_BUILD"] == made.build_id
    assert "CUDA_HOME" not in variables
