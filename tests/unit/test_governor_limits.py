"""What a build may use, read from copies of the files that real hosts have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smwheel.errors import SystemNeedError, UsageError
from smwheel.governor.limits import GIB, MIB, Limits, Meter, cgroup_peak, measure, memory_kills

NO_LIMIT = "9223372036854771712"


@pytest.fixture(autouse=True)
def sixteen_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


def host(root: Path, *, available_gib: float = 100, cgroup: str = "", mountinfo: str = "") -> Path:
    put(root, "proc/meminfo", f"MemTotal: 134217728 kB\nMemAvailable: {int(available_gib * MIB)} kB\n")
    put(root, "proc/self/cgroup", cgroup)
    put(root, "proc/self/mountinfo", mountinfo)
    return root


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def v1(root: Path, *, path: str = "/ci/job", mount_root: str = "/", **options: float) -> Path:
    return host(
        root,
        cgroup=f"5:memory:{path}\n4:cpu,cpuacct:{path}\n0::/\n",
        mountinfo=(
            f"35 31 0:32 {mount_root} /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n"
            f"36 31 0:33 {mount_root} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        ),
        **options,
    )


def v2(root: Path, *, path: str = "/ci/job", mount_root: str = "/", **options: float) -> Path:
    return host(
        root,
        cgroup=f"0::{path}\n",
        mountinfo=f"35 31 0:32 {mount_root} /sys/fs/cgroup rw shared:1 - cgroup2 cgroup2 rw,nsdelegate\n",
        **options,
    )


def test_the_host_alone(tmp_path: Path) -> None:
    limits = measure(root=host(tmp_path, available_gib=100))
    assert (limits.memory, limits.memory_source) == (100 * GIB, str(tmp_path / "proc/meminfo"))
    assert limits.budget == 100 * GIB - limits.reserve
    assert limits.reserve == 8 * GIB
    assert (limits.cpus, limits.cpus_source) == (16, "CPU affinity")


def test_a_large_host_keeps_a_reserve(tmp_path: Path) -> None:
    assert measure(root=host(tmp_path, available_gib=880)).reserve == 32 * GIB


@pytest.mark.parametrize("depth", ["ci/job", "ci", ""])
def test_every_ancestor_counts_in_v2(tmp_path: Path, depth: str) -> None:
    root = v2(tmp_path)
    put(root, "sys/fs/cgroup/ci/job/memory.max", "max\n")
    put(root, f"sys/fs/cgroup/{depth}/memory.max", f"{8 * GIB}\n")
    limits = measure(root=root)
    assert limits.memory == 8 * GIB
    assert limits.memory_source == f"cgroup {(root / 'sys/fs/cgroup' / depth / 'memory.max')}"


@pytest.mark.parametrize("depth", ["ci/job", "ci"])
def test_every_ancestor_counts_in_v1(tmp_path: Path, depth: str) -> None:
    root = v1(tmp_path)
    put(root, "sys/fs/cgroup/memory/ci/job/memory.limit_in_bytes", f"{NO_LIMIT}\n")
    put(root, f"sys/fs/cgroup/memory/{depth}/memory.limit_in_bytes", f"{8 * GIB}\n")
    limits = measure(root=root)
    assert limits.memory == 8 * GIB
    assert limits.memory_source.endswith(f"{depth}/memory.limit_in_bytes")


def test_in_a_container_the_path_is_the_hosts_and_the_mount_the_containers(tmp_path: Path) -> None:
    root = v1(tmp_path, path="/docker/abc", mount_root="/docker/abc")
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{4 * GIB}\n")
    assert measure(root=root).memory == 4 * GIB


def test_what_is_in_use_counts_but_not_file_cache(tmp_path: Path) -> None:
    root = v2(tmp_path)
    put(root, "sys/fs/cgroup/ci/job/memory.max", f"{8 * GIB}\n")
    put(root, "sys/fs/cgroup/ci/job/memory.current", f"{5 * GIB}\n")
    put(root, "sys/fs/cgroup/ci/job/memory.stat", f"anon {GIB}\ninactive_file {3 * GIB}\nactive_file {GIB}\n")
    assert measure(root=root).memory == 7 * GIB


def test_in_v1_the_cache_of_the_children_counts_too(tmp_path: Path) -> None:
    root = v1(tmp_path)
    put(root, "sys/fs/cgroup/memory/ci/memory.limit_in_bytes", f"{8 * GIB}\n")
    put(root, "sys/fs/cgroup/memory/ci/memory.usage_in_bytes", f"{5 * GIB}\n")
    put(root, "sys/fs/cgroup/memory/ci/memory.stat", f"inactive_file 0\ntotal_inactive_file {4 * GIB}\n")
    assert measure(root=root).memory == 7 * GIB


def test_the_user_may_give_less_but_not_more(tmp_path: Path) -> None:
    root = host(tmp_path, available_gib=10)
    assert measure(4 * GIB, root=root).memory_source == "--memory"
    assert measure(40 * GIB, root=root).memory == 10 * GIB


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sys/fs/cgroup/ci/cpu.max", "250000 100000\n", 3),
        ("sys/fs/cgroup/ci/cpu.max", "max 100000\n", 16),
        ("sys/fs/cgroup/ci/cpu.max", "50000 100000\n", 1),
    ],
)
def test_cpu_quota_v2(tmp_path: Path, name: str, text: str, expected: int) -> None:
    root = v2(tmp_path)
    put(root, name, text)
    limits = measure(root=root)
    assert limits.cpus == expected
    assert limits.cpus_source == ("CPU affinity" if expected == 16 else f"cgroup {root / name}")


def test_cpu_quota_v1(tmp_path: Path) -> None:
    root = v1(tmp_path)
    put(root, "sys/fs/cgroup/cpu/ci/job/cpu.cfs_quota_us", "400000\n")
    put(root, "sys/fs/cgroup/cpu/ci/job/cpu.cfs_period_us", "100000\n")
    put(root, "sys/fs/cgroup/cpu/ci/cpu.cfs_quota_us", "-1\n")
    put(root, "sys/fs/cgroup/cpu/ci/cpu.cfs_period_us", "100000\n")
    assert measure(root=root).cpus == 4


def test_jobs_means_at_most(tmp_path: Path) -> None:
    root = host(tmp_path)
    assert (measure(jobs=3, root=root).jobs, measure(jobs=3, root=root).jobs_source) == (3, "--jobs")
    assert measure(jobs=99, root=root).jobs == 16
    with pytest.raises(UsageError, match="at least one unit"):
        measure(jobs=0, root=root)


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too little") as caught:
        measure(50 * MIB, root=host(tmp_path))
    assert caught.value.where == "--memory"


def test_a_host_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    host(tmp_path)
    put(tmp_path, "proc/meminfo", "MemTotal: 1 kB\n")
    with pytest.raises(SystemNeedError, match="how much memory"):
        measure(root=tmp_path)


def test_the_meter_sees_use_and_what_is_left(tmp_path: Path) -> None:
    root = v2(tmp_path)
    put(root, "sys/fs/cgroup/ci/job/memory.max", f"{8 * GIB}\n")
    put(root, "sys/fs/cgroup/ci/job/memory.current", f"{GIB}\n")
    meter = Meter(measure(root=root), root=root)
    assert meter.read() == (0, 7 * GIB)
    put(root, "sys/fs/cgroup/ci/job/memory.current", f"{6 * GIB}\n")
    assert meter.read() == (5 * GIB, 2 * GIB)


def test_kills_and_peak(tmp_path: Path) -> None:
    root = v2(tmp_path)
    put(root, "sys/fs/cgroup/ci/job/memory.events", "oom 5\noom_kill 3\n")
    put(root, "sys/fs/cgroup/ci/job/memory.peak", f"{GIB}\n")
    assert memory_kills(root) == 3
    assert cgroup_peak(root) == GIB


def test_json_holds_every_number_with_its_source(tmp_path: Path) -> None:
    limits = measure(4 * GIB, 2, root=host(tmp_path, available_gib=10))
    value = limits.as_json()
    assert value["budget"] == limits.budget
    assert [reading["source"] for reading in value["readings"]] == ["--memory", str(tmp_path / "proc/meminfo")]
    assert isinstance(limits, Limits)
    assert "4.0 GiB of memory (from --memory)" in str(limits)
