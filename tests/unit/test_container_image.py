"""The image of a wheelhouse, and what a rebuild asks for and compares."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from demo_build import build

from smwheel import stack
from smwheel.arch import Arch
from smwheel.errors import UsageError, VerifyError
from smwheel.image import write_image
from smwheel.rebuild import differing, wish_of
from smwheel.wheelhouse import Entry, Wheelhouse


@pytest.fixture
def house(tmp_path: Path) -> tuple[Wheelhouse, Entry]:
    (entry,) = build(tmp_path)
    return Wheelhouse(tmp_path / "wheelhouse"), entry


def blob(archive: tarfile.TarFile, described: dict[str, object]) -> bytes:
    """Return a blob of the layout, seen to have the digest and size that name it."""
    digest = str(described["digest"]).removeprefix("sha256:")
    file = archive.extractfile(f"blobs/sha256/{digest}")
    assert file is not None
    content = file.read()
    assert hashlib.sha256(content).hexdigest() == digest
    assert len(content) == described["size"]
    return content


def test_an_image_is_an_oci_layout_and_can_be_loaded(tmp_path: Path, house: tuple[Wheelhouse, Entry]) -> None:
    wheelhouse, entry = house
    made = write_image(wheelhouse, Arch.parse("120"), tmp_path / "image.tar", "wheels:120")
    with tarfile.open(made.path) as archive:
        read = lambda name: json.load(archive.extractfile(name))  # type: ignore[arg-type]  # noqa: E731
        assert read("oci-layout") == {"imageLayoutVersion": "1.0.0"}
        (described,) = read("index.json")["manifests"]
        assert described["digest"] == made.digest
        manifest = json.loads(blob(archive, described))
        config = json.loads(blob(archive, manifest["config"]))
        (layer,) = manifest["layers"]
        content = blob(archive, layer)
        assert config["rootfs"]["diff_ids"] == [layer["digest"]]
        assert (config["os"], config["architecture"]) == ("linux", "amd64")
        (loaded,) = read("manifest.json")
        assert loaded["RepoTags"] == ["wheels:120"]
        assert {loaded["Config"], *loaded["Layers"]} <= set(archive.getnames())
    with tarfile.open(fileobj=io.BytesIO(content)) as inside:
        assert set(inside.getnames()) == {entry.file, "requirements.txt", "constraints.txt", "uv.toml"}
        assert {(member.uid, member.mode, member.mtime) for member in inside} == {(0, 0o644, 315532800)}
        pins = inside.extractfile("requirements.txt")
        assert pins is not None
        assert f"--hash=sha256:{entry.sha256}" in pins.read().decode()
    again = write_image(wheelhouse, None, tmp_path / "again.tar", "wheels:120")
    assert again.path.read_bytes() == made.path.read_bytes()


def test_no_image_of_the_wrong_wheels(tmp_path: Path, house: tuple[Wheelhouse, Entry]) -> None:
    wheelhouse, entry = house
    with pytest.raises(UsageError, match="no wheel for sm_90"):
        write_image(wheelhouse, Arch.parse("90"), tmp_path / "image.tar", "x")
    other = wheelhouse.root / "evidence/other"
    other.mkdir()
    text = (wheelhouse.root / "evidence" / entry.file.removesuffix(".whl") / "entry.json").read_text()
    (other / "entry.json").write_text(text.replace('"120f"', '"90a"'))
    with pytest.raises(UsageError, match="several architectures") as caught:
        write_image(wheelhouse, None, tmp_path / "image.tar", "x")
    assert "--arch 90 or 120" in caught.value.cure
    wheel = wheelhouse.root / entry.file
    content = bytearray(wheel.read_bytes())
    content[-1] ^= 1
    wheel.write_bytes(content)
    with pytest.raises(VerifyError, match="is not the wheel that was checked"):
        write_image(wheelhouse, Arch.parse("120"), tmp_path / "image.tar", "x")
    assert not (tmp_path / "image.tar").exists()


def plan(**changes: object) -> dict[str, object]:
    known = stack.load(None)
    name, version = next(iter(known.recipes.items()))
    return {
        "recipe": name, "version": version, "strategy": "compile", "arch": "120f", "profile": "core",
        "stack": {"cuda": known.cuda, "torch": known.torch}, "modules": ["a", "b"],
    } | changes  # fmt: skip


def test_a_plan_says_what_to_ask_for_again() -> None:
    wish = wish_of(plan(), where="x.whl")
    assert (wish.profile, wish.modules, str(wish.arch)) == ("core", None, "120f")
    custom = wish_of(plan(profile="custom"), "own/recipe", where="x.whl")
    assert (custom.recipes, custom.profile, custom.modules) == (("own/recipe",), None, ("a", "b"))
    thin = wish_of(plan(strategy="thin", profile="thin"), where="x.whl")
    assert (thin.strategy, thin.profile) == ("thin", None)


def test_a_wheel_that_cannot_be_made_again_says_why() -> None:
    with pytest.raises(UsageError, match="carries no plan"):
        wish_of({}, where="x.whl")
    with pytest.raises(UsageError, match=r"no stack here has .* torch 1\.0"):
        wish_of(plan(stack={"cuda": "13.0", "torch": "1.0"}), where="x.whl")
    one = {"host": {"compiler": "12", "libc": "2"}, "tree": "t", "fingerprint": "f"}
    other = {"host": {"compiler": "13", "libc": "2"}, "tree": "u", "fingerprint": "g"}
    assert differing(one, other) == ["host.compiler", "tree"]
