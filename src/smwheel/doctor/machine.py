"""What this machine is: GPUs and driver, shared memory, system libraries, compilers. Sizes in bytes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from smwheel import gpu
from smwheel.gpu import Driver

_LDCONFIG_LINE = re.compile(r"\s+(\S+) \(.*\) => (\S+)")
_LIBRARY_DIRECTORIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/lib/{}-linux-gnu", "/usr/lib/{}-linux-gnu")
_RELEASE = re.compile(r"release (\d+\.\d+)")
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"


@dataclass(frozen=True)
class Machine:
    """Everything that findings may look at; tests make their own.

    `processor` is the kernel's name of its kind, e.g. x86_64. `devices` is how many NVIDIA display devices are on the
    PCI bus, whether a driver sees them or not. `libraries` maps the names that the system's loader knows to their
    files.
    """

    driver: Driver = field(default_factory=lambda: Driver(problem="nobody looked"))
    processor: str = ""
    devices: int = 0
    container: bool = False
    shared_memory: int | None = None
    libraries: Mapping[str, Path] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    cuda_home: Path | None = None

    @property
    def library_path(self) -> tuple[Path, ...]:
        """The directories of LD_LIBRARY_PATH."""
        return tuple(Path(part) for part in self.variables.get("LD_LIBRARY_PATH", "").split(":") if part)

    def program(self, name: str) -> Path | None:
        """Return a program as a shell with this environment finds it."""
        found = shutil.which(name, path=self.variables.get("PATH", ""))
        return Path(found) if found else None

    @property
    def nvcc(self) -> Path | None:
        """The CUDA compiler as packages look for it: $CUDA_HOME, then PATH, then /usr/local/cuda."""
        homes = [Path(self.variables[key]) for key in ("CUDA_HOME", "CUDA_PATH") if self.variables.get(key)]
        places = [home / "bin" / "nvcc" for home in homes]
        named = next((place for place in places if place.is_file()), None)
        fallback = self.cuda_home / "bin" / "nvcc" if self.cuda_home else None
        return named or self.program("nvcc") or (fallback if fallback and fallback.is_file() else None)


def look() -> Machine:
    """Look at the machine that this runs on; what cannot be seen stays empty."""
    return Machine(
        driver=gpu.read(),
        processor=os.uname().machine,
        devices=_devices(Path("/sys/bus/pci/devices")),
        container=_in_container(),
        shared_memory=_size(Path("/dev/shm")),  # noqa: S108 - looked at, not written to
        libraries=_system_libraries(),
        variables=dict(os.environ),
        cuda_home=Path("/usr/local/cuda"),
    )


def _devices(bus: Path) -> int:
    """Count NVIDIA's display controllers on the PCI bus (class 03…)."""
    return sum(
        _text(device / "vendor") == _NVIDIA_VENDOR and _text(device / "class").startswith(_DISPLAY_CLASS)
        for device in bus.glob("*")
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _in_container() -> bool:
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return any(mark.exists() for mark in marks) or "container" in os.environ


def _size(mount: Path) -> int | None:
    try:
        return shutil.disk_usage(mount).total
    except OSError:
        return None


def _system_libraries() -> dict[str, Path]:
    """Return what the loader's cache lists; without one, what lies in its default directories."""
    tool = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    found: dict[str, Path] = {}
    for pattern in _LIBRARY_DIRECTORIES:
        for path in Path(pattern.format(os.uname().machine)).glob("*.so.*"):
            found.setdefault(path.name, path)
    if tool:
        done = subprocess.run([tool, "-p"], capture_output=True, text=True, check=False)
        lines = (_LDCONFIG_LINE.fullmatch(line) for line in done.stdout.splitlines())
        found |= {match[1]: Path(match[2]) for match in lines if match}
    return found


def release_of(tool: Path) -> str:
    """Return the CUDA release that nvcc or ptxas says it is of, e.g. `13.0`; empty if it cannot be run."""
    try:
        done = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _RELEASE.search(done.stdout)
    return match[1] if match else ""
