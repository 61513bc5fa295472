"""The environment that a wheel is imported in: torch and what the wheel requires, without a GPU or a driver.

It is made once for a set of requirements and kept in the cache; its size is told before anything is fetched. The
driver library that every CUDA file asks for is stood in for by a stub that exports just the names asked for, each of
which answers that there is no device.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx

from smwheel.paths import cache_dir
from smwheel.verify.registry import NotMade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE, what a driver function answers where there is no GPU."""

_MARKER = "ready.json"


def environment(requirements: Iterable[str], say: Callable[[str], object]) -> Path:
    """Return the interpreter of a cached environment with these requirements; make it if it is not there.

    Raises:
        NotMade: it cannot be made: no network, no space, no such versions.

    """
    wanted = sorted(set(requirements))
    key = hashlib.sha256(json.dumps([wanted, sys.version_info[:2]]).encode()).hexdigest()[:16]
    home = cache_dir() / "verify-environments" / key
    python = home / "bin" / "python"
    if (home / _MARKER).is_file():
        return python
    if home.exists():
        shutil.rmtree(home)  # a run that was stopped
    home.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(home)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install"]
    say(f"import environment for {', '.join(wanted)}: {_size(pip, wanted)}, into {home}")
    _run([*pip, "--quiet", *wanted])
    (home / _MARKER).write_text(json.dumps({"requirements": wanted}))
    return python


def _size(pip: list[str], wanted: list[str]) -> str:
    """Ask pip what it would fetch, and the places it names for the sizes."""
    report = json.loads(_run([*pip, "--dry-run", "--quiet", "--report", "-", *wanted]))
    urls = [entry["download_info"]["url"] for entry in report["install"]]
    with httpx.Client(follow_redirects=True, timeout=30) as client:
        sizes = [_length(url, client) for url in urls]
    unknown = sizes.count(None)
    total = sum(size for size in sizes if size is not None)
    more = f" and {unknown} of unknown size" if unknown else ""
    return f"{len(urls)} packages, {total / 1e9:.2f} GB to fetch{more}, about twice that on disk"


def _length(url: str, client: httpx.Client) -> int | None:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path)).stat().st_size
    try:
        answer = client.head(url)
    except httpx.HTTPError:
        return None
    return int(answer.headers["Content-Length"]) if "Content-Length" in answer.headers else None


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
        raise NotMade(
            f"the import environment cannot be made: {lines[-1]}",
            cure="give an interpreter that has torch: --python",
        )
    return result.stdout


def driver_stub(names: Iterable[str], directory: Path) -> Path:
    """Make `libcuda.so.1` with these functions in a directory, and return the directory.

    Raises:
        NotMade: there is no C compiler.

    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise NotMade("no C compiler to make the stub of the driver library with", cure="install gcc")
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / "driver.c"
    source.write_text("".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in sorted(names)))
    target = directory / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-nostdlib", "-w", "-fno-builtin", "-Wl,-soname,libcuda.so.1"]
    _run([compiler, *flags, "-o", str(target), str(source)])
    return directory
