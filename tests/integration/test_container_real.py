"""The container backend with a real engine: what a build in a container can reach, loses, survives and proves.

Needs an engine that answers (`ci/install-engine`) and a base image (`ci/make-base-image`); on CI both must be there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import container_demo as demo
import pytest

from smwheel.build import engine as engines
from smwheel.build.builderimage import LOCAL_BASE
from smwheel.build.engine import Engine
from smwheel.errors import ContainerError, LockedError, OutOfMemoryError, VerifyError

pytestmark = pytest.mark.integration

ON_DOCKER = ("--backend", "docker")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return demo.docker()


@pytest.fixture(autouse=True)
def _no_container_is_left(engine: Engine, tmp_path: Path) -> Iterator[None]:
    yield
    wait_until(lambda: not containers(engine, tmp_path), "all containers to be gone")


def containers(engine: Engine, root: Path) -> list[str]:
    """Return the containers of builds below `root`; other builds may use the same engine."""
    labels = engine.call("ps", "--all", "--filter", "label=smwheel", "--format", '{{.Label "smwheel"}}').splitlines()
    return [label for label in labels if label.startswith(str(root))]


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)


def wheel(root: Path, house: str = "wheelhouse") -> Path:
    (found,) = (root / house).glob("*.whl")
    return found


def test_two_host_directories_make_the_same_wheel_and_rebuild_proves_it(tmp_path: Path, engine: Engine) -> None:
    one, two = tmp_path / "one", tmp_path / "in another place" / "two"
    for root in (one, two):
        demo.make(root, {"a": "true", "b": "true"})
        done = demo.build(root, *ON_DOCKER)
        assert done.returncode == 0, done.stderr
    assert wheel(one).name == wheel(two).name
    assert wheel(one).read_bytes() == wheel(two).read_bytes()
    with zipfile.ZipFile(wheel(one)) as archive:
        library = archive.read("container_demo/one.so")
    assert b"/srv/smwheel/tree" in library, "the path that the compiler saw is not the fixed one"

    base = engine.image(LOCAL_BASE)
    assert base is not None
    assert demo.evidence(one, "container.json")["base"] == base.digest
    assert demo.evidence(one, "plan.json")["host"]["base_image"] == base.digest
    assert demo.evidence(one, "build.json")["network"] == "none"

    again = rebuild(one, wheel(one))
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["identical"] is True

    changed = tmp_path / wheel(one).name
    with zipfile.ZipFile(wheel(one)) as old, zipfile.ZipFile(changed, "w") as new:
        for info in old.infolist():
            new.writestr(info, b"import os\n" if info.filename == "container_demo/__init__.py" else old.read(info))
    refused = rebuild(one, changed)
    assert refused.returncode == VerifyError.exit_code
    assert "other bytes from the same plan: container_demo/__init__.py" in json.loads(refused.stdout)["message"]


def rebuild(root: Path, made: Path) -> subprocess.CompletedProcess[str]:
    command = [*demo.program(), "rebuild", str(made), "--recipe", str(root / "recipe"), "--work", str(root / "again")]
    return subprocess.run(
        [*command, "--json"], env=demo.environment(root), capture_output=True, text=True, check=False, timeout=600
    )


# What a recipe may try while it compiles; each line notes what succeeded that must not.
MALICE = r"""
for path in /srv/smwheel/tree /srv/smwheel/recipe /srv/smwheel/env /srv/smwheel/cuda /etc /usr / {host} \
  /opt/smwheel/src/smwheel /opt/smwheel/recipes \
  /var/smwheel/cache/store /var/smwheel/cache/environments /var/smwheel/cache/trees; do
  touch $path/written 2>/dev/null && echo wrote $path >>$WORK/broken
done
/srv/smwheel/env/bin/python -c "import socket; socket.create_connection(('127.0.0.1', {port}), 3)" 2>/dev/null \
  && echo reached the host >>$WORK/broken
