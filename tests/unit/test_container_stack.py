"""`--stack from:ENV` for a container: what was read of the environment goes in, for its paths lead nowhere there."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from environments import Place

from smwheel import recipe, stack
from smwheel.arch import Arch
from smwheel.build.container import STATE, Backend, Job
from smwheel.build.engine import Engine, Image
from smwheel.errors import RecipeError
from smwheel.governor.limits import Limits
from smwheel.pipeline import Options
from smwheel.plan import resolve
from smwheel.progress import Reporter

INSIDE = {
    "fetched": {
        "flashinfer": {
            "binds": {
                "work": {"path": f"{STATE}/work/x", "writable": True},
                "tree": {"path": f"{STATE}/cache/trees/t", "writable": False},
            }
        }
    }
}


def docker(folder: Path) -> Engine:
    """Return an engine whose client notes each command and answers as a container that fetched would."""
    (folder / "answer").write_text(json.dumps(INSIDE))
    client = folder / "docker"
    client.write_text(
        f"""#!/bin/sh
printf '%s\\0' "$@" >> {folder}/said; printf '\\n' >> {folder}/said
case "$1" in
  start) cat {folder}/answer ;;
  inspect) echo '{{"ExitCode": 0, "OOMKilled": false, "Error": ""}}' ;;
esac
"""
    )
    client.chmod(0o755)
    return Engine("docker", str(client), "28.0", "amd64", rootless=False, environment={})


def test_the_versions_of_an_environment_reach_the_program_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMWHEEL_CACHE", str(tmp_path / "cache"))
    place = Place(tmp_path / "env")
    place.torch().install("flashinfer-python", "0.7.2", {"flashinfer/__init__.py": b""})
    read = stack.load(f"from:{place.root}")
    resolution = resolve(recipe.load("flashinfer"), read, Arch.parse("120"), strategy="compile")
    engine = docker(tmp_path)
    image = Image("sha256:1", (), "amd64", 1)
    limits = Limits(512 << 20, "--memory", 0, 2, "x", 2, "x")
    options = Options(work=tmp_path / "work")
    options.work.mkdir()
    job = Job(resolution, options, Backend(engine, image), image, limits, Reporter())

    assert job.fetch().work == tmp_path / "work/x"

    lines = (tmp_path / "said").read_text().splitlines()
    created = next(line.split("\0") for line in lines if line.startswith("create"))
    named = created[created.index("--stack") + 1]
    assert named == f"from:{STATE}/stack.json"
    assert str(place.root) not in shlex.join(created), "the environment itself was taken along"
    mount = next(word for word in created if f"target={STATE}/stack.json" in word)
    (given,) = (part.removeprefix("source=") for part in mount.split(",") if part.startswith("source="))
    inside = stack.load(f"from:{given}")
    assert inside.model_dump() == read.model_dump()
    assert inside.environment is None
    again = resolve(recipe.load("flashinfer"), inside, Arch.parse("120"), strategy="compile")
    assert (again.version, again.arch, again.stack.torch) == (resolution.version, resolution.arch, read.torch)


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_file_that_holds_no_stack(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "stack.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RecipeError, match="is no stack that smwheel wrote") as caught:
        stack.load(f"from:{path}")
    assert caught.value.where == str(path)
    assert "from:ENV" in caught.value.cure
