"""Engines that are not the usual one: podman, one whose disk is full, and clients without BuildKit.

Needs root, docker's engine (`ci/install-engine`) and a base image (`ci/make-base-image`). The tests with podman run
where it is installed and has the base too (`ENGINE=podman ci/make-base-image`).
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import container_demo as demo
import pytest

from smwheel.build import engine as engines
from smwheel.build.builderimage import LOCAL_BASE
from smwheel.build.engine import Engine
from smwheel.errors import ContainerError, OutOfMemoryError
from smwheel.paths import data_dir

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def docker() -> Engine:
    return demo.docker()


@pytest.fixture(scope="module")
def podman() -> Engine:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    found = engines.find("podman")
    if found.image(LOCAL_BASE) is None:
        pytest.skip("podman has no base image: ENGINE=podman ci/make-base-image")
    return found


# What the unit sees of its walls, for podman; what a recipe may try is in test_container_real.py.
LOOK = r"""
for path in /srv/smwheel/tree /srv/smwheel/recipe /etc /usr /run /var/tmp /var/smwheel/cache/store; do
  touch $path/written 2>/dev/null && echo wrote $path >>$WORK/broken
done
[ $(wc -l </proc/net/route) -gt 1 ] && echo has a route >>$WORK/broken
grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && echo has capabilities >>$WORK/broken
id -u >$WORK/uid
cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null >$WORK/limit
true
""".replace("$WORK", "/srv/smwheel/work")


def test_podman_builds_within_the_same_walls(tmp_path: Path, podman: Engine) -> None:
    (demo.make(tmp_path, {"a": "sh /srv/smwheel/recipe/look"}) / "look").write_text(LOOK)
    done = demo.build(tmp_path, "--backend", "podman", "--memory", "1500M", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    work = demo.work_of(tmp_path)
    assert not (work / "broken").exists(), (work / "broken").read_text()
    assert int((work / "uid").read_text()) != 0
    assert (work / "limit").read_text().split() == [str(1500 << 20)]
    said = demo.evidence(tmp_path, "container.json")
    assert (said["engine"], said["network"]) == ("podman", "none")
    assert said["base"] == f"sha256:{podman.base(LOCAL_BASE).id}", "a name that changes makes another plan"
    assert podman.call("ps", "--all", "--quiet", "--filter", "label=smwheel") == ""


def test_podman_says_which_limit_was_reached(tmp_path: Path, podman: Engine) -> None:
    demo.make(tmp_path, {"a": "/srv/smwheel/env/bin/python -c 'held = bytearray(1500 << 20)'"})
    done = demo.build(tmp_path, "--backend", podman.name, "--memory", "800M", "--json")
    assert done.returncode == OutOfMemoryError.exit_code, done.stderr
    (error,) = json.loads(done.stdout)["failures"].values()
    assert "memory" in error["message"]
    assert "memory" in error["cure"]


SMALL = """
mkdir data
mount -t tmpfs -o size=16m tmpfs data
exec dockerd --data-root $PWD/data --exec-root $PWD/run --pidfile $PWD/pid --host unix://$PWD/socket \
  --bridge none --iptables=false >log 2>&1
"""
"""A second engine with room for 16 MiB. It runs in namespaces of its own: the first one's network is left alone, and
killing what made them ends and unmounts all of it."""


@pytest.fixture
def small(tmp_path: Path, docker: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("only root can start a second engine, and only where dockerd is")
    home = tmp_path / "small"
    home.mkdir()
    walls = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    process = subprocess.Popen([*walls, "sh", "-ec", SMALL], cwd=home)
    try:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{home}/socket")
        for _ in range(240):
            try:
                found = engines.find("docker")
            except ContainerError:
                assert process.poll() is None, (home / "log").read_text()
                time.sleep(0.5)
            else:
                break
        else:
            pytest.fail("the second engine does not start")
        yield found
    finally:
        process.kill()
        process.wait()


def test_an_engine_whose_disk_is_full(tmp_path: Path, small: Engine) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("fills")
        member.size = 15_000_000
        archive.addfile(member, io.BytesIO(os.urandom(member.size)))
    load = small.command("import", "-", "small-base:test")
    subprocess.run(load, env=small.variables, input=buffer.getvalue(), capture_output=True, check=True)
    demo.make(tmp_path, {"a": "true"})
    done = demo.build(tmp_path, "--backend", "docker", "--base-image", "small-base:test")
    assert done.returncode == ContainerError.exit_code, done.stderr
    assert "the engine's disk is full" in done.stderr
    assert "no space left on device" in done.stderr, "the engine's own words are lost"
    assert "docker system df" in done.stderr


def test_a_classic_builder_is_told_from_other_failures(docker: Engine) -> None:
    """What an engine without BuildKit says: the classic builder of this one."""
    dockerfile = data_dir() / "docker/sm120.Dockerfile"
    command = [docker.builder, "build", "--file", str(dockerfile), "--build-arg", f"BASE_IMAGE={LOCAL_BASE}"]
    without = docker.variables | {"DOCKER_BUILDKIT": "0"}
    done = subprocess.run([*command, str(data_dir())], env=without, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        pytest.skip("this client has no classic builder")
    assert "cannot make images with BuildKit" in engines.refusal(done.stderr, where="build").message


def test_a_client_whose_plugin_is_missing(tmp_path: Path, docker: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients from 23.0 on make no image without the plugin buildx; they are the only ones on PATH here."""
    newer = [client for client in engines.clients("docker") if _number(client) >= (23,)]
    if not newer:
        pytest.skip("every docker client here is older than 23.0, and has BuildKit built in")
    if subprocess.run([newer[0], "buildx", "version"], capture_output=True, check=False).returncode == 0:
        pytest.skip("the plugin docker-buildx is installed")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").symlink_to(newer[0])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ContainerError, match="cannot make images with BuildKit") as caught:
        engines.find("docker").build(["."], tmp_path / "log", where="image")
    assert "docker-buildx" in caught.value.cure


def _number(client: str) -> tuple[int, ...]:
    said = subprocess.run([client, "--version"], capture_output=True, text=True, check=False).stdout
    return engines.version_tuple(said.partition("version")[2])
