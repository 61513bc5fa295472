"""TOML files that people write, read into models; what is wrong in one is said with file, key and what to do."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from smwheel.errors import RecipeError

M = TypeVar("M", bound=BaseModel)


class Strict(BaseModel):
    """Base of everything read from TOML: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def read_toml(path: Path, model: type[M]) -> M:
    """Read a TOML file into a model.

    Raises:
        RecipeError: not TOML, an unknown or missing key, or a wrong value: named with file, key and cure.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"is not TOML: {error}", where=str(path)) from error
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # A misspelt key is two errors, one unknown and one missing: the unknown one says what to mend.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        key = ".".join(str(part) for part in _location(data, first))
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise RecipeError(
            f"key {key}: {_sentence(first)}{more}",
            where=str(path),
            cure=_cure(model, first),
        ) from error


def _location(data: Any, error: Any) -> list[str | int]:
    """Return where in the file an error is: pydantic names the kind of a source as if it were a key."""
    place: list[str | int] = []
    for part in error["loc"]:
        if isinstance(data, dict) and part not in data and part == data.get("kind"):
            continue
        place.append(part)
        data = data[part] if isinstance(data, list) or (isinstance(data, dict) and part in data) else None
    return [*place, "kind"] if error["type"].startswith("union_tag") else place


def _sentence(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "is not a key of this table"
        case "missing" | "union_tag_not_found":
            return "is missing"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")


def _cure(model: type[BaseModel], error: Any) -> str:
    if error["type"] != "extra_forbidden":
        return "add the key" if error["type"] in ("missing", "union_tag_not_found") else "correct the value"
    known = _keys_at(model, error["loc"][:-1])
    close = difflib.get_close_matches(str(error["loc"][-1]), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"keys known here: {', '.join(known)}"


def _keys_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Return the keys that the table at `location` may have, by walking the models' JSON schema."""
    schema = model.model_json_schema()
    node: Any = schema
    for part in location:
        node = _resolve(schema, node)
        kinds = node.get("discriminator", {}).get("mapping", {})
        if part in kinds:
            node = {"$ref": kinds[part]}
        elif isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    return sorted(_resolve(schema, node).get("properties", {}))


def _resolve(schema: dict[str, Any], node: Any) -> Any:
    for option in node.get("anyOf", []):
        if "$ref" in option:
            node = option
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node
