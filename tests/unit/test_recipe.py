"""Recipes and stacks: what they may say, and errors that name file, key and cure."""

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from smwheel import recipe, stack
from smwheel.errors import RecipeError, UsageError

GOOD = """
schema = 1
name = "demo"
summary = "a demo"
license = "MIT"

[versions."1.0"]

[[versions."1.0".sources]]
id = "sdist"
kind = "sdist"
project = "demo"
file = "demo-1.0.tar.gz"
size = 10
sha256 = "{digest}"

[[versions."1.0".targets]]
request = ["120"]
cuda = ">=12.9"
code = "120f"
why = "because"

[versions."1.0".build]
requirements = "requirements.txt"

[versions."1.0".profiles.core]
summary = "the core"
modules = ["*"]
default = true
""".replace("{digest}", "a" * 64)


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "recipe.toml").write_text(text)
    return f"{tmp_path}/"


def test_a_good_recipe_reads(tmp_path: Path) -> None:
    loaded = recipe.load(write(tmp_path, GOOD))
    assert loaded.version("1.0").default_profile() == "core"
    assert loaded.directory == tmp_path.resolve()


@pytest.mark.parametrize(
    ("find", "replace", "key", "cure"),
    [
        ("requirements =", "requirments =", "versions.1.0.build.requirments", "did you mean 'requirements'?"),
        ('summary = "a demo"', 'sumary = "a demo"', "sumary", "did you mean 'summary'?"),
        ('summary = "a demo"', "", "summary", "add the key"),
        ('code = "120f"', 'code = "125f"', "versions.1.0.targets.0.code", "correct"),
        ('cuda = ">=12.9"', 'cuda = "at least 12"', "versions.1.0.targets.0.cuda", "correct"),
        ('sha256 = "aaaa', 'sha256 = "AAAA', "versions.1.0.sources.0.sha256", "correct"),
        ('kind = "sdist"', 'kind = "svn"', "versions.1.0.sources.0.kind", "correct"),
        ("schema = 1", "schema = 2", "schema", "correct"),
        ('[versions."1.0".build]\nrequirements = "requirements.txt"', "", "versions.1.0", "correct"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_named_with_its_cure(tmp_path: Path, find: str, replace: str, key: str, cure: str) -> None:
    assert find in GOOD
    with pytest.raises(RecipeError) as caught:
        recipe.load(write(tmp_path, GOOD.replace(find, replace)))
    assert caught.value.where.endswith("recipe.toml")
    assert f"key {key}" in caught.value.message
    assert cure in caught.value.cure


def test_text_that_is_not_toml(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="not TOML"):
        recipe.load(write(tmp_path, "schema = = 1"))


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        recipe.load("flashinfr")
    assert caught.value.cure == "did you mean flashinfer?"
    with pytest.raises(UsageError) as caught:
        stack.load("sglang-0.5.32")
    assert "sglang-0.5.23" in caught.value.cure
    with pytest.raises(UsageError, match=r"does not know version 9\.9"):
        recipe.load("flashinfer").version("9.9")


def test_shipped_recipes_and_stacks_fit_each_other() -> None:
    for known in stack.load_all().values():
        for name, version in known.recipes.items():
            data = recipe.load(name).version(version)
            requested = {code for target in data.targets for code in target.request}
            assert "120" in requested, f"{known.name}: {name} {version} has nothing for 120"


def test_exactly_one_default_stack() -> None:
    assert stack.load(None).name == "sglang-0.5.23"
    assert stack.load(None).cuda_tag == "cu130"


def test_the_published_schema_is_that_of_the_models_and_takes_every_shipped_recipe() -> None:
    schema = json.loads((Path(__file__).parents[2] / "docs" / "recipe.schema.json").read_text())
    assert schema == recipe.Recipe.model_json_schema(), "run: python ci/make_recipe_schema.py"
    for name in recipe.names():
        data = tomllib.loads((recipe.recipes_dir() / name / "recipe.toml").read_text())
        jsonschema.validate(data, schema)
