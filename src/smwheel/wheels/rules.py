"""What a recipe says about thinning, as the thinning takes it; and which recipe a given file belongs to."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from packaging.version import Version

from smwheel import recipe
from smwheel.errors import RecipeError
from smwheel.recipe import FileSource
from smwheel.wheels.thin import Rules, Stub

if TYPE_CHECKING:
    from pathlib import Path

    from smwheel.arch import Arch
    from smwheel.recipe import LoaderRule, Recipe


def recipe_of(path: Path) -> tuple[Recipe, str] | None:
    """Return the recipe and version that pin a file with these bytes as one of their sources; None if none does."""
    size = path.stat().st_size
    for name in recipe.names():
        found = recipe.load(name)
        for version, data in found.versions.items():
            for source in data.sources:
                if isinstance(source, FileSource) and source.size == size and source.sha256 == _sha256(path):
                    return found, version
    return None


def rules_for(found: Recipe, version: str, gpu: Arch) -> Rules:
    """Return a recipe version's rules for thinning to one GPU.

    Directories that the package's loader opens neither on this GPU nor without any are left out.

    Raises:
        RecipeError: the version has no `thin` table, or a file it names is not beside the recipe.

    """
    data = found.version(version)
    where = str(found.directory / "recipe.toml")
    if data.thin is None:
        raise RecipeError(f"version {version} says nothing about thinning", where=where, cure="add a [thin] table")
    drop = dict(data.thin.drop)
    if data.expect.loader is not None:
        drop |= _never_opened(data.expect.loader, gpu)
    return Rules(
        stubs=tuple(Stub(stub.replaces, stub.path, _read(found, stub.file), stub.reason) for stub in data.thin.stubs),
        drop=drop,
        licences={name.rpartition("/")[2]: _read(found, name) for name in data.thin.licenses},
        requires=(f"torch=={'.'.join(map(str, Version(data.torch).release[:2]))}.*",) if data.torch else (),
        compiled=f"compile it: smwheel build {found.name} --arch {gpu.plain} --strategy compile",
    )


def _never_opened(loader: LoaderRule, gpu: Arch) -> dict[str, str]:
    without_gpu = loader.directories.get("*", "")
    opened = {loader.directories.get(str(gpu.number), without_gpu), without_gpu}
    return {
        f"{directory}/*": f"the package's loader never opens it on a GPU of capability {gpu.capability}"
        for directory in loader.directories.values()
        if directory not in opened
    }


def _read(found: Recipe, name: str) -> bytes:
    path = found.directory / name
    if not path.is_file():
        raise RecipeError(f"names {name}, and there is no such file", where=str(found.directory / "recipe.toml"))
    return path.read_bytes()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
