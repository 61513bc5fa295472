"""From a source archive to the tree that is built: unpacked, linked, edited, patched, then never changed again."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from smwheel.errors import RecipeError, SourceError
from smwheel.locks import locked
from smwheel.paths import data_dir
from smwheel.plan import digest
from smwheel.recipe import Build, Edit, Link, Recipe, Source
from smwheel.sources.unpack import unpack

FORMAT = 1
"""Raised when the way a tree is made changes, so that trees made the old way are not used."""


@dataclass(frozen=True)
class Tree:
    """A prepared source tree: its directory, and the digest of everything that went into it."""

    path: Path
    digest: str


def tree_digest(recipe: Recipe, build: Build, source: Source) -> str:
    """Return the digest of a tree without making it.

    Raises:
        RecipeError: a patch that the recipe names is not there.
    """
    return digest(
        {
            "format": FORMAT,
            "source": source.identity,
            "links": [link.model_dump() for link in build.links],
            "edits": [edit.model_dump(exclude={"why"}) for edit in build.edits],
            "patches": [path.read_text(encoding="utf-8") for path in _patches(recipe, build)],
        }
    )


def make_tree(recipe: Recipe, build: Build, source: Source, archive: Path, trees: Path) -> Tree:
    """Return the prepared tree of a source archive, making it below `trees` if it is not there yet.

    Raises:
        SourceError: the archive is not safe or whole, or an edit or patch does not fit the source.
        RecipeError: a patch that the recipe names is not there.
    """
    key = tree_digest(recipe, build, source)
    final = trees / f"{recipe.name}-{key[:16]}"
    if final.is_dir():
        return Tree(final, key)  # without the lock: a cache that can only be read has finished trees too
    with locked(trees / f"{final.name}.lock"):
        if not final.is_dir():
            with tempfile.TemporaryDirectory(dir=trees, prefix=f".{final.name}-") as scratch:
                staging = Path(scratch) / "tree"
                unpack(archive, staging, max_bytes=source.unpacked)
                _change(staging, recipe, build, where=source.title)
                staging.rename(final)
    return Tree(final, key)


def make_plain_tree(source: Source, archive: Path, trees: Path) -> Tree:
    """Return the tree of a third party's archive, unchanged, making it below `trees` if it is not there yet.

    Raises:
        SourceError: the archive is not safe or whole.
    """
    key = digest({"format": FORMAT, "source": source.identity})
    final = trees / f"{source.id}-{key[:16]}"
    if not final.is_dir():
        with locked(trees / f"{final.name}.lock"):
            if not final.is_dir():
                unpack(archive, final, max_bytes=source.unpacked)
    return Tree(final, key)


def _change(tree: Path, recipe: Recipe, build: Build, *, where: str) -> None:
    for link in build.links:
        _add_link(tree, link, where)
    for edit in build.edits:
        _apply_edit(tree, edit, where)
    for patch in _patches(recipe, build):
        _apply_patch(tree, patch, where)


def _inside(tree: Path, name: str, where: str) -> Path:
    path = Path(os.path.normpath(tree / name))
    if not path.is_relative_to(tree):
        raise RecipeError(f"{name!r} leads outside the source tree", where=where)
    return path


def _add_link(tree: Path, link: Link, where: str) -> None:
    path = _inside(tree, link.path, where)
    target = _inside(tree, str(Path(link.path).parent / link.target), where)
    if not target.exists():
        raise SourceError(f"link {link.path}: its target {link.target} is not in the source", where=where)
    if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
        path.rmdir()
    if path.exists() or path.is_symlink():
        raise SourceError(f"link {link.path}: something is there already", where=where)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def _apply_edit(tree: Path, edit: Edit, where: str) -> None:
    path = _inside(tree, edit.file, where)
    if not path.is_file():
        raise SourceError(f"edit of {edit.file}: no such file", where=where, cure="correct the recipe's edit")
    text = path.read_text(encoding="utf-8")
    found = text.count(edit.find)
    if found != edit.count:
        raise SourceError(
            f"edit of {edit.file}: its text is there {found} times, not {edit.count}",
            where=where,
            cure="the source is not the one that the edit was written for: correct the recipe's edit",
        )
    mode, stamp = path.stat().st_mode, path.stat().st_mtime
    temporary = path.with_name(path.name + ".edited")
    temporary.write_text(text.replace(edit.find, edit.replace), encoding="utf-8")
    temporary.chmod(mode)
    os.utime(temporary, (stamp, stamp))
    temporary.replace(path)


def _patches(recipe: Recipe, build: Build) -> list[Path]:
    paths = [data_dir() / "patches" / recipe.name / name for name in build.patches]
    for path in paths:
        if not path.is_file():
            raise RecipeError(f"patch {path.name} is not there", where=str(path.parent))
    return paths


def _apply_patch(tree: Path, patch: Path, where: str) -> None:
    if shutil.which("git") is None:
        raise SourceError("git is needed to apply patches", where=where, cure="apt-get install git")
    # GIT_CEILING_DIRECTORIES: the tree may lie below somebody's checkout, whose rules must not apply.
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(patch.resolve())],
        cwd=tree,
        env=os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent), "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SourceError(
            f"patch {patch.name} does not apply: {done.stderr.strip().splitlines()[0]}",
            where=where,
            cure="the source is not the one that the patch was written for",
        )
