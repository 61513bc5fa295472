"""Repair with the real auditwheel: only what must be grafted is, and the tag is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpufiles import region_for
from sofiles import make_so
from wheelmaker import GOOD, OPS, failures, ops, wheel

from smwheel.errors import BuildError, SystemNeedError
from smwheel.wheels.elf import read_elf
from smwheel.wheels.repair import repair_wheel, to_graft
from smwheel.wheels.wheelfile import Wheel

if TYPE_CHECKING:
    from pathlib import Path


def no_auditwheel(*_: object, **__: object) -> None:
    pytest.fail("auditwheel was called although there is nothing to graft")


def test_nothing_to_graft_only_retags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """packaging-problems#684: a linux_x86_64 wheel gets the tag that its symbols earn, in every place."""
    monkeypatch.setattr("smwheel.wheels.repair._graft", no_auditwheel)
    monkeypatch.setenv("SMWHEEL_CACHE", str(tmp_path / "cache"))
    made = ops(tmp_path / "so", versions={"GLIBC_2.27": "libc.so.6"})
    path = repair_wheel(wheel(tmp_path, [(OPS, made)], tags=["cp310-abi3-linux_x86_64"]), tmp_path / "out")
    assert path.name.endswith("-cp310-abi3-manylinux_2_27_x86_64.whl")
    assert failures(path, GOOD) == {}
    assert [child.name for child in (tmp_path / "out").iterdir()] == [path.name]


def test_a_pure_wheel_stays_as_it_is(tmp_path: Path) -> None:
    source = wheel(tmp_path, [("ops/a.py", b"")], tags=["py3-none-any"])
    assert repair_wheel(source, tmp_path / "out").read_bytes() == source.read_bytes()


def test_torch_cuda_and_the_driver_are_not_grafted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytorch/ao PR#2927: each of these lies on the search path, and none may end up in the wheel."""
    theirs = ["libtorch.so", "libc10.so", "libcudart.so.13", "libcuda.so.1", "libcublas.so.13", "libnccl.so.2"]
    found = tmp_path / "found"
    found.mkdir()
    for soname in [*theirs, "libhelper.so.3"]:
        make_so(found / soname, brings=["help_out"], soname=soname)
    made = ops(tmp_path / "so", needed=[*theirs, "libhelper.so.3"])
    source = wheel(tmp_path, [(OPS, made)], tags=["cp310-abi3-linux_x86_64"])
    path = repair_wheel(source, tmp_path / "out", search=[found])
    with Wheel(path) as repaired:
        libraries = [name for name in repaired.members if ".libs/" in name]
        assert len(libraries) == 1
        assert libraries[0].startswith("ops.libs/libhelper-")
        repaired.extract(tmp_path / "x", [OPS])
    facts = read_elf(tmp_path / "x" / OPS)
    assert set(theirs) <= set(facts.needed)
    assert facts.rpath + facts.runpath == ("$ORIGIN/../../ops.libs",)
    monkeypatch.setenv("SMWHEEL_CACHE", str(tmp_path / "cache"))
    assert set(failures(path, GOOD)) <= {"W107", "W201", "W202"}  # the helper is no part of this recipe


def test_what_the_recipe_declares_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smwheel.wheels.repair._graft", no_auditwheel)
    made = make_so(tmp_path / "a.so", needed=["libnuma.so.1"], fatbin=region_for("120a"))
    source = wheel(tmp_path, [(OPS, made)])
    assert repair_wheel(source, tmp_path / "out", leave=["libnuma.so.*"]).is_file()


def test_a_library_that_is_nowhere(tmp_path: Path) -> None:
    made = make_so(tmp_path / "a.so", needed=["libnowhere.so.7"])
    with pytest.raises(BuildError, match=r"cannot graft libnowhere\.so\.7"):
        repair_wheel(wheel(tmp_path, [(OPS, made)]), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_no_auditwheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_so(tmp_path / "a.so", needed=["libnowhere.so.7"])
    source = wheel(tmp_path, [(OPS, made)])
    monkeypatch.setattr("smwheel.wheels.repair.shutil.which", lambda *_, **__: None)
    with pytest.raises(SystemNeedError, match="auditwheel is not there"):
        repair_wheel(source, tmp_path / "out")


def test_what_the_wheel_holds_itself_is_not_grafted(tmp_path: Path) -> None:
    one = make_so(tmp_path / "a.so", needed=["libown.so.1", "libc.so.6"])
    two = make_so(tmp_path / "b.so", soname="libown.so.1")
    assert to_graft({"ops/a.so": read_elf(one), "ops/b.so": read_elf(two)}, ()) == ()
    assert to_graft({"ops/a.so": read_elf(one)}, ()) == ("libown.so.1",)
