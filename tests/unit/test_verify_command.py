"""The command: where expectations come from, what is printed, and the exit codes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner
from wheelmaker import OPS, ops, wheel

from smwheel.cli import app
from smwheel.errors import MalformedError, UsageError
from smwheel.paths import cache_dir
from smwheel.sources.store import Store
from smwheel.verify import gather
from smwheel.wheels.wheelfile import Wheel

RECIPE = """
schema = 1
name = "ops"
summary = "ops"
license = "MIT"

[versions."1.0"]
strategies = ["thin"]
sources = [{ id = "wheel", kind = "wheel", project = "ops", file = "ops.whl", size = 1, sha256 = "%s" }]
targets = [
  { request = ["120"], code = "120a", why = "its kernels need it" },
  { request = ["90"], code = "90a", why = "its kernels need it" },
]
check = "check.py"

[versions."1.0".thin]

[versions."1.0".expect]
files = ["ops/*"]
required = ["ops/sm100/*"]
max_wheel = { "120a" = 1000000 }

[[versions."1.0".system]]
name = "numa"
library = "libnuma.so.1"
apt = "libnuma1"
dnf = "numactl-libs"
stage = "run"
"""
STACKS = """
[stacks.now]
default = true
summary = "now"
cuda = "13.0"
torch = "2.14.1"
recipes = { ops = "1.0" }
"""


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMWHEEL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data/recipes/ops").mkdir(parents=True)
    (tmp_path / "data/recipes/ops/recipe.toml").write_text(RECIPE % ("0" * 64))
    (tmp_path / "data/recipes/stacks.toml").write_text(STACKS)
    monkeypatch.setattr("smwheel.recipe.data_dir", lambda: tmp_path / "data")


def plan(**changes: object) -> dict[str, bytes]:
    content = {"recipe": "ops", "version": "1.0", "strategy": "compile", "arch": "120a", "modules": ["norm"]}
    return {"plan.json": json.dumps(content | {"stack": {"cuda": "13.0", "torch": "2.14.1"}} | changes).encode()}


def run(*arguments: object) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(app, ["verify", *map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout) if result.stdout else {"error": result.exception}


def test_expectations_from_what_is_given(tmp_path: Path) -> None:
    with Wheel(wheel(tmp_path)) as opened:
        expect = gather(opened, recipe_name="ops", arch="120", stack_name="now")
    assert expect.arch is not None
    assert expect.arch.code == "120a"
    assert (expect.cuda, expect.torch, expect.recipe, expect.version) == ("13.0", "2.14.1", "ops", "1.0")
    assert expect.files == ("ops/*",)
    assert expect.required == ("ops/sm100/*",)
    assert [need.library for need in expect.system] == ["libnuma.so.1"]
    assert expect.max_wheel == 1000000
    assert expect.original == "0" * 64
    assert expect.script == tmp_path / "data/recipes/ops/check.py"
    assert expect.against is None


def _ignore(_: object) -> None:
    """Take a value and give none."""


def test_the_original_comes_from_the_store_if_it_is_there(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"published").hexdigest()
    (tmp_path / "data/recipes/ops/recipe.toml").write_text(RECIPE % digest)
    store = Store(cache_dir() / "store")
    stored = store.obtain(digest, "ops.whl", 9, lambda part: _ignore(part.write_bytes(b"published")))
    other = tmp_path / "other.whl"
    with Wheel(wheel(tmp_path)) as opened:
        assert gather(opened, recipe_name="ops", arch="120", stack_name="now").against == stored
        given = gather(opened, recipe_name="ops", arch="120", stack_name="now", against=other)
    assert given.against == other


def test_expectations_from_the_plan_inside(tmp_path: Path) -> None:
    with Wheel(wheel(tmp_path, extra_dist_info=plan(strategy="thin"))) as opened:
        expect = gather(opened)
    assert expect.arch is not None
    assert (expect.arch.code, expect.recipe, expect.torch) == ("120a", "ops", "2.14.1")
    assert expect.required == ("ops/sm100/*", "*/norm.so")


def test_what_is_given_outweighs_the_plan(tmp_path: Path) -> None:
    with Wheel(wheel(tmp_path, extra_dist_info=plan(strategy="thin"))) as opened:
        expect = gather(opened, arch="90")
    assert expect.arch is not None
    assert expect.arch.code == "90a"
    assert expect.max_wheel is None


def test_a_plan_of_a_stack_that_is_not_known(tmp_path: Path) -> None:
    inside = plan(strategy="thin", stack={"cuda": "13.0", "torch": "1.0"})
    code, said = run(wheel(tmp_path, extra_dist_info=inside))
    assert code == 14
    assert "--stack" in json.dumps(said)


@pytest.mark.parametrize("content", [b"{", b"[]"])
def test_a_damaged_plan(tmp_path: Path, content: bytes) -> None:
    with Wheel(wheel(tmp_path, extra_dist_info={"plan.json": content})) as opened, pytest.raises(MalformedError):
        gather(opened)


def test_exit_codes(tmp_path: Path) -> None:
    good = wheel(tmp_path / "a")
    bad = wheel(tmp_path / "b", [(OPS, ops(tmp_path / "b", "90"))])
    code, said = run(good)
    assert code == 14
    assert said["wheels"][0]["status"] == "incomplete"  # type: ignore[index]
    code, said = run(good, bad, "--arch", "120a")
    jsonschema.validate(said, json.loads((Path(__file__).parents[2] / "docs/verify.schema.json").read_text()))
    assert code == 13
    assert [one["status"] for one in said["wheels"]] == ["incomplete", "failed"]  # type: ignore[attr-defined]


def test_text(tmp_path: Path) -> None:
    bad = wheel(tmp_path, [(OPS, ops(tmp_path / "so", "90"))])
    text = CliRunner().invoke(app, ["verify", str(bad), "--arch", "120a"]).stdout
    assert "W202 FAILED" in text
    assert "no code for sm_120a: it has sm_90" in text
    assert "to do: compile with exactly this architecture" in text
    assert "not proven" in text


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    assert isinstance(CliRunner().invoke(app, ["verify", str(path), str(path), "--against", "x"]).exception, UsageError)
    assert isinstance(CliRunner().invoke(app, ["verify", str(path), "--python", "x"]).exception, UsageError)


def test_a_recipe_or_an_original_that_is_not_there(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    with Wheel(path) as opened, pytest.raises(UsageError, match="no recipe 'nope'"):
        gather(opened, recipe_name="nope")
    _, said = run(path, "--recipe", "ops", "--arch", "120")
    assert "they need --recipe, --arch and --stack" in json.dumps(said)
    done = CliRunner().invoke(app, ["verify", str(path), "--against", str(tmp_path / "none.whl")])
    assert isinstance(done.exception, UsageError)
    assert "no such file" in done.exception.message
