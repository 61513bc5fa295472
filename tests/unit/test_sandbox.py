"""What a recipe's code can reach while it compiles."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from smwheel.build import sandbox
from smwheel.build.sandbox import Bind, Sandbox, has_network, make_sandbox, namespaces_unusable

needs_namespaces = pytest.mark.skipif(bool(namespaces_unusable()), reason=f"no namespaces: {namespaces_unusable()}")


def make(root: Path) -> Sandbox:
    (root / "tree").mkdir()
    (root / "work").mkdir()
    return make_sandbox([Bind("tree", root / "tree"), Bind("work", root / "work", writable=True)])


def run(made: Sandbox, root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        made.wrap(list(command), cwd=root / "work"), capture_output=True, text=True, check=False, timeout=60
    )


@needs_namespaces
def test_nothing_but_the_work_directory_can_be_written(tmp_path: Path) -> None:
    made = make(tmp_path)
    outside = [
        f"{tmp_path}/x",
        "/srv/smwheel/tree/x",
        "/srv/x",
        "/etc/x",
        "/tmp/smwheel-x",
        "/var/x",
        "/sys/fs/cgroup/x",
    ]
    for path in outside:
        done = run(made, tmp_path, "touch", path)
        assert done.returncode != 0, path
    assert run(made, tmp_path, "touch", "/srv/smwheel/work/x").returncode == 0
    assert (tmp_path / "work/x").exists()
    assert not Path("/tmp/smwheel-x").exists()


@needs_namespaces
def test_the_walls_cannot_be_taken_down(tmp_path: Path) -> None:
    made = make(tmp_path)
    assert run(made, tmp_path, "mount", "-o", "remount,rw,bind", "/srv/smwheel/tree").returncode != 0
    assert run(made, tmp_path, "sh", "-c", "echo 1 >/proc/sys/vm/drop_caches").returncode != 0
    capabilities = run(made, tmp_path, "sed", "-n", "s/^Cap[PEB].*:\t//p", "/proc/self/status").stdout.split()
    assert set(capabilities) == {"0" * 16}
    assert run(made, tmp_path, "sh", "-c", "ls -d /dev/[sv]d* /dev/nvidia* /dev/kvm").stdout == ""


@needs_namespaces
def test_neither_a_host_nor_a_service_can_be_reached(tmp_path: Path) -> None:
    made = make(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 3)"
        assert subprocess.run([sys.executable, "-c", connect], check=False).returncode == 0
        assert run(made, tmp_path, sys.executable, "-c", connect).returncode != 0
    assert run(made, tmp_path, "cat", "/proc/net/route").stdout.count("\n") <= 1
    assert set(run(made, tmp_path, "ls", "-A", "/run").stdout.split()) <= {"mount"}  # mount(8) keeps notes there


@needs_namespaces
def test_programs_find_what_they_expect(tmp_path: Path) -> None:
    made = make(tmp_path)
    script = "echo hello >/dev/null; head -c 8 /dev/urandom | wc -c; echo to-stderr >/dev/stderr; ls -d /dev/shm; pwd"
    done = run(made, tmp_path, "sh", "-c", script)
    assert done.stdout.split() == ["8", "/dev/shm", "/srv/smwheel/work"]
    assert done.stderr == "to-stderr\n"


def test_directories_that_lie_at_the_fixed_paths_need_no_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = tmp_path / "fixed"
    fixed.mkdir()
    monkeypatch.setattr(sandbox, "FIXED_ROOT", fixed)
    for name in ("tree", "work"):
        (tmp_path / "real" / name).mkdir(parents=True)
        (fixed / name).symlink_to(tmp_path / "real" / name)
    binds = [Bind("tree", tmp_path / "real/tree"), Bind("work", tmp_path / "real/work", writable=True)]
    made = make_sandbox(binds)
    assert (made.fixed, made.mounted, made.namespaces) == (True, True, False)
    assert made.inside(tmp_path / "real/work/a.o") == f"{fixed}/work/a.o"
    assert made.outside(f"{fixed}/work/a.o") == tmp_path / "real/work/a.o"
    done = subprocess.run(
        made.wrap(["sh", "-c", "echo $PWD"], cwd=tmp_path / "real/work"), capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == f"{fixed}/work"
    other = tmp_path / "other"
    other.mkdir()
    assert not make_sandbox([Bind("tree", other), binds[1]]).mounted, "another directory lies at the fixed path"


@pytest.mark.parametrize(
    ("route", "ipv6", "reachable"),
    [
        ("Iface\tDestination\n", "", False),
        ("Iface\tDestination\neth0\t00000000\n", "", True),
        ("Iface\tDestination\n", "00 00 00 00 00 00 00 00 00 lo\n", False),
        ("Iface\tDestination\n", "00 00 00 00 00 00 00 00 00 lo\nfe80 40 00 00 00 00 00 00 00 eth0\n", True),
    ],
)
def test_a_route_is_a_network(tmp_path: Path, route: str, ipv6: str, reachable: bool) -> None:
    (tmp_path / "route").write_text(route)
    (tmp_path / "ipv6_route").write_text(ipv6)
    assert has_network(tmp_path) is reachable


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_user_without_rights_has_the_same_walls(tmp_path: Path) -> None:
    probe = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if subprocess.run(
        [*probe, "unshare", "--user", "--map-root-user", "true"], capture_output=True, check=False
    ).returncode:
        pytest.skip("users may not make namespaces here")
    script = (
        "from pathlib import Path; import sys, subprocess\n"
        "from smwheel.build.sandbox import *\n"
        "root = Path(sys.argv[1]); (root / 'tree').mkdir(); (root / 'work').mkdir()\n"
        "made = make_sandbox([Bind('tree', root / 'tree'), Bind('work', root / 'work', writable=True)])\n"
        "assert made.namespaces, made.reason\n"
        "run = lambda *c: subprocess.run(made.wrap(list(c), cwd=root / 'work')).returncode\n"
        "assert run('touch', '/srv/smwheel/work/x') == 0\n"
        "assert run('touch', '/srv/smwheel/tree/x') != 0\n"
        "assert run('touch', str(root / 'x')) != 0\n"
    )
    source = tmp_path / "source"
    source.mkdir()
    (source / "smwheel").symlink_to(Path(sandbox.__file__).parent.parent)
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)
    done = subprocess.run(
        [*probe, "/usr/bin/python3", "-c", script, str(folder)],
        env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin:/usr/sbin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
