"""Write docs/recipe.schema.json from the models that read recipes: python ci/make_recipe_schema.py."""

import json
from pathlib import Path

from smwheel.recipe import Recipe

TARGET = Path(__file__).resolve().parents[1] / "docs" / "recipe.schema.json"


def text() -> str:
    """Return the schema as the file holds it."""
    return json.dumps(Recipe.model_json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
