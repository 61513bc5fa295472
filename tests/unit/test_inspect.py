from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import venv
from pathlib import Path

import gpufiles
import gpulibs
import jsonschema
import pytest

from smwheel.arch import Arch
from smwheel.cli import main
from smwheel.errors import SystemNeedError, UsageError
from smwheel.wheels import skeleton
from smwheel.wheels.fatbin import Kind
from smwheel.wheels.inspect import inspect
from smwheel.wheels.wheelfile import write_wheel

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "inspect.schema.json").read_text())


def valid(*found: object) -> dict[str, object]:
    document = {"inspected": [one.as_json() for one in found]}  # type: ignore[attr-defined]
    jsonschema.validate(document, SCHEMA)
    return document


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("tree")

    def region(*codes: str) -> bytes:
        return gpufiles.region(*(gpufiles.entry(code, random.Random(code).randbytes(30_000)) for code in codes))

    ptx = gpufiles.region(gpufiles.entry("90", b"ptx", kind=gpufiles.PTX), gpufiles.entry("80", b"x"))
    gpulibs.build(base / "pkg", [region("90", "120a")] * 2, name="ops.abi3.so")
    gpulibs.build(base / "pkg", [region("80", "90")], name="flash.cpython-310-x86_64-linux-gnu.so")
    gpulibs.build(base / "pkg", [ptx], name="some.so.1.2")
    for left in (base / "pkg").iterdir():
        if ".so" not in left.name:
            left.unlink()
    (base / "pkg" / "script.so").write_text("INPUT(-lops)\n")
    return base


@pytest.fixture
def wheel(tmp_path: Path, tree: Path) -> Path:
    files = [(str(path.relative_to(tree)), path) for path in tree.rglob("*.so*")]
    return write_wheel(
        tmp_path,
        distribution="fat-pkg",
        version="1.0",
        tags=["cp310-abi3-manylinux2014_x86_64"],
        files=files,
        headers=[("Requires-Dist", "torch==2.14.1"), ("Requires-Python", ">=3.10")],
    )


