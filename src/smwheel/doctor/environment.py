"""A Python environment seen from the outside: its interpreter, its distributions, its torch. Nothing is imported."""

from __future__ import annotations

import ast
import csv
import email
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from smwheel.wheels import torchsymbols
from smwheel.wheels.elf import read_elf
from smwheel.wheels.torchsymbols import TorchSymbols
from smwheel.wheels.wheelfile import RecordRow

if TYPE_CHECKING:
    from email.message import Message

TIMEOUT = 30
"""Seconds that an interpreter may take to say where its packages are."""

_ASK = (
    "import json, os, sys; print(json.dumps({'version': sys.version_info[:2], 'prefix': sys.prefix, "
    "'sites': [path for path in sys.path if path and os.path.isdir(path)]}))"
)
_TORCH_REQUIRED = re.compile(r"^Requires-Dist: torch\b(?!-)", re.MULTILINE)
_TORCH_LIBRARIES = (
    *("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libc10_cuda.so", "libshm.so"),
    *("libtorch_python.so", "libtorch_cuda_linalg.so"),
)


@dataclass(frozen=True)
class Distribution:
    """An installed distribution: its metadata directory `info`, in the directory of packages `site`."""

    name: str
    version: str
    info: Path
    site: Path

    @cached_property
    def text(self) -> str:
        """METADATA as it is; empty if it is not there."""
        return _text(self.info / "METADATA")

    @cached_property
    def metadata(self) -> Message:
        """METADATA, parsed."""
        return email.message_from_string(self.text)

    @property
    def requires_torch(self) -> bool:
        """Whether it requires torch, in whatever version (cheaper than parsing METADATA)."""
        return _TORCH_REQUIRED.search(self.text) is not None

    @property
    def title(self) -> str:
        """Name and version, as printed."""
        return f"{self.name} {self.version}"

    @property
    def public(self) -> str:
        """The version without its local part."""
        return public(self.version)

    @cached_property
    def record(self) -> tuple[RecordRow, ...]:
        """The rows of RECORD; none if it is not there."""
        rows = csv.reader(_text(self.info / "RECORD").splitlines())
        return tuple(
            RecordRow(row[0], row[1], int(row[2]) if row[2].isdigit() else None) for row in rows if len(row) == 3
        )

    @cached_property
    def editable(self) -> Path | None:
        """The source tree that it is installed from in place, if it is."""
        try:
            said = json.loads(_text(self.info / "direct_url.json") or "{}")
        except ValueError:
            return None
        if not said.get("dir_info", {}).get("editable"):
            return None
        return Path(str(said.get("url", "")).removeprefix("file://"))

    def requirements(self, python: tuple[int, int] | None) -> list[Requirement]:
        """Return what it requires on this machine without extras, names normalised."""
        marks: dict[str, str] = {**default_environment(), "extra": ""}  # type: ignore[dict-item]  # all are texts
        if python:
            marks |= {"python_version": f"{python[0]}.{python[1]}", "python_full_version": f"{python[0]}.{python[1]}.0"}
        found = []
        for text in self.metadata.get_all("Requires-Dist") or []:
            try:
                requirement = Requirement(str(text))
            except InvalidRequirement:
                continue
            if requirement.marker is None or requirement.marker.evaluate(marks):
                requirement.name = canonicalize_name(requirement.name)
                found.append(requirement)
        return found


@dataclass(frozen=True)
class Torch:
    """An installed torch: version without local part, its CUDA release (empty: none), its directory."""

    version: str
    local: str
    cuda: str
    directory: Path

    @property
    def title(self) -> str:
        """Version and CUDA, as printed."""
        return f"torch {self.version} ({f'CUDA {self.cuda}' if self.cuda else 'without CUDA'})"

    @property
    def cuda_major(self) -> int | None:
        """The CUDA major, e.g. 13."""
        return Version(self.cuda).major if self.cuda else None

    @cached_property
    def symbols(self) -> TorchSymbols:
        """The names that it brings: of a published release from our table, else from its files.

        Raises:
            MalformedError: a file of it is damaged.
        """
        published = not self.local or self.local.startswith("cu")
        table = torchsymbols.load(self.version, str(self.cuda_major)) if published and self.cuda else None
        return table or self._own_symbols()

    def _own_symbols(self) -> TorchSymbols:
        exported, needed = {}, {}
        for name in _TORCH_LIBRARIES:
            path = self.directory / "lib" / name
            if path.is_file():
                facts = read_elf(path)
                exported[name], needed[name] = facts.exported, facts.needed
        return TorchSymbols(self.version, str(self.cuda_major or ""), "", "", exported, needed)


