"""What the tests of the FlashInfer recipe share: source trees, a toolkit, environments, and the asking.

Everything is made in the user's cache, so that a second run downloads nothing. The first run brings the two sdists
(60 MB), CUDA's components (about 680 MB) and a CPU build of torch (about 200 MB).
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from smwheel import recipe
from smwheel.arch import Arch
from smwheel.environment import make
from smwheel.paths import cache_dir
from smwheel.prepare import make_tree
from smwheel.sources.registry import fetch
from smwheel.sources.store import Store
from smwheel.toolchain import Toolchain, find

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "flashinfer"
TORCH = "torch==2.13.0"


@functools.cache
def flashinfer() -> recipe.Recipe:
    return recipe.load("flashinfer")


@functools.cache
def archive(version: str, kind: str) -> Path:
    source = flashinfer().version(version).source(kind)
    return fetch(source.project, source.file, source.sha256, source.size, Store(cache_dir() / "store"), offline=False)


@functools.cache
def tree(version: str) -> Path:
    data = flashinfer().version(version)
    assert data.build is not None
    trees = cache_dir() / "trees"
    trees.mkdir(parents=True, exist_ok=True)
    return make_tree(flashinfer(), data.build, data.source("sdist"), archive(version, "sdist"), trees).path


@functools.cache
def toolkit() -> Toolchain:
    needs = flashinfer().version("0.7.2").toolchain
    return find(
        cuda_home=None,
        components=needs.components,
        headers=needs.headers,
        libraries=needs.libraries,
        version_spec="==13.0.*",
        cache_root=cache_dir(),
    )


@functools.cache
def locked_python(version: str) -> Path:
    return make(requirements_file=RECIPE / f"requirements-{version}.txt", cache_root=cache_dir()).python


@functools.cache
def torch_python(version: str) -> Path:
    """Return a Python with the same locked packages and a real CPU torch."""
    root = cache_dir() / "tests" / f"torch-{version}-{sys.version_info.major}.{sys.version_info.minor}"
    python = root / "bin" / "python"
    if not (root / "whole").exists():
        venv.create(root, clear=True, with_pip=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--require-hashes", "-r", RECIPE / f"requirements-{version}.txt"], check=True)
        subprocess.run([*pip, TORCH, "tabulate", "einops", "click"], check=True)
        (root / "whole").touch()
    return python


def request(version: str, code: str, work: Path, **changes: Any) -> dict[str, Any]:
    data, arch = flashinfer().version(version), Arch.parse(code)
    return {
        "protocol": 1,
        "action": "modules",
        "recipe": "flashinfer",
        "version": version,
        "source": str(tree(version)),
        "work": str(work),
        "cuda_home": str(toolkit().home),
        "cuda": "13.0",
        "arch": {
            "code": arch.code,
            "capability": arch.capability,
            "dotted": arch.dotted,
            "number": arch.number,
            "suffix": arch.suffix,
        },
        "profiles": {name: profile.model_dump() for name, profile in data.profiles.items()},
        "exclusions": [exclusion.model_dump() for exclusion in data.exclusions],
        "profile": data.profiles["full"].model_dump(),
        "modules": None,
        "options": data.generator,
    } | changes


def ask(asked: dict[str, Any], python: Path) -> dict[str, Any]:
    """Run the generator; return its response."""
    work = Path(asked["work"])
    work.mkdir(parents=True, exist_ok=True)
    (work / "request.json").write_text(json.dumps(asked))
    subprocess.run([python, RECIPE / "generate.py", work / "request.json", work / "response.json"], check=True)
    answer: dict[str, Any] = json.loads((work / "response.json").read_text())
    return answer


def profile(version: str, name: str) -> dict[str, Any]:
    return flashinfer().version(version).profiles[name].model_dump()
