"""The CUDA toolkit that the package registry can give, pinned: `_data/cuda-13.0.toml`, made by `ci/lock_cuda.py`."""

from __future__ import annotations

import platform
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smwheel.errors import ToolchainError
from smwheel.paths import package_data

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel; `size` and `installed` are bytes to download and bytes it becomes."""

    project: str
    filename: str
    sha256: str
    size: int
    installed: int


@dataclass(frozen=True)
class Lock:
    """One CUDA release for one kind of machine: which wheels each component needs."""

    version: str
    machine: str
    components: dict[str, tuple[str, ...]]
    wheels: dict[str, Wheel]

    def select(self, components: Iterable[str]) -> tuple[Wheel, ...]:
        """Return the wheels that these components need, each once, by project name.

        Raises:
            ToolchainError: a component that the lock does not have.
        """
        wanted = set(components)
        if unknown := sorted(wanted - self.components.keys()):
            raise ToolchainError(
                f"no such CUDA component: {', '.join(unknown)}",
                where=f"CUDA {self.version}",
                cure=f"choose from: {', '.join(sorted(self.components))}",
            )
        projects = sorted({project for name in wanted for project in self.components[name]})
        return tuple(self.wheels[project] for project in projects)


def load(machine: str | None = None, path: Path | None = None) -> Lock:
    """Return the lock for `machine` (default: this one).

    Raises:
        ToolchainError: the registry has no toolkit for that kind of machine.
    """
    machine = machine or platform.machine()
    document = tomllib.loads((path or package_data() / "cuda-13.0.toml").read_text(encoding="utf-8"))
    wheels = {
        entry["project"]: Wheel(
            project=entry["project"],
            filename=entry["filename"],
            sha256=entry["sha256"],
            size=entry["size"],
            installed=entry["installed"],
        )
        for entry in document["wheels"]
        if entry["machine"] == machine
    }
    if not wheels:
        raise ToolchainError(
            f"CUDA {document['version']} is not to be had from the package registry for {machine}",
            where="toolchain",
            cure="install CUDA and pass its directory: --cuda-home DIR",
        )
    components = {name: tuple(projects) for name, projects in document["components"].items()}
    return Lock(document["version"], machine, components, wheels)
