"""Write src/smwheel/_data/cuda-13.0.toml: what each CUDA component needs, with hashes and sizes, for each machine.

`python ci/lock_cuda.py 13.0.3.0` reads the published `cuda-toolkit` of that version, takes the wheels that its extras
name from where pip's settings lead, and measures each. Every wheel is downloaded whole (2 GB in all) into a temporary
directory, so that what is pinned was seen.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from smwheel.errors import SourceError
from smwheel.paths import package_data
from smwheel.sources.registry import Link, fetch, links, places
from smwheel.sources.settings import pip_settings
from smwheel.sources.store import Store
from smwheel.sources.transport import Client

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

MACHINES = ("x86_64", "aarch64")
EXTRAS = (
    "cccl", "cublas", "cudart", "cufft", "curand", "cusolver", "cusparse", "nvcc", "nvjitlink", "nvml", "nvrtc",
    "nvtx", "profiler",
)  # fmt: skip


def main(version: str) -> None:
    """Write the lock for one version of `cuda-toolkit`."""
    release = ".".join(version.split(".")[:2])
    with tempfile.TemporaryDirectory() as scratch:
        store = Store(Path(scratch))
        toolkit = find("cuda-toolkit", Requirement(f"cuda-toolkit=={version}").specifier, "any")
        requirements = read_requirements(bring("cuda-toolkit", toolkit, store))
        components, pins = {}, {}
        for extra in EXTRAS:
            environment = {"extra": extra, "sys_platform": "linux", "platform_machine": "x86_64"}
            wanted = {canonicalize_name(r.name): r.specifier for r in requirements if applies(r, environment)}
            components[extra] = sorted(wanted)
            pins |= wanted
        wheels = [measure(name, pins[name], machine, store) for name in sorted(pins) for machine in MACHINES]
    nvcc = next(str(w["filename"]).split("-")[1] for w in wheels if w["project"] == "nvidia-cuda-nvcc")
    lines = [
        f"# CUDA {release} from the package registry, made by ci/lock_cuda.py from cuda-toolkit {version}.",
        "# size: bytes to download; installed: bytes that it becomes.",
        f'version = "{nvcc}"',
        "\n[components]",
        *(f"{name} = {json.dumps(projects)}" for name, projects in sorted(components.items())),
    ]
    for wheel in wheels:
        lines += ["\n[[wheels]]", *(f"{key} = {json.dumps(value)}" for key, value in wheel.items())]
    (package_data() / f"cuda-{release}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    """Tell whether a requirement belongs to an extra on Linux."""
    return requirement.marker is not None and requirement.marker.evaluate(environment)


def read_requirements(wheel: Path) -> list[Requirement]:
    """Return the Requires-Dist of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(name).decode())
    return [Requirement(text) for text in headers.get_all("Requires-Dist") or []]


def find(project: str, specifier: SpecifierSet, machine: str) -> Link:
    """Return the wheel of the lowest version that fits: the one of the same CUDA release where a range is given."""
    settings = pip_settings()
    with Client(settings) as client:
        offered = {
            parse_wheel_filename(link.filename)[1]: link
            for place in places(project, settings)
            for link in links(place, client)
            if link.size and link.filename.startswith(project.replace("-", "_") + "-")
            if link.filename.endswith(f"{machine}.whl")
        }
    fitting = [version for version in offered if specifier.contains(version)]
    if not fitting:
        raise SourceError(f"no index offers a wheel for {specifier} on {machine}", where=project)
    return offered[min(fitting)]


def bring(project: str, link: Link, store: Store) -> Path:
    """Return the downloaded file."""
    return fetch(project, link.filename, link.sha256, link.size or 0, store)


def measure(project: str, specifier: SpecifierSet, machine: str, store: Store) -> dict[str, str | int]:
    """Return the lock's entry of one project's wheel for one machine."""
    link = find(project, specifier, machine)
    path = bring(project, link, store)
    with zipfile.ZipFile(path) as archive:
        installed = sum(info.file_size for info in archive.infolist())
    path.unlink()
    print(f"{link.filename}: {(link.size or 0) / 1e6:.1f} MB, installed {installed / 1e6:.1f} MB", flush=True)
    return {
        "project": project,
        "machine": machine,
        "filename": link.filename,
        "sha256": link.sha256,
        "size": link.size or 0,
        "installed": installed,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
