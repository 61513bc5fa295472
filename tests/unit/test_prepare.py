"""Trees: links, edits with an exact count, patches; what does not fit is refused and leaves nothing."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from smwheel import prepare
from smwheel.errors import RecipeError, SourceError
from smwheel.prepare import make_tree
from smwheel.recipe import Build, Edit, FileSource, Link, Recipe

FILES = {"demo-1.0/src/a.cc": '#include "Python.h"\nint a;\n', "demo-1.0/include/a.h": "int a;\n"}


def archive(tmp_path: Path) -> Path:
    path = tmp_path / "demo-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def make(tmp_path: Path, *, sha256: str = "a" * 64, **build: object) -> Path:
    source = FileSource(id="sdist", kind="sdist", project="demo", file="demo-1.0.tar.gz", size=1, sha256=sha256)
    recipe = Recipe.model_validate(
        {"schema": 1, "name": "demo", "summary": "", "license": "MIT", "versions": {}}, strict=False
    )
    settings = Build(requirements="r.txt", **build)  # type: ignore[arg-type]
    (tmp_path / "trees").mkdir(exist_ok=True)
    return make_tree(recipe, settings, source, archive(tmp_path), tmp_path / "trees").path


def edit(find: str, count: int = 1) -> Edit:
    return Edit(file="src/a.cc", find=find, replace="", count=count, why="a test")


def test_links_and_edits(tmp_path: Path) -> None:
    tree = make(tmp_path, links=[Link(path="data/include", target="../include")], edits=[edit('#include "Python.h"\n')])
    assert (tree / "data" / "include" / "a.h").read_text() == "int a;\n"
    assert (tree / "src" / "a.cc").read_text() == "int a;\n"


def test_the_same_tree_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make(tmp_path)
    monkeypatch.setattr(prepare, "unpack", lambda *_: pytest.fail("unpacked again"))
    assert make(tmp_path) == first
    monkeypatch.undo()
    assert make(tmp_path, edits=[edit("int a;")]) != first
    assert make(tmp_path, sha256="b" * 64) != first


@pytest.mark.parametrize(("find", "count", "found"), [("int a;", 2, 1), ("int b;", 1, 0)])
def test_an_edit_must_match_as_often_as_it_says(tmp_path: Path, find: str, count: int, found: int) -> None:
    with pytest.raises(SourceError, match=f"its text is there {found} times, not {count}"):
        make(tmp_path, edits=[edit(find, count)])
    assert [path.suffix for path in (tmp_path / "trees").iterdir()] == [".lock"], "a half-made tree was left"


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (Link(path="../../outside", target="src"), "leads outside"),
        (Link(path="data/x", target="../../../etc"), "leads outside"),
        (Link(path="data/x", target="../nothing"), "is not in the source"),
        (Link(path="src/a.cc", target="../include"), "something is there already"),
    ],
)
def test_a_link_that_does_not_fit(tmp_path: Path, link: Link, message: str) -> None:
    with pytest.raises((SourceError, RecipeError), match=message):
        make(tmp_path, links=[link])


def test_an_edit_of_a_file_outside(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="leads outside"):
        make(tmp_path, edits=[Edit(file="../../etc/passwd", find="a", replace="b", why="a test")])


def test_a_patch_applies_or_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patches = tmp_path / "data" / "patches" / "demo"
    patches.mkdir(parents=True)
    monkeypatch.setattr(prepare, "data_dir", lambda: tmp_path / "data")
    good = "--- a/include/a.h\n+++ b/include/a.h\n@@ -1 +1 @@\n-int a;\n+long a;\n"
    (patches / "good.patch").write_text(good)
    (patches / "bad.patch").write_text(good.replace("int", "char"))
    assert (make(tmp_path, patches=["good.patch"]) / "include" / "a.h").read_text() == "long a;\n"
    with pytest.raises(SourceError, match=r"patch bad\.patch does not apply"):
        make(tmp_path, patches=["bad.patch"])
    with pytest.raises(RecipeError, match=r"patch none\.patch is not there"):
        make(tmp_path, patches=["none.patch"])
