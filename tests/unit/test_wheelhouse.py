"""The wheelhouse: wheels with evidence, and pins that pip takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from smwheel.wheelhouse import Entry, Wheelhouse, describe
from smwheel.wheels.wheelfile import write_wheel


def make_wheel(directory: Path, version: str, text: str = "") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return write_wheel(
        directory, distribution="demo-kernels", version=version, tags=["py3-none-any"],
        files=[("demo_kernels.py", text.encode())],
    )  # fmt: skip


def entry_of(wheel: Path, version: str, made: str = "2026-01-01T00:00:00+00:00") -> Entry:
    return Entry(
        **describe(wheel), distribution="demo-kernels", version=version, recipe="demo", arch="120f", stack="s",
        profile="core", fingerprint="f" * 64, level="static", made=made,
    )  # fmt: skip


def test_a_wheel_comes_with_its_evidence(tmp_path: Path) -> None:
    house = Wheelhouse(tmp_path / "house")
    wheel = make_wheel(tmp_path / "made", "1.0+cu130")
    log = tmp_path / "compile.log"
    log.write_text("said")
    entry = entry_of(wheel, "1.0+cu130")
    placed = house.add(wheel, entry, {"plan.json": {"a": 1}}, [log])
    assert placed.read_bytes() == wheel.read_bytes()
    evidence = house.root / "evidence" / placed.name.removesuffix(".whl")
    assert json.loads((evidence / "plan.json").read_text()) == {"a": 1}
    assert (evidence / "compile.log").read_text() == "said"
    assert house.entries() == [entry]
    assert house.made_from("f" * 64) == [], "the plan is not finished"
    house.complete("f" * 64, [entry])
    assert house.made_from("f" * 64) == [entry]
    placed.unlink()
    assert house.made_from("f" * 64) == [], "a wheel of the plan is gone"
    assert {path.name for path in (house.root / "evidence").iterdir()} == {evidence.name, "plans"}, "scratch was left"


def test_a_wheel_that_is_gone_or_was_replaced_does_not_count(tmp_path: Path) -> None:
    house = Wheelhouse(tmp_path / "house")
    wheel = make_wheel(tmp_path / "made", "1.0+cu130")
    placed = house.add(wheel, entry_of(wheel, "1.0+cu130"), {}, [])
    placed.write_bytes(placed.read_bytes() + b"x")
    assert house.entries() == []
    placed.unlink()
    assert house.entries() == []


def test_damage_is_not_taken_for_a_wheel(tmp_path: Path) -> None:
    house = Wheelhouse(tmp_path / "house")
    wheel = make_wheel(tmp_path / "made", "1.0+cu130")
    entry = entry_of(wheel, "1.0+cu130")
    placed = house.add(wheel, entry, {}, [])
    house.complete("f" * 64, [entry])
    flipped = bytearray(placed.read_bytes())
    flipped[40] ^= 1
    placed.write_bytes(flipped)
    assert house.made_from("f" * 64) == [], "one byte differs, the size does not"
    placed.write_bytes(wheel.read_bytes())
    document = house.root / "evidence" / placed.name.removesuffix(".whl") / "entry.json"
    for damage in (b"", b"[]", b'{"file": 1}', b"\xff"):
        document.write_bytes(damage)
        assert house.entries() == []
    for damage in (b"", b"[]", b'{"wheels": null}'):
        (house.root / "evidence" / "plans" / f"{'f' * 64}.json").write_bytes(damage)
        assert house.made_from("f" * 64) == []


def test_pip_takes_exactly_our_wheel_where_a_higher_version_is_offered(tmp_path: Path) -> None:
    house = Wheelhouse(tmp_path / "house")
    wheel = make_wheel(tmp_path / "made", "1.0+cu130")
    entry = entry_of(wheel, "1.0+cu130")
    house.add(wheel, entry, {}, [])
    house.write_pins([entry])
    public = tmp_path / "public"
    make_wheel(public, "2.0")
    make_wheel(public, "1.0")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--require-hashes",
               "--find-links", str(house.root), "--find-links", str(public), "--target", str(tmp_path / "site"),
               "-r", str(house.root / "requirements.txt")]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "site" / "demo_kernels-1.0+cu130.dist-info").is_dir()
    make_wheel(house.root, "1.0+cu130", text="tampered")
    tampered = subprocess.run([*command, "--upgrade"], check=False, capture_output=True, text=True)
    assert tampered.returncode != 0
    assert "HASHES" in tampered.stderr


def test_pins_hold_the_newest_of_each_distribution(tmp_path: Path) -> None:
    house = Wheelhouse(tmp_path)
    old, new = (make_wheel(tmp_path, version) for version in ("1.0+cu130", "1.1+cu130"))
    house.write_pins([entry_of(old, "1.0+cu130"), entry_of(new, "1.1+cu130")])
    assert "demo-kernels==1.1+cu130" in (tmp_path / "constraints.txt").read_text()
    assert "1.0+cu130" not in (tmp_path / "uv.toml").read_text()
