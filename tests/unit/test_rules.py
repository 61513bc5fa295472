from __future__ import annotations

import ast
import hashlib
import json
import random
import sys
from pathlib import Path

import gpufiles
import gpulibs
import pytest

from smwheel import recipe
from smwheel.arch import Arch
from smwheel.cli import main
from smwheel.errors import RecipeError
from smwheel.wheels.rules import recipe_of, rules_for
from smwheel.wheels.wheelfile import Wheel, write_wheel

SGL = recipe.load("sgl-kernel")


@pytest.mark.parametrize("version", SGL.versions)
def test_rules_of_every_shipped_version(version: str) -> None:
    found = rules_for(SGL, version, Arch.parse("120"))
    assert {stub.path for stub in found.stubs} == {"sgl_kernel/flash_ops.py", "sgl_kernel/flashmla_ops.py"}
    assert len(found.licences) >= 4
    assert all(text.strip() for text in found.licences.values())
    assert "--strategy compile" in found.compiled


def test_directories_that_the_loader_never_opens_are_left_out() -> None:
    assert any("sgl_kernel/sm90/*" in pattern for pattern in rules_for(SGL, "0.4.10", Arch.parse("120")).drop)
    hopper = rules_for(SGL, "0.4.10", Arch.parse("90")).drop
    assert not any("sm90" in pattern or "sm100" in pattern for pattern in hopper), (
        "without a GPU the loader opens sm100: an import on a machine without one must still work"
    )


def test_torch_is_required_in_the_minor_that_the_wheel_was_built_for() -> None:
    assert rules_for(SGL, "0.3.21", Arch.parse("120")).requires == ("torch==2.9.*",)


@pytest.mark.parametrize("path", sorted(SGL.directory.glob("stubs/*/*.py")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_stub_is_python_of_the_oldest_version_and_declares_operators(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    (schemas,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "SCHEMAS"
    )
    names = [schema.partition("(")[0] for schema in schemas]
    assert len(set(names)) == len(names) >= 1
    assert all(") -> " in schema and "Tensor" in schema for schema in schemas)
    expected = {"flash_ops": "fwd", "flashmla_ops": "fwd_kvcache_mla"}
    assert expected[path.stem] in names


RECIPE = """
schema = 1
name = "pack"
summary = "s"
license = "MIT"
[versions."1.0"]
strategies = ["thin"]
torch = "2.14.1"
sources = [{{ id = "wheel", kind = "wheel", project = "pack", file = "x.whl", size = {size}, sha256 = "{sha256}" }}]
targets = [{{ request = ["120"], code = "120a", why = "w" }}]
[versions."1.0".thin]
licenses = {licenses}
drop = {{ "pack/junk/*" = "nothing reads it" }}
"""


@pytest.fixture
def fat(tmp_path: Path) -> Path:
    entries = [gpufiles.entry(code, random.Random(code).randbytes(30_000)) for code in ("90", "120a")]
    library = gpulibs.build(tmp_path / "build", [gpufiles.region(*entries)])
    return write_wheel(
        tmp_path / "published",
        distribution="pack",
        version="1.0",
        tags=["cp310-abi3-manylinux2014_x86_64"],
        files=[("pack/ops.so", library), ("pack/junk/x.h", b"x")],
    )


@pytest.fixture
def pinned(tmp_path: Path, fat: Path, monkeypatch: pytest.MonkeyPatch) -> recipe.Recipe:
    """A recipe that pins the wheel, as the only one there is."""
    directory = tmp_path / "recipes" / "pack"
    directory.mkdir(parents=True)
    (directory / "LICENSE").write_text("MIT")
    data = fat.read_bytes()
    text = RECIPE.format(size=len(data), sha256=hashlib.sha256(data).hexdigest(), licenses='["LICENSE"]')
    (directory / "recipe.toml").write_text(text)
    monkeypatch.setattr(recipe, "recipes_dir", lambda: tmp_path / "recipes")
    (tmp_path / "recipes" / "stacks.toml").write_text(
        '[stacks.one]\ndefault = true\nsummary = "s"\ncuda = "13.0"\ntorch = "2.14.1"\nrecipes = { pack = "1.0" }\n'
    )
    monkeypatch.setattr("smwheel.stack.recipes_dir", lambda: tmp_path / "recipes")
    return recipe.load("pack")


def test_recipe_is_found_by_the_files_bytes(tmp_path: Path, fat: Path, pinned: recipe.Recipe) -> None:
    assert recipe_of(fat) == (pinned, "1.0")
    other = tmp_path / fat.name
    data = bytearray(fat.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    assert recipe_of(other) is None


def test_license_that_is_not_there(pinned: recipe.Recipe) -> None:
    (pinned.directory / "LICENSE").unlink()
    with pytest.raises(RecipeError, match="names LICENSE"):
        rules_for(pinned, "1.0", Arch.parse("120"))


def test_command_follows_the_recipe_that_pins_the_wheel(
    tmp_path: Path,
    fat: Path,
    pinned: recipe.Recipe,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["smwheel", "thin", str(fat), "--arch", "12.0", "-o", str(output), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    said = json.loads(capsys.readouterr().out)
    assert Path(said["wheel"]).name.startswith("pack-1.0+cu130.sm120a.thin-cp310-abi3-")
    with Wheel(Path(said["wheel"])) as wheel:
        assert "pack/junk/x.h" not in wheel.members
        assert wheel.metadata.get_all("Requires-Dist") == ["torch==2.14.*"]
        assert any(name.endswith("licenses/LICENSE") for name in wheel.members)


def test_command_says_what_it_did_and_that_faults_remain(
    tmp_path: Path, fat: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["smwheel", "thin", str(fat), "--arch", "120", "-o", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    text = " ".join(capsys.readouterr().out.split())
    for part in ("pack/ops.so", "cut", "120a×1", "mends size, not faults", "No recipe pins this file"):
        assert part in text
