"""The container backend without an engine: what its client says, what crosses the border, what is taken back."""

from __future__ import annotations

import json
import resource
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from demo_build import build

from smwheel.build import engine as engines
from smwheel.build.backend import choose
from smwheel.build.builderimage import local_places, pip_configuration
from smwheel.build.contained import adopt, as_error
from smwheel.build.container import Ended, Fetched, Job, Mount, _ulimits, outside
from smwheel.errors import BuildError, ContainerError, OutOfMemoryError, SmwheelError, UsageError, VerifyError
from smwheel.governor.ledger import Cost, Ledger
from smwheel.governor.limits import Limits
from smwheel.pipeline import Options
from smwheel.plan import Resolution
from smwheel.progress import Reporter
from smwheel.sources.settings import IndexSettings
from smwheel.wheelhouse import Entry, Wheelhouse

SERVER = json.dumps({"Version": "20.10.24", "Arch": "amd64"})
ANSWERS = f"""
case "$*" in
  version*) echo '{SERVER}' ;;
  info*) echo '["name=seccomp"]' ;;
  --version) echo "Docker version 20.10.24, build x" ;;
"""


def client(folder: Path, script: str) -> Path:
    """Write a docker that is a shell script."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "docker"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return path


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose docker is the only one on PATH."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{folder}:/nowhere")
    for tool in ("sh", "echo", "cat"):
        folder.mkdir(exist_ok=True)
        (folder / tool).symlink_to(f"/bin/{tool}")
    return folder


@pytest.mark.parametrize(
    ("said", "message", "cure"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "the engine does not answer",
            "start it",
        ),
        (
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            "this user may not use the engine",
            "group",
        ),
    ],
)
def test_an_engine_that_cannot_be_used(only: Path, said: str, message: str, cure: str) -> None:
    client(only, f"echo '{said}' >&2; exit 1")
    with pytest.raises(ContainerError, match=message) as caught:
        engines.find("docker")
    assert cure in caught.value.cure
    assert said[:40] in caught.value.message, "the engine's own words are lost"


def test_no_client_at_all(only: Path) -> None:
    with pytest.raises(ContainerError, match="no docker on this machine") as caught:
        engines.find("docker")
    assert "ci/install-engine" in caught.value.cure


def test_a_client_newer_than_the_engine_is_told_the_engines_version(only: Path) -> None:
    client(
        only,
        'if [ "$DOCKER_API_VERSION" != 1.41 ]; then\n'
        "  echo 'Error: client version 1.50 is too new. Maximum supported API version is 1.41' >&2\n"
        f"  exit 1\nfi\n{ANSWERS} esac",
    )
    found = engines.find("docker")
    assert found.environment == {"DOCKER_API_VERSION": "1.41"}
    assert found.version == "20.10.24"


def test_the_first_client_that_gets_an_answer_is_taken(
    tmp_path: Path, only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client(tmp_path / "new", "echo 'client version 1.52 is too new. Minimum supported API version is 1.44' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/new:{only}")
    old = client(only, f"{ANSWERS} esac")
    assert engines.find("docker").client == str(old)


def test_images_are_made_with_a_client_that_has_buildkit(
    tmp_path: Path, only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = ANSWERS.replace("Docker version 20.10.24", "Docker version 28.2.2")
    client(tmp_path / "new", f"{newer} buildx*) exit 1 ;; esac")
    monkeypatch.setenv("PATH", f"{tmp_path}/new:{only}")
    with pytest.raises(ContainerError, match="BuildKit") as caught:
        _ = engines.find("docker").builder
    assert "docker-buildx" in caught.value.cure
    old = client(only, f"{ANSWERS} esac")
    assert engines.find("docker").builder == str(old)
    client(tmp_path / "new", f"{newer} buildx*) exit 0 ;; esac")
    assert engines.find("docker").builder == str(tmp_path / "new/docker")


def test_an_engine_too_old_for_buildkit(only: Path) -> None:
    client(only, f"{ANSWERS} esac".replace("20.10.24", "18.03.1"))
    with pytest.raises(ContainerError, match="cannot make images with BuildKit"):
        _ = engines.find("docker").builder


def test_a_full_disk_in_the_engine(tmp_path: Path, only: Path) -> None:
    client(only, f"{ANSWERS} *build*) echo 'write /var/lib/docker/tmp/x: no space left on device'; exit 1 ;; esac")
    with pytest.raises(ContainerError, match="the engine's disk is full") as caught:
        engines.find("docker").build(["."], tmp_path / "log", where="image x")
    assert "docker system df" in caught.value.cure


def test_podman_without_an_init_program() -> None:
    said = "Error: container-init binary not found on the host: stat /usr/libexec/podman/catatonit: no such file"
    assert "install catatonit" in engines.refusal(said, where="podman create").cure


def test_podman_asks_for_no_more_than_this_machine_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    hard = {resource.RLIMIT_NOFILE: 20000, resource.RLIMIT_NPROC: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, hard[kind]))
    assert _ulimits() == ["--ulimit", "nofile=20000:20000", "--ulimit", "nproc=32768:32768"]


def image(machine: str) -> str:
    return json.dumps([{"Id": "sha256:1", "RepoDigests": [], "Architecture": machine, "Size": 1}])


def test_bases_that_are_missing_or_for_another_processor(only: Path) -> None:
    client(only, f"{ANSWERS} *) echo 'Error: No such image: x' >&2; exit 1 ;; esac")
    with pytest.raises(ContainerError, match="cannot be pulled") as caught:
        engines.find("docker").base("x")
    assert "ci/make-base-image" in caught.value.cure
    client(only, f"{ANSWERS} image*) echo '{image('arm64')}' ;; esac")
    with pytest.raises(ContainerError, match="the image is for arm64, this machine is amd64"):
        engines.find("docker").base("x")
    client(only, f"{ANSWERS} image*) echo '{image('amd64')}' ;; esac")
    assert engines.find("docker").base("x").digest == "sha256:1"


def test_an_image_has_one_name_on_every_engine() -> None:
    names = ("localhost/smwheel-base-used@sha256:2", "localhost/smwheel-base@sha256:2")
    by_podman = engines.Image("1", names, "amd64", 1)
    by_docker = engines.Image("sha256:1", (), "amd64", 1)
    assert by_podman.digest == by_docker.digest == "sha256:1"
    pulled = engines.Image("1", (*names, "quay.io/pypa/base@sha256:3"), "amd64", 1)
    assert pulled.digest == "quay.io/pypa/base@sha256:3"


def test_choosing_a_backend(only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert choose(Options(), Reporter()) is None
    with pytest.raises(UsageError, match="no backend 'lxc'"):
        choose(Options(backend="lxc"), Reporter())
    with pytest.raises(UsageError, match="the host has no base image"):
        choose(Options(base_image="x"), Reporter())
    assert choose(Options(backend="auto"), Reporter()) is None
    assert "host (docker: there is no docker on this machine; podman: there is no podman" in capsys.readouterr().err
    client(only, f"{ANSWERS} image*) echo '{image('amd64')}' ;; esac")
    taken = choose(Options(backend="auto"), Reporter())
    assert taken is not None
    assert taken.engine.name == "docker"
    assert "base image is to be had" in capsys.readouterr().err


def test_paths_cross_the_border_both_ways() -> None:
    mounts = [
        Mount(Path("/home/me/work/x"), "/var/smwheel/work/x", writable=True),
        Mount(Path("/home/me/work/x"), "/srv/smwheel/work", writable=True),
        Mount(Path("/home/me/cache"), "/var/smwheel/cache"),
    ]
    assert outside("read /srv/smwheel/work/log/compile.log", mounts) == "read /home/me/work/x/log/compile.log"
    assert outside("/var/smwheel/cache", mounts) == "/home/me/cache"
    assert outside("/var/smwheel/cached", mounts) == "/var/smwheel/cached"
    binds = {
        "tree": {"path": "/var/smwheel/cache/trees/t", "writable": False},
        "cuda": {"path": "/usr/local/cuda", "writable": False},
        "work": {"path": "/var/smwheel/work/x", "writable": True},
    }
    fetched = Fetched.of(binds, mounts)
    assert fetched.work == Path("/home/me/work/x")
    targets = {mount.target: (mount.source, mount.writable) for mount in fetched.mounts}
    assert targets["/srv/smwheel/tree"] == (Path("/home/me/cache/trees/t"), False)
    assert targets["/srv/smwheel/work"] == (Path("/home/me/work/x"), True)
    assert "/srv/smwheel/cuda" not in targets, "a toolkit of the image lies at its fixed path already"


def test_a_mount_of_any_path() -> None:
    assert Mount(Path("/a b"), "/x").arguments() == ["--mount", "type=bind,source=/a b,target=/x,readonly"]
    assert Mount(Path('/a,"b'), "/x", writable=True).arguments()[1] == 'type=bind,"source=/a,""b",target=/x'


def job() -> Job:
    limits = Limits(512 << 20, "--memory", 0, 2, "x", 2, "x")
    nothing: Any = None
    return Job(nothing, nothing, nothing, nothing, limits, nothing)


FAILED = json.dumps({"failures": {"r": BuildError("unit x failed").as_json()}})


@pytest.mark.parametrize(
    ("ended", "kind", "message"),
    [
        (Ended("", 137, out_of_memory=True), OutOfMemoryError, "limit of 512.0 MiB was reached"),
        (Ended(FAILED, 11, out_of_memory=True), OutOfMemoryError, "was reached: unit x failed"),
        (Ended(FAILED, 11, out_of_memory=False), BuildError, "unit x failed"),
        (Ended(json.dumps(UsageError("no").as_json()), 2, out_of_memory=False), UsageError, "no"),
        (Ended("", 137, out_of_memory=False), ContainerError, "killed from outside"),
        (Ended("no JSON", 70, out_of_memory=False), ContainerError, "code 70"),
    ],
)
def test_how_a_container_ended(ended: Ended, kind: type[SmwheelError], message: str) -> None:
    with pytest.raises(SmwheelError, match=message) as caught:
        job().result(ended, [])
    assert type(caught.value) is kind


def test_a_build_that_was_rescued_from_a_lack_of_memory_is_a_build() -> None:
    assert job().result(Ended('{"wheels": [], "failures": {}}', 0, out_of_memory=True), []) == {
        "wheels": [],
        "failures": {},
    }


def test_an_error_keeps_its_kind() -> None:
    for kind in (OutOfMemoryError, BuildError, UsageError):
        error = as_error(kind("is wrong", where="here", cure="mend it").as_json())
        assert type(error) is kind
        assert (error.message, error.where, error.cure) == ("is wrong", "here", "mend it")
    assert type(as_error({"error": "nonsense"})) is SmwheelError


def test_pips_settings_for_a_container(tmp_path: Path) -> None:
    simple, links = tmp_path / "index/simple", tmp_path / "links"
    simple.mkdir(parents=True)
    links.mkdir()
    settings = IndexSettings(
        indexes=("https://index.example/simple", simple.as_uri()), find_links=(str(links), "/nowhere"), timeout=180.0
    )
    inside = pip_configuration(settings, local=True)
    assert f"extra-index-url = {simple.as_uri()}" in inside
    assert "timeout = 180.0" in inside
    assert str(links) not in pip_configuration(settings, local=False)
    assert local_places(settings) == [tmp_path / "index", links]


def made(tmp_path: Path) -> tuple[Path, Entry, Resolution]:
    """Build the demo as a container would, and return what it left."""
    from demo_build import make_demo

    (entry,) = build(tmp_path / "inside")
    return tmp_path / "inside/wheelhouse", entry, make_demo(tmp_path / "inside").plan.resolution


def take(house: Path, entry: Entry, resolution: Resolution, target: Path) -> Entry:
    target.mkdir(exist_ok=True)
    return adopt(house, entry, resolution, Wheelhouse(target), container={"engine": "x"}, reporter=Reporter())


def test_what_a_container_made_is_checked_again_and_taken(tmp_path: Path) -> None:
    house, entry, resolution = made(tmp_path)
    taken = take(house, entry, resolution, tmp_path / "own")
    assert taken.sha256 == entry.sha256
    evidence = tmp_path / "own/evidence" / entry.file.removesuffix(".whl")
    assert json.loads((evidence / "container.json").read_text()) == {"engine": "x"}
    assert {"plan.json", "verdict.json", "build.json", "compile.log"} <= {path.name for path in evidence.iterdir()}
    assert take(house, entry, resolution, tmp_path / "own") == taken


def test_what_a_container_says_of_its_wheels_is_not_believed(tmp_path: Path) -> None:
    from dataclasses import replace

    house, entry, resolution = made(tmp_path)
    with pytest.raises(VerifyError, match="the recipe pins other bytes"):
        take(house, replace(entry, level="published"), resolution, tmp_path / "own")
    strict = resolution.data.model_copy(
        update={"expect": resolution.data.expect.model_copy(update={"no_device_code": []})}
    )
    with pytest.raises(VerifyError, match="no GPU code"):
        take(house, entry, replace(resolution, data=strict), tmp_path / "own")
    secret = tmp_path / "secret"
    secret.write_bytes((house / entry.file).read_bytes())
    (house / entry.file).unlink()
    (house / entry.file).symlink_to(secret)
    with pytest.raises(ContainerError, match="no plain file"):
        take(house, entry, resolution, tmp_path / "own")
    with pytest.raises(ContainerError, match="no plain file"):
        take(house, replace(entry, file="../../secret"), resolution, tmp_path / "own")
    assert not list((tmp_path / "own").glob("*.whl"))


def cost(unit: str, peak: int) -> Cost:
    return Cost("r", "1", unit, "f", "120f", "13.0", "", peak, 1.0, 1.0)


def test_what_a_build_learned_is_merged_and_nonsense_is_not(tmp_path: Path) -> None:
    kept, lent = Ledger(tmp_path / "kept"), Ledger(tmp_path / "lent")
    lent.record(cost("older", 1))
    for unit, peak in (("older", 2), ("mine", 3)):
        kept.record(cost(unit, peak))
    lent.record(cost("theirs", 4))
    kept.merge(tmp_path / "lent")
    assert {one.unit: one.peak for one in kept.all()} == {"older": 2, "mine": 3, "theirs": 4}
    (tmp_path / "nonsense").write_text("no ledger" * 1000)
    with pytest.raises(sqlite3.Error):
        kept.merge(tmp_path / "nonsense")
    assert len(kept.all()) == 3
