"""A container engine through its command line: docker, or podman where the same calls serve.

There may be several clients on a machine and none, one or another engine behind them. A client newer than the engine
is told the engine's version of the interface; the client that is used is the first that gets an answer, and for making
images the first that has BuildKit (a client from 23.0 on has it only with the buildx plugin).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from smwheel.errors import ContainerError

ENGINES = ("docker", "podman")
LABEL = "smwheel"
"""Label of every container of ours, so that those of a build that was killed are found."""

_TOO_NEW = re.compile(r"client version \S+ is too new\. Maximum supported API version is (\d+\.\d+)")
_FIRST_BUILDKIT = (18, 9)
_FIRST_PLUGIN_CLIENT = 23
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}

_REFUSALS = (
    (
        r"permission denied|dial unix.*denied",
        "this user may not use the engine",
        "run as a user of the engine's group (docker), or as root; or build with --backend host",
    ),
    (
        r"no space left on device|disk quota exceeded",
        "the engine's disk is full",
        "free space where the engine keeps its data: `docker system df` says what takes it",
    ),
    (
        r"buildx component is missing|unknown flag: --(secret|progress)|requires BuildKit",
        "this engine or its client cannot make images with BuildKit",
        "install the client's plugin docker-buildx, or an engine from 18.09 on",
    ),
    (
        r"cannot connect|is the docker daemon running|connection refused|no such file or directory.*\.sock",
        "the engine does not answer",
        "start it (systemctl start docker, or ci/install-engine), or build with --backend host",
    ),
    (
        (
            r"no such image|image not known|manifest unknown|pull access denied|not found: manifest|failed to resolve"
            r"|no such host"
        ),
        "the image is not there and cannot be pulled",
        "name one that is (--base-image), or make one: ci/make-base-image",
    ),
    (
        r"container-init binary not found",
        "podman has no init program for containers",
        "install catatonit, which Debian's podman only recommends",
    ),
    (
        r"exec format error",
        "the image is for another processor",
        "take an image for this machine's processor",
    ),
)


@dataclass(frozen=True)
class Image:
    """An image that the engine has; `size` in bytes, `machine` as images call it (amd64, arm64)."""

    id: str
    digests: tuple[str, ...]
    machine: str
    size: int

    @property
    def digest(self) -> str:
        """What names exactly this image: `repository@sha256:…` if it was pulled, else its own id.

        podman gives images that were made here digests too, under every name they have, in an order that changes.
        """
        pulled = [digest for digest in self.digests if not digest.startswith("localhost/")]
        return pulled[0] if pulled else f"sha256:{self.id.removeprefix('sha256:')}"


@dataclass(frozen=True)
class Engine:
    """An engine that answered. `environment` holds what its client must be told."""

    name: str
    client: str
    version: str
    machine: str
    rootless: bool
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} {self.version}{' (rootless)' if self.rootless else ''}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment that the client is started with."""
        return os.environ | self.environment

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of a call."""
        return [self.client, *arguments]

    def call(self, *arguments: str, where: str = "") -> str:
        """Run the client and return what it prints.

        Raises:
            ContainerError: it failed: says why in the engine's words.
        """
        done = subprocess.run(
            self.command(*arguments), env=self.variables, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            raise refusal(done.stderr or done.stdout, where=where or f"{self.name} {arguments[0]}")
        return done.stdout.strip()

    def image(self, reference: str) -> Image | None:
        """Return an image that the engine has, or None.

        Raises:
            ContainerError: the engine does not answer.
        """
        try:
            (found,) = json.loads(self.call("image", "inspect", reference, where=reference))
        except ContainerError as error:
            if "not there" in error.message:
                return None
            raise
        return Image(found["Id"], tuple(found.get("RepoDigests") or ()), found["Architecture"], found["Size"])

    def base(self, reference: str) -> Image:
        """Return a base image, pulled when the engine does not have it.

        Raises:
            ContainerError: it cannot be had, or is for another processor.
        """
        image = self.image(reference)
        if image is None:
            self.call("pull", "--quiet", reference, where=f"base image {reference}")
            image = self.image(reference)
        if image is None:
            raise refusal("no such image", where=f"base image {reference}")
        if image.machine != self.machine:
            raise ContainerError(
                f"the image is for {image.machine}, this machine is {self.machine}",
                where=f"base image {reference}",
                cure="take an image for this machine's processor; under emulation compiling takes days",
            )
        return image

    @cached_property
    def builder(self) -> str:
        """The client that images are made with.

        Raises:
            ContainerError: none has BuildKit, or the engine is too old for it.
        """
        if self.name == "podman":
            return self.client
        if version_tuple(self.version) < _FIRST_BUILDKIT:
            raise refusal(f"engine {self.version} requires BuildKit", where=str(self))
        for client in clients(self.name):
            said = _output([client, "--version"], self.variables)
            number = version_tuple(said.partition("version")[2])
            if number < (_FIRST_PLUGIN_CLIENT,) or _succeeds([client, "buildx", "version"], self.variables):
                return client
        raise refusal("buildx component is missing", where=str(self))

    def build(self, arguments: list[str], log: Path, *, where: str) -> None:
        """Make an image with BuildKit; everything printed goes to `log`.

        Raises:
            ContainerError: it failed; ends with the last lines.
        """
        variables = self.variables | {"DOCKER_BUILDKIT": "1"}
        progress = ["--progress=plain"] if self.name == "docker" else []
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as sink:
            done = subprocess.run(
                [self.builder, "build", *progress, *arguments],
                env=variables,
                stdout=sink,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode:
            raise refusal(log.read_text(encoding="utf-8", errors="replace"), where=where, cure=f"read {log}")

    def state(self, container: str) -> dict[str, Any]:
        """Return the state of a container of ours, e.g. its `ExitCode` and `OOMKilled`.

        Raises:
            ContainerError: it is gone.
        """
        state: dict[str, Any] = json.loads(self.call("inspect", container, "--format", "{{json .State}}"))
        return state

    def remove(self, container: str) -> None:
        """End and remove a container; one that is gone already is no error."""
        subprocess.run(
            self.command("rm", "--force", "--volumes", container),
            env=self.variables,
            capture_output=True,
            check=False,
            start_new_session=True,  # a Ctrl-C that ends a build must not end its cleaning up
        )


def find(name: str) -> Engine:
    """Return the engine `docker` or `podman`, asked through the first client that gets an answer.

    Raises:
        ContainerError: there is no client, or no engine answers it, or it is not allowed.
    """
    found = clients(name)
    if not found:
        raise ContainerError(
            f"there is no {name} on this machine", cure=f"install {name} (ci/install-engine), or use --backend host"
        )
    refused: list[ContainerError] = []
    for client in found:
        try:
            return _ask_podman(client) if name == "podman" else _ask_docker(client)
        except ContainerError as error:
            refused.append(error)
    raise refused[0]


def clients(name: str) -> list[str]:
    """Return every client of that name on PATH, in its order."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    paths = [Path(folder or ".") / name for folder in folders]
    return list(dict.fromkeys(str(path) for path in paths if path.is_file() and os.access(path, os.X_OK)))