@dataclass(frozen=True)
class Environment:
    """An environment: `sites` are the directories of packages, first wins; `problem` says why little is known."""

    root: Path
    python: Path | None
    version: tuple[int, int] | None
    sites: tuple[Path, ...]
    problem: str = ""

    @cached_property
    def distributions(self) -> dict[str, Distribution]:
        """Every distribution by its normalised name, as imports find them: the first directory wins."""
        found: dict[str, Distribution] = {}
        for site in self.sites:
            for info in sorted(site.glob("*.dist-info")):
                name, _, version = info.name.removesuffix(".dist-info").partition("-")
                if version:
                    found.setdefault(
                        canonicalize_name(name), Distribution(canonicalize_name(name), version, info, site)
                    )
        return found

    @cached_property
    def torch(self) -> Torch | None:
        """Its torch, told by the file `torch/version.py`."""
        for site in self.sites:
            said = _assignments(site / "torch" / "version.py")
            if isinstance(said.get("__version__"), str):
                version, _, local = said["__version__"].partition("+")
                return Torch(version, local, said.get("cuda") or "", site / "torch")
        return None

    def module(self, name: str) -> Path | None:
        """Return where a top-level package or module would be imported from: the first directory that has it."""
        for site in self.sites:
            for path in (site / name, site / f"{name}.py"):
                if path.exists():
                    return path
        return None

    @property
    def title(self) -> str:
        """The environment as printed."""
        return f"{self.root} (Python {'.'.join(map(str, self.version))})" if self.version else str(self.root)

    @property
    def pip(self) -> str:
        """The command that installs into it; where pip is missing (`uv venv`), Python's own copy is put there first."""
        python = self.python or "python"
        bare = self.version is not None and self.module("pip") is None
        return f"{python} -m ensurepip && {python} -m pip" if bare else f"{python} -m pip"


def read(target: Path) -> Environment:
    """Return the environment of an interpreter or a directory; one that cannot be read says so itself."""
    target = target.absolute()  # not resolved: a virtual environment's interpreter is a link out of it
    python = target if target.is_file() else next((p for p in _interpreters(target) if p.is_file()), None)
    root = target.parent.parent if target.is_file() else target
    if python is None:
        sites = _sites_below(root)
        if sites:
            return Environment(root, None, None, sites)
        if not target.is_dir():
            return Environment(root, None, None, (), problem="there is no such directory")
        return Environment(root, None, None, (), problem="there is no Python interpreter in it (bin/python)")
    said = _ask(python)
    if isinstance(said, str):
        return Environment(root, python, None, _sites_below(root), problem=f"its Python does not run: {said}")
    sites = tuple(Path(path) for path in said["sites"])
    return Environment(Path(said["prefix"]), python, tuple(said["version"]), sites)


def _interpreters(root: Path) -> tuple[Path, ...]:
    return root / "bin" / "python", root / "bin" / "python3"


def _sites_below(root: Path) -> tuple[Path, ...]:
    places = [root, *sorted(root.glob("lib*/python3*/site-packages"))]
    return tuple(place for place in places if any(place.glob("*.dist-info")))


def _ask(python: Path) -> dict[str, Any] | str:
    """Return what an interpreter says of itself, or why it says nothing."""
    try:
        # As a server is started: PYTHONPATH and the user's own packages count.
        done = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd="/"
        )
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except OSError as error:
        return error.strerror or "it cannot be started"
    except subprocess.TimeoutExpired:
        return f"it gave no answer within {TIMEOUT} s"
    except (IndexError, ValueError):
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return lines[-1]


def default() -> Path:
    """Return the environment meant when none is named: the active one, else that of the `python3` on PATH."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        active = os.environ.get(variable)
        if active and Path(active).resolve() != Path(sys.prefix).resolve():
            return Path(active)
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        python = Path(directory) / "python3"
        if python.is_file() and Path(directory).resolve() != Path(sys.prefix).resolve() / "bin":
            return python
    return Path(sys.executable)


def public(version: str) -> str:
    """Return a version without its local part; as it is if it is none."""
    try:
        return Version(version).public
    except InvalidVersion:
        return version.partition("+")[0]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _assignments(path: Path) -> dict[str, Any]:
    """Return the constants that a Python file assigns to names at its top level."""
    try:
        tree = ast.parse(_text(path))
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value))
            ):
                found[name] = value
    return found
