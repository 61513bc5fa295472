"""The stand-in for sgl-kernel, compiled from source in a container that has no network.

A stack says a recipe's version, and the program inside knows only the stacks that come with it: the stand-in takes the
name and the version of the recipe that it stands in for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import container_demo as demo
import pytest
import standin

from smwheel import stack
from smwheel.arch import Arch
from smwheel.paths import cache_dir
from smwheel.pipeline import Options, fetch_sources
from smwheel.plan import resolve
from smwheel.progress import Reporter
from smwheel.sources.store import Store

pytestmark = pytest.mark.integration


@pytest.fixture
def _engine() -> None:
    demo.docker()


@pytest.mark.usefixtures("_engine")
def test_for_120a_in_a_container_without_network(tmp_path: Path) -> None:
    called = ("sgl-kernel", stack.load(None).recipes["sgl-kernel"])
    upstream = standin.make(tmp_path, version=called[1])
    # libnuma is the image's own there.
    changes = {
        f'CMAKE_PREFIX_PATH = "{upstream.numa}"\n': "",
        f':{upstream.numa}/lib"': '"',
        f'CPATH = "{upstream.numa}/include"\n': "",
    }
    found = upstream.recipe(called=called, changes=changes)
    # The repositories lie on this machine alone; what the store has needs none.
    resolution = resolve(found, stack.load(None), Arch.parse("120"))
    fetch_sources(resolution, Store(cache_dir() / "store"), Options(), Reporter())
    command = [sys.executable, "-c", "from smwheel.cli import main; main()", "build", f"{found.directory}/"]
    command += ["--arch", "120", "--backend", "docker", "--work", str(tmp_path / "work")]
    command += ["--wheelhouse", str(tmp_path / "wheelhouse"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    (wheel,) = json.loads(done.stdout)["wheels"]
    assert wheel["holds"] == {"120a": 4}
    assert wheel["level"] == "static"
    (document,) = (tmp_path / "wheelhouse").rglob("build.json")
    counts = json.loads(document.read_text())
    assert counts["device_compilations"] == counts["device_units"] == 4
    assert counts["network"] == "none"