def refusal(output: str, *, where: str, cure: str = "") -> ContainerError:
    """Return the error that an engine's output amounts to, with its own last line."""
    lines = [line for line in output.strip().splitlines() if line.strip()] or ["no message"]
    text = "\n".join(lines[-20:])
    for pattern, sentence, known_cure in _REFUSALS:
        if re.search(pattern, text, re.IGNORECASE):
            return ContainerError(f"{sentence} ({lines[-1].strip()[:300]})", where=where, cure=known_cure)
    last = "\n".join(lines[-6:]) if cure else lines[-1].strip()
    return ContainerError(last, where=where, cure=cure or "run that command by hand")


def version_tuple(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, e.g. (20, 10, 24)."""
    match = re.search(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else (0,)


def _ask_docker(client: str, told: dict[str, str] | None = None) -> Engine:
    environment = told or {}
    done = subprocess.run(
        [client, "version", "--format", "{{json .Server}}"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    too_new = _TOO_NEW.search(done.stdout + done.stderr)
    if too_new and not told:
        return _ask_docker(client, {"DOCKER_API_VERSION": too_new[1]})
    if done.returncode:
        raise refusal(done.stderr, where=client)
    server = json.loads(done.stdout)
    security = _output([client, "info", "--format", "{{json .SecurityOptions}}"], os.environ | environment)
    return Engine("docker", client, server["Version"], server["Arch"], "rootless" in security, environment)


def _ask_podman(client: str) -> Engine:
    done = subprocess.run([client, "info", "--format", "json"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise refusal(done.stderr, where=client)
    said = json.loads(done.stdout)
    machine = said["host"]["arch"]
    return Engine(
        "podman",
        client,
        said["version"]["Version"],
        _MACHINES.get(machine, machine),
        bool(said["host"]["security"]["rootless"]),
    )


def _output(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def _succeeds(command: list[str], environment: dict[str, str]) -> bool:
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
