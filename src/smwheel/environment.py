"""The build environment: a virtual environment with exactly what a hashed requirements file locks, and nothing else.

An environment is keyed by the digest of what it is made of. It is made in its final place under a lock, since a
virtual environment cannot be moved; its `.complete` file comes last, so one that was interrupted is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from smwheel.errors import (
    BuildEnvironmentError,
    HashMismatchError,
    NetworkError,
    SmwheelError,
    SystemNeedError,
)
from smwheel.locks import locked
from smwheel.sources.store import file_digest
from smwheel.system import install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smwheel.sources.store import Store

FORMAT = 1
"""Raised when the way an environment is made changes."""

_MARKER = ".complete"
_HASH = re.compile(r"--hash[= ]sha256:[0-9a-f]{64}")
_IDENTITY = "import sys, platform; print(platform.python_version(), sys.base_prefix, platform.machine())"
_INSTALLED = """\
import importlib.metadata as m, json
found = {}
for d in m.distributions():
    lost = [str(f) for f in d.files or [] if not f.locate().exists()]
    found[d.metadata["Name"]] = [d.version, lost[:1]]
print(json.dumps(found))
"""
_FROM_VENV = frozenset({"pip", "setuptools"})  # what `python -m venv` puts in by itself


@dataclass(frozen=True)
class BuildEnvironment:
    """An environment that is whole: its Python, its directory, and the digest of what it is made of."""

    python: Path
    root: Path
    fingerprint: str


def make(
    *,
    requirements_file: Path,
    python: Path | None = None,
    cache_root: Path,
    offline: bool = False,
    extra_paths: Sequence[Path] = (),
    store: Store | None = None,
    progress: Callable[[str], None] | None = None,
) -> BuildEnvironment:
    """Return the environment of a requirements file, making it when it is not there or is broken.

    Every requirement is pinned with `==` and hashes, what they depend on included; only wheels are installed.
    The packages and modules that lie in `extra_paths` (a stand-in for a large package, say) are copied into it.
    `python` (default: the one that runs smwheel) is what it is made with. Where `store` holds every wheel, no index is
    asked, so that it can be made offline. `progress` is told each step in words.

    Raises:
        BuildEnvironmentError: the file is not locked, or what was installed is not what it locks.
        HashMismatchError: a wheel has other bytes than locked.
        NetworkError: a wheel cannot be had; with `offline` the environment must be there.
        SystemNeedError: this Python lacks its venv module.
    """
    base = _base_python(python)
    locked_versions = read_locked(requirements_file)
    key = _fingerprint(requirements_file, base, extra_paths)
    root = cache_root / "environments" / f"{requirements_file.stem}-{key[:16]}"
    environment = BuildEnvironment(root / "bin/python", root, key)
    say = progress or (lambda _text: None)
    if not _problem(environment, locked_versions):
        return environment  # without the lock: a cache that can only be read has finished environments too
    with locked(root.with_name(root.name + ".lock")):
        if problem := _problem(environment, locked_versions):
            wheels = stored_wheels(requirements_file, store, offline=offline) if store else []
            if offline and not wheels:
                raise NetworkError(
                    f"the build environment is not usable ({problem}), and --offline forbids making it",
                    where=str(requirements_file),
                    cure="run `smwheel fetch` for the same recipe once with a network, then --offline works",
                )
            say(f"making the build environment ({len(locked_versions)} packages)")
            shutil.rmtree(root, ignore_errors=True)
            _create(base, root)
            _install(environment, requirements_file, wheels)
            _copy_extras(environment, extra_paths)
            (root / _MARKER).write_text(key, encoding="utf-8")
            if problem := _problem(environment, locked_versions):
                (root / _MARKER).unlink()
                raise BuildEnvironmentError(
                    f"was made and is not what is locked: {problem}",
                    where=str(root),
                    cure="see that every requirement of the locked packages is in the file too",
                )
    return environment


def read_locked(requirements_file: Path) -> dict[str, str]:
    """Return the locked versions by canonical name, of the requirements that apply to this machine.

    Raises:
        BuildEnvironmentError: a requirement is not pinned with `==` and a sha256, or is none.
    """
    try:
        text = requirements_file.read_text(encoding="utf-8")
    except OSError as error:
        raise BuildEnvironmentError(f"cannot be read: {error.strerror}", where=str(requirements_file)) from error
    versions: dict[str, str] = {}
    for entry in _entries(text):
        name, version, applies = _pin(entry, requirements_file)
        if applies:
            versions[name] = version
    return versions


def _entries(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        entry = line.partition(" #")[0].strip()
        if entry and not entry.startswith(("#", "--index", "--extra-index", "--only-binary", "--find-links")):
            yield entry


def fetch_wheels(requirements_file: Path, store: Store) -> list[Path]:
    """Bring every locked wheel for this machine into the store, and return where they lie.

    Raises:
        HashMismatchError, NetworkError, BuildEnvironmentError: they cannot be had.
    """
    if not (stored := stored_wheels(requirements_file, store)):
        with tempfile.TemporaryDirectory() as folder:
            command: list[str | Path] = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
            command += ["--require-hashes", "--only-binary", ":all:", "-d", folder, "-r", requirements_file.absolute()]
            result = _run(command)
            if result.returncode:
                raise explain(result.stdout + result.stderr, requirements_file)
            stored = [store.add(path, path.name) for path in sorted(Path(folder).iterdir())]
    return stored


def stored_wheels(requirements_file: Path, store: Store, *, offline: bool = False) -> list[Path]:
    """Return the locked wheels if the store holds one for every requirement of this machine, else none.

    Raises:
        HashMismatchError: one of them is damaged, and `offline`: nothing can take its place.
    """
    found: list[Path] = []
    for entry in _entries(requirements_file.read_text(encoding="utf-8")):
        if not _pin(entry, requirements_file)[2]:
            continue
        hashes = [match.rpartition(":")[2] for match in _HASH.findall(entry)]
        path = next((path for each in hashes if (path := store.sound(each, mend=not offline))), None)
        if path is None:
            return []
        found.append(path)
    return found


def _pin(entry: str, requirements_file: Path) -> tuple[str, str, bool]:
    where = str(requirements_file)
    cure = "lock it: every line is NAME==VERSION --hash=sha256:…"
    try:
        requirement = Requirement(_HASH.sub("", entry).strip())
    except InvalidRequirement as error:
        raise BuildEnvironmentError(f"{entry[:80]!r} is no requirement", where=where, cure=cure) from error
    pins = list(requirement.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version or not _HASH.search(entry):
        raise BuildEnvironmentError(f"{requirement.name} is not pinned with a hash", where=where, cure=cure)
    applies = requirement.marker is None or requirement.marker.evaluate()
    return canonicalize_name(requirement.name), pins[0].version, applies


def _base_python(python: Path | None) -> Path:
    """Return the Python behind smwheel's own environment, so that ours does not hang on that one."""
    if python is not None:
        return python
    base = Path(getattr(sys, "_base_executable", sys.executable))
    return base if base.exists() else Path(sys.executable)