def test_wheel_is_read_without_unpacking_its_gpu_code(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    unpack = skeleton.unpack

    def watched(stream, path, leave_out, *, where):  # type: ignore[no-untyped-def]
        unpack(stream, path, leave_out, where=where)
        written.append(path.stat().st_blocks * 512)

    monkeypatch.setattr(skeleton, "unpack", watched)
    found = inspect(str(wheel))
    valid(found)
    libraries = {library.name: library for library in found.libraries}
    assert set(libraries) == {"pkg/ops.abi3.so", "pkg/flash.cpython-310-x86_64-linux-gnu.so", "pkg/some.so.1.2"}
    ops = libraries["pkg/ops.abi3.so"]
    assert ops.code == {(Kind.CUBIN, Arch.parse("90")): 2, (Kind.CUBIN, Arch.parse("120a")): 2}
    assert (ops.python, libraries["pkg/flash.cpython-310-x86_64-linux-gnu.so"].python) == ("abi3", "cp310")
    assert ops.packed is not None
    assert ops.packed > 30_000
    assert ops.facts is not None
    assert "libstdc++.so.6" in ops.facts.needed
    assert ops.glibc_floor == f"2.{ops.facts.policy_minor}"
    assert (found.distribution, found.version, found.torch) == ("fat-pkg", "1.0", "==2.14.1")
    assert max(written) <= 48 << 10 < ops.size, "payloads were written out"


def test_directory_file_and_wheel_tell_the_same(wheel: Path, tree: Path) -> None:
    packed = {library.name: library.code for library in inspect(str(wheel)).libraries}
    directory = inspect(str(tree))
    valid(directory)
    assert directory.kind == "directory"
    assert {library.name: library.code for library in directory.libraries} == packed
    one = inspect(str(tree / "pkg" / "ops.abi3.so"))
    valid(one)
    assert [library.code for library in one.libraries] == [packed["pkg/ops.abi3.so"]]


def test_which_gpus_and_with_what_is_one_sentence(wheel: Path) -> None:
    found = inspect(str(wheel))
    gpus = {gpu.code: without for gpu, without in found.gpus.items()}
    assert gpus["90"] == ()
    assert gpus["120"] == ("pkg/flash.cpython-310-x86_64-linux-gnu.so",)
    assert set(gpus["121"]) == {"pkg/ops.abi3.so", "pkg/flash.cpython-310-x86_64-linux-gnu.so"}
    assert "75" not in gpus
    assert found.sentence().startswith("Runs on GPUs of compute capability 9.0; ")
    assert "on 12.0 without flash" in found.sentence()


def test_torch_and_cuda_are_named_unless_they_are_in_it_themselves(tmp_path: Path) -> None:
    runtime = gpulibs.build(tmp_path / "r", [], "-Wl,-soname,libcudart.so.13", name="libcudart.so.13")
    torch = gpulibs.build(tmp_path / "t", [], "-Wl,-soname,libtorch_cpu.so", name="libtorch_cpu.so")
    region = gpufiles.region_for("90")
    user = gpulibs.build(tmp_path / "u", [region], "-Wl,--no-as-needed", str(runtime), str(torch), name="ops.so")
    end = ", with torch of a version it does not say and CUDA 13."
    assert inspect(str(user)).sentence() == "Runs on GPUs of compute capability 9.0" + end
    for path in (runtime, torch, user):
        (tmp_path / "all").mkdir(exist_ok=True)
        (tmp_path / "all" / path.name).write_bytes(path.read_bytes())
    assert inspect(str(tmp_path / "all")).sentence() == "Runs on GPUs of compute capability 9.0."


def test_bare_fat_binary(tmp_path: Path) -> None:
    path = tmp_path / "x.fatbin"
    path.write_bytes(gpufiles.region_for("120f"))
    found = inspect(str(path))
    valid(found)
    assert found.sentence() == "Runs on GPUs of compute capability 12.0, 12.1."


def test_library_without_gpu_code_and_nothing_at_all(tmp_path: Path) -> None:
    assert inspect(str(tmp_path)).sentence() == "Holds no compiled library."
    (tmp_path / "plain.so").write_bytes(gpulibs.build(tmp_path / "b", []).read_bytes())
    assert inspect(str(tmp_path / "plain.so")).sentence() == "Holds no GPU code."


def test_damaged_library_is_told_and_ends_with_its_own_exit_code(
    tmp_path: Path, tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray((tree / "pkg" / "ops.abi3.so").read_bytes())
    (tmp_path / "bad.so").write_bytes(data[: len(data) // 2])
    found = inspect(str(tmp_path))
    valid(found)
    assert "beyond the end" in found.libraries[0].error
    assert found.sentence().startswith("Cannot be told")
    assert "To do: get the file again" in found.sentence()
    monkeypatch.setattr(sys, "argv", ["smwheel", "inspect", str(tmp_path), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 15
    jsonschema.validate(json.loads(capsys.readouterr().out), SCHEMA)


def test_table_names_files_code_and_needs(
    wheel: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["smwheel", "inspect", str(wheel)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for part in ("fat-pkg 1.0", "pkg/ops.abi3.so", "90×2 120a×2", "ptx 90×1", "Runs on GPUs"):
        assert part in text


def test_installed_package_in_another_environment(tmp_path: Path, wheel: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, site], check=True)
    found = inspect("fat.pkg", python=tmp_path / "env")
    valid(found)
    assert found.kind == "installed"
    assert {library.name for library in found.libraries} == {
        "pkg/ops.abi3.so",
        "pkg/flash.cpython-310-x86_64-linux-gnu.so",
        "pkg/some.so.1.2",
    }
    assert found.torch == "==2.14.1"
    with pytest.raises(UsageError, match="no package 'absent'"):
        inspect("absent", python=tmp_path / "env" / "bin" / "python")


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def scandir(path: str) -> object:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(sys, "argv", ["smwheel", "inspect", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == SystemNeedError.exit_code
    assert str(tmp_path / "closed") in said.err
    assert "Holds no" not in said.out


def test_an_installed_package_that_lost_a_library_or_its_list_of_files(tmp_path: Path, wheel: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, site], check=True)
    (site / "pkg/ops.abi3.so").unlink()
    found = inspect("fat.pkg", python=tmp_path / "env")
    valid(found)
    assert [library.name for library in found.libraries if library.error] == ["pkg/ops.abi3.so"]
    assert "install the package again" in found.sentence()
    next(site.glob("*.dist-info/RECORD")).unlink()
    with pytest.raises(UsageError, match="kept no list of its files"):
        inspect("fat.pkg", python=tmp_path / "env")


@pytest.mark.parametrize("target", ["no/such/file.so", "absent.whl", "no-such-package-here"])
def test_what_is_not_there(target: str) -> None:
    with pytest.raises(UsageError):
        inspect(target)


def test_python_that_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Python that runs"):
        inspect("pkg", python=tmp_path)