[ $(wc -l </proc/net/route) -gt 1 ] && echo has a route >>$WORK/broken
[ -S /var/run/docker.sock ] && echo sees the engine >>$WORK/broken
grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && echo has capabilities >>$WORK/broken
id -u >$WORK/uid
cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null >$WORK/limit
cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null >$WORK/quota
true
""".replace("$WORK", "/srv/smwheel/work")


@pytest.mark.parametrize("backend", ["docker", "host"])
def test_a_malicious_recipe_writes_nothing_outside_its_mounts_and_reaches_nobody(tmp_path: Path, backend: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = MALICE.format(host=tmp_path, port=server.getsockname()[1])
        (demo.make(tmp_path, {"a": "sh /srv/smwheel/recipe/malice"}) / "malice").write_text(script)
        done = demo.build(tmp_path, "--backend", backend, "--memory", "1500M", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    work = demo.work_of(tmp_path)
    broken = work / "broken"
    assert not broken.exists(), broken.read_text()
    assert not list(tmp_path.rglob("written"))
    assert demo.evidence(tmp_path, "build.json")["network"] == "none"
    if backend == "docker":
        assert int((work / "uid").read_text()) != 0
        assert (work / "limit").read_text().split() == [str(1500 << 20)], "the limit is not the one asked for"
        assert (work / "quota").read_text().split()[0] == "100000"


def test_an_allowed_network_is_recorded(tmp_path: Path) -> None:
    script = "[ $(wc -l </proc/net/route) -gt 1 ] || exit 3"
    demo.make(tmp_path, {"a": script})
    done = demo.build(tmp_path, *ON_DOCKER, "--allow-network")
    assert done.returncode == 0, done.stderr
    assert demo.evidence(tmp_path, "build.json")["network"] == "allowed"
    assert demo.evidence(tmp_path, "container.json")["network"] == "host"


def test_what_a_container_leaves_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not for recipes")
    plant = (
        f"ln -s {tmp_path}/secret /var/smwheel/cache/planted; rm /var/smwheel/cache/costs.sqlite; "
        f"ln -s {tmp_path}/secret /var/smwheel/cache/costs.sqlite"
    )
    demo.make(tmp_path, {"a": plant})
    demo.build(tmp_path, *ON_DOCKER)
    assert (tmp_path / "secret").read_text() == "not for recipes"
    assert (tmp_path / "secret").stat().st_uid == os.geteuid()


GREEDY = "/srv/smwheel/env/bin/python -c 'held = bytearray({mib} << 20)'"


def test_a_limit_that_is_too_small_ends_with_the_right_error(tmp_path: Path) -> None:
    demo.make(tmp_path, {"a": "true", "b": GREEDY.format(mib=1500)})
    done = demo.build(tmp_path, *ON_DOCKER, "--memory", "800M", "--json")
    assert done.returncode == OutOfMemoryError.exit_code, done.stderr
    (error,) = json.loads(done.stdout)["failures"].values()
    assert "800.0 MiB" in error["message"] or "memory" in error["message"]
    assert "--memory" in error["cure"] or "memory" in error["cure"]
    assert "a" in (demo.work_of(tmp_path) / "started").read_text().split()


def test_a_unit_that_was_killed_for_memory_is_rescued(tmp_path: Path) -> None:
    """Two units that fit one by one and not together, and of which nothing is known."""
    hold = GREEDY.format(mib=420).replace("'held", "'import time; held").replace("<< 20)'", "<< 20); time.sleep(4)'")
    demo.make(tmp_path, {"a": hold, "b": hold})
    done = demo.build(tmp_path, *ON_DOCKER, "--memory", "800M", "--jobs", "2")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_build_leaves_no_container_and_goes_on_where_it_was(
    tmp_path: Path, engine: Engine, how: signal.Signals
) -> None:
    wait = "while [ ! -e /srv/smwheel/work/go ]; do sleep 0.2; done"
    demo.make(tmp_path, {"a": "true", "b": "true", "c": wait})
    process = subprocess.Popen(
        demo.command(tmp_path, *ON_DOCKER, "--jobs", "2"),
        env=demo.environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def reached() -> bool:
        if process.poll() is not None:
            assert process.stderr is not None
            pytest.fail(f"it ended too early: {process.stderr.read()}")
        works = list((tmp_path / "work").glob("flashinfer-*/started"))
        if not works or "c" not in works[0].read_text().split():
            return False
        assert containers(engine, tmp_path)
        log = works[0].with_name(".ninja_log")  # a heading, then a line for each unit that ended
        return log.is_file() and len(log.read_text().splitlines()) >= 3

    wait_until(reached, "the last unit to start", 240)
    if how is signal.SIGKILL:
        second = demo.build(tmp_path, *ON_DOCKER)
        assert second.returncode == LockedError.exit_code, second.stderr
        assert str(process.pid) in second.stderr
    process.send_signal(how)
    process.wait(60)
    wait_until(lambda: not containers(engine, tmp_path), "the container to be gone")
    if how is not signal.SIGKILL:
        return  # what is left is the same
    work = demo.work_of(tmp_path)
    (work / "go").touch()

    done = demo.build(tmp_path, *ON_DOCKER)
    assert done.returncode == 0, done.stderr
    assert Counter((work / "started").read_text().split()) == {"a": 1, "b": 1, "c": 2}
    assert "unchanged" in demo.build(tmp_path, *ON_DOCKER).stderr


def test_an_error_inside_is_the_same_outside(tmp_path: Path) -> None:
    demo.make(tmp_path, {"a": "echo the source is odd >&2; exit 7"})
    codes, messages = [], []
    for backend in ("docker", "host"):
        done = demo.build(tmp_path, "--backend", backend, "--json")
        (error,) = json.loads(done.stdout)["failures"].values()
        codes.append(done.returncode)
        messages.append(error["message"])
        log = Path(error["cure"].split()[-1])
        assert log.is_file(), "the log is named as it lies on this machine"
        assert "the source is odd" in log.read_text()
    assert codes[0] == codes[1]
    assert all("the source is odd" in message for message in messages)


def test_auto_says_which_backend_it_takes_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo.make(tmp_path, {"a": "true"})
    taken = demo.build(tmp_path, "--backend", "auto")
    assert taken.returncode == 0, taken.stderr
    assert "base image is to be had" in taken.stderr
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    alone = demo.build(tmp_path, "--backend", "auto", wheelhouse="other")
    assert alone.returncode == 0, alone.stderr
    assert "host (docker: the engine does not answer" in alone.stderr


def test_base_images_that_cannot_be_used(tmp_path: Path, engine: Engine) -> None:
    demo.make(tmp_path, {"a": "true"})
    digest = "0" * 64
    missing = demo.build(tmp_path, *ON_DOCKER, "--base-image", f"registry.invalid/base@sha256:{digest}")
    assert missing.returncode == ContainerError.exit_code
    assert "ci/make-base-image" in missing.stderr
    foreign = tmp_path / "Dockerfile"
    foreign.write_text("FROM scratch\nCOPY Dockerfile /\n")
    arguments = ["--platform", "linux/arm64", "--tag", "smwheel-test:arm64", "--file", str(foreign), str(tmp_path)]
    engine.build(arguments, tmp_path / "log", where="test")
    try:
        done = demo.build(tmp_path, *ON_DOCKER, "--base-image", "smwheel-test:arm64")
    finally:
        engine.call("rmi", "smwheel-test:arm64")
    assert done.returncode == ContainerError.exit_code
    assert "the image is for arm64, this machine is amd64" in done.stderr


def test_a_user_who_may_not_use_the_engine_is_told(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become a user without rights")
    client = shutil.which("docker")
    assert client is not None
    done = subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", client, "version"],
        env={"PATH": os.environ["PATH"], "HOME": "/tmp"},
        capture_output=True,
        text=True,
        check=False,
    )
    error = engines.refusal(done.stderr, where="docker")
    assert "this user may not use the engine" in error.message
    assert "group" in error.cure


def test_threads_of_output_are_not_lost(tmp_path: Path) -> None:
    """What the program inside says arrives while it runs, not at its end."""
    wait = "while [ ! -e /srv/smwheel/work/go ]; do sleep 0.2; done"
    demo.make(tmp_path, {"a": wait})
    process = subprocess.Popen(
        demo.command(tmp_path, *ON_DOCKER), env=demo.environment(tmp_path), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stderr))
    reader.start()
    wait_until(lambda: any("2 units of 1 modules" in line for line in lines), "the line about the units", 240)
    assert process.poll() is None
    (demo.work_of(tmp_path) / "go").touch()
    assert process.wait(120) == 0
    reader.join()