def _fingerprint(requirements_file: Path, python: Path, extra_paths: Sequence[Path]) -> str:
    identity = _run([python, "-c", _IDENTITY])
    if identity.returncode:
        raise BuildEnvironmentError(
            f"does not run: {_tail(identity)}", where=str(python), cure="name a Python that works: --python"
        )
    parts = [f"format {FORMAT}", identity.stdout.strip(), file_digest(requirements_file)]
    for folder in extra_paths:
        parts += [
            f"{path.relative_to(folder)} {file_digest(path)}"
            for path in sorted(folder.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _problem(environment: BuildEnvironment, locked_versions: dict[str, str]) -> str:
    """Return why the environment cannot be used, or nothing."""
    if not (environment.root / _MARKER).is_file():
        return "it was never finished" if environment.root.exists() else "it is not there"
    result = _run([environment.python, "-I", "-c", _INSTALLED])
    if result.returncode:
        return f"its Python does not run: {_tail(result)}"
    installed: dict[str, Any] = {canonicalize_name(n): entry for n, entry in json.loads(result.stdout).items()}
    return difference(installed, locked_versions)


def difference(installed: dict[str, Any], locked_versions: dict[str, str]) -> str:
    """Return how what is installed differs from what is locked, or nothing.

    `installed` maps a canonical name to its version and a list of files that its record names and that are gone.
    """
    for name, version in locked_versions.items():
        found, lost = installed.get(name, ("", []))
        if not found:
            return f"{name} is not installed"
        if found != version:
            return f"{name} is {found}, locked is {version}"
        if lost:
            return f"{name} lost {lost[0]}"
    foreign = sorted(installed.keys() - locked_versions.keys() - _FROM_VENV)
    return f"{foreign[0]} is installed and not locked" if foreign else ""


def _create(python: Path, root: Path) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    result = _run([python, "-m", "venv", root])
    if result.returncode == 0:
        return
    output = result.stdout + result.stderr
    if "ensurepip" in output or "No module named venv" in output:
        raise SystemNeedError(
            "this Python has no venv module that works",
            where=str(python),
            cure=install_command(apt="python3-venv", dnf="python3"),
        )
    raise BuildEnvironmentError(f"venv failed: {_tail(result)}", where=str(python))


def _install(environment: BuildEnvironment, requirements_file: Path, wheels: Sequence[Path]) -> None:
    command: list[str | Path] = [environment.python, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"]
    command += ["--require-hashes", "--only-binary", ":all:", "--retries", "2", "-r", requirements_file.absolute()]
    with tempfile.TemporaryDirectory() as folder:
        for wheel in wheels:
            (Path(folder) / wheel.name).symlink_to(wheel)
        result = _run([*command, *(["--no-index", "--find-links", folder] if wheels else [])])
    if result.returncode:
        raise explain(result.stdout + result.stderr, requirements_file)


def explain(output: str, requirements_file: Path) -> SmwheelError:
    """Return the error that pip's output amounts to."""
    where = str(requirements_file)
    if "DO NOT MATCH THE HASHES" in output:
        found = re.search(r"Expected sha256 ([0-9a-f]{64}).*?Got\s+([0-9a-f]{64})", output, re.DOTALL)
        package = re.search(r"^\s+(\S+==\S+|\S+) from ", output, re.MULTILINE)
        digests = f"sha256 is {found[2]}, locked is {found[1]}" if found else "sha256 differs from the locked one"
        return HashMismatchError(
            f"{package[1] if package else 'a package'}: {digests}",
            where=where,
            cure="check the lock against the publisher's hashes; if it is right, the copy offered is not",
        )
    lines = [line for line in output.splitlines() if line.startswith("ERROR")] or [output.strip()[-300:]]
    if re.search(r"connection|resolve|Retrying|timed out|Max retries|SSLError", output, re.IGNORECASE):
        cause = re.search(r"connection broken by '(.*)': ", output)
        return NetworkError(
            f"packages cannot be fetched: {cause[1] if cause else lines[-1]}",
            where=where,
            cure="check the network and the index settings: pip config list",
        )
    return BuildEnvironmentError(
        f"pip failed: {lines[0]}", where=where, cure="see that this Python and machine have those wheels"
    )


def _copy_extras(environment: BuildEnvironment, extra_paths: Sequence[Path]) -> None:
    site = next((environment.root / "lib").glob("python*/site-packages"))
    for folder in extra_paths:
        for source in sorted(folder.iterdir()):
            target = site / source.name
            if source.name == "__pycache__":
                continue
            if target.exists():
                raise BuildEnvironmentError(
                    f"{source.name} is installed already, and {folder} brings it too", where=str(environment.root)
                )
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target)


def _run(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a Python of ours without what the caller's shell or environment says to Python."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "PIP_TARGET", "PIP_USER")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def _tail(result: subprocess.CompletedProcess[str]) -> str:
    return ((result.stderr or result.stdout).strip().splitlines() or ["no output"])[-1]
