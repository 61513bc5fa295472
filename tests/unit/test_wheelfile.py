from __future__ import annotations

import csv
import io
import stat
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from smwheel.errors import MalformedError, UsageError
from smwheel.wheels.wheelfile import Wheel, record_digest, rewrite_wheel, write_wheel
from smwheel.wheels.wheelname import WheelName, expand_tags, tag_text

TAG = "cp310-abi3-manylinux_2_28_x86_64"


def make(directory: Path, **changes: object) -> Path:
    tool = directory / "tool.sh"
    tool.parent.mkdir(parents=True, exist_ok=True)
    tool.write_bytes(b"#!/bin/sh\n")
    tool.chmod(0o700)
    arguments: dict[str, object] = {
        "distribution": "Kernel-Ops",
        "version": "1.2+cu130.sm120a",
        "tags": [TAG],
        "files": [
            ("kernel_ops/__init__.py", b"answer = 42\n" * 1000),
            ("kernel_ops/empty.py", b""),
            ("kernel_ops/tool.sh", tool),
            ("kernel_ops-1.2+cu130.sm120a.data/scripts/run", b"#!python\n"),
        ],
        "headers": [("Summary", "Ops"), ("Requires-Dist", "torch==2.14.*")],
        "description": "# Ops\n\nVersion: not this line\n",
        "extra_dist_info": {"plan.json": b"{}"},
    }
    return write_wheel(directory, **(arguments | changes))  # type: ignore[arg-type]


def assert_record_is_true(path: Path) -> None:
    with Wheel(path) as wheel:
        rows = {row.path: row for row in wheel.record}
        assert set(rows) == set(wheel.members)
        for name, row in rows.items():
            if name.endswith("/RECORD"):
                assert (row.digest, row.size) == ("", None)
            else:
                assert (row.digest, row.size) == record_digest(wheel.stream(name))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = make(tmp_path)
    assert path.name == f"kernel_ops-1.2+cu130.sm120a-{TAG}.whl"
    with Wheel(path) as wheel:
        assert wheel.dist_info == "kernel_ops-1.2+cu130.sm120a.dist-info"
        assert wheel.metadata["Name"] == "Kernel-Ops"
        assert wheel.metadata["Version"] == "1.2+cu130.sm120a"
        assert wheel.metadata.get_all("Requires-Dist") == ["torch==2.14.*"]
        assert wheel.metadata.get_payload() == "# Ops\n\nVersion: not this line\n"
        assert wheel.wheel["Root-Is-Purelib"] == "false"
        assert wheel.tags == wheel.name.tags == expand_tags([TAG])
        assert wheel.read("kernel_ops/__init__.py") == b"answer = 42\n" * 1000
        assert b"".join(wheel.stream("kernel_ops/__init__.py", chunk=7)) == b"answer = 42\n" * 1000
        assert list(wheel.members)[-1] == f"{wheel.dist_info}/RECORD"
        modes = {name: stat.S_IMODE(info.external_attr >> 16) for name, info in wheel.members.items()}
    assert modes["kernel_ops/tool.sh"] == 0o755
    assert modes["kernel_ops/__init__.py"] == 0o644
    assert_record_is_true(path)
    assert [child.name for child in tmp_path.iterdir() if child.name.startswith(".")] == []


def test_pip_installs_it(tmp_path: Path) -> None:
    path = make(tmp_path)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "to"),
    ]
    subprocess.run([*command, str(path)], check=True)
    assert (tmp_path / "to/kernel_ops/__init__.py").is_file()


def test_same_content_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make(tmp_path / "a").read_bytes()
    tool = tmp_path / "b" / "tool.sh"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    tool.parent.mkdir()
    files = [
        ("kernel_ops-1.2+cu130.sm120a.data/scripts/run", b"#!python\n"),
        ("kernel_ops/tool.sh", tool),
        ("kernel_ops/empty.py", b""),
        ("kernel_ops/__init__.py", b"answer = 42\n" * 1000),
    ]
    assert make(tmp_path / "b", files=files).read_bytes() == first
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    dated = make(tmp_path / "c")
    assert dated.read_bytes() != first
    assert zipfile.ZipFile(dated).infolist()[0].date_time == (2023, 11, 14, 22, 13, 20)


def test_a_pure_wheel(tmp_path: Path) -> None:
    path = make(tmp_path, tags=["py3-none-any"], entry_points="[console_scripts]\nrun = kernel_ops:run\n")
    with Wheel(path) as wheel:
        assert wheel.wheel["Root-Is-Purelib"] == "true"
        assert b"kernel_ops:run" in wheel.read(f"{wheel.dist_info}/entry_points.txt")


def test_rewrite_changes_every_place(tmp_path: Path) -> None:
    source = make(tmp_path / "a")
    new_tag = "cp310-abi3-manylinux_2_34_x86_64"
    path = rewrite_wheel(
        source,
        tmp_path / "b",
        version="1.2+other",
        tags=[new_tag],
        replace={"kernel_ops/empty.py": b"x = 1\n"},
        remove=["kernel_ops/tool.sh"],
        extra_dist_info={"NOTICE": b"changed\n"},
    )
    assert path.name == f"kernel_ops-1.2+other-{new_tag}.whl"
    with Wheel(path) as wheel:
        assert wheel.dist_info == "kernel_ops-1.2+other.dist-info"
        assert wheel.metadata["Version"] == "1.2+other"
        assert wheel.metadata.get_payload() == "# Ops\n\nVersion: not this line\n"
        assert wheel.wheel.get_all("Tag") == [new_tag]
        assert wheel.read("kernel_ops/empty.py") == b"x = 1\n"
        assert "kernel_ops/tool.sh" not in wheel.members
        assert "kernel_ops-1.2+other.data/scripts/run" in wheel.members
        assert f"{wheel.dist_info}/plan.json" in wheel.members
        assert f"{wheel.dist_info}/NOTICE" in wheel.members
    assert_record_is_true(path)


def test_rewriting_nothing_gives_the_same_bytes(tmp_path: Path) -> None:
    source = make(tmp_path / "a")
    assert rewrite_wheel(source, tmp_path / "b").read_bytes() == source.read_bytes()


def test_rewrite_refuses_to_remove_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MalformedError, match=r"no member nothing\.py"):
        rewrite_wheel(make(tmp_path / "a"), tmp_path / "b", remove=["nothing.py"])
    assert not (tmp_path / "b").exists()


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        make(tmp_path, files=[("a", b"1"), ("b", tmp_path / "missing")])
    assert [path.name for path in tmp_path.iterdir()] == ["tool.sh"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": [("../evil.py", b"")]}, "outside the installation"),
        ({"files": [("/evil.py", b"")]}, "outside the installation"),
        ({"files": [("a\\..\\evil.py", b"")]}, "outside the installation"),
        ({"files": [("a", b""), ("a", b"")]}, "two files"),
        ({"tags": ["nonsense"]}, "no wheel tag"),
        ({"tags": ["py3-none-any", "cp310-abi3-linux_x86_64"]}, "no file name can say"),
        ({"version": "not a version"}, "no version"),
        ({"headers": [("Summary", "a\nVersion: 2")]}, "line break"),
        ({"headers": [("Requires-Dist", "torch ~ 2")]}, "not valid"),
        ({"extra_dist_info": {"METADATA": b""}}, "written by itself"),
    ],
)
def test_writing_what_is_not_valid(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        make(tmp_path, **changes)
    assert list(tmp_path.glob("*.whl")) == []


def crafted(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil", "a/../../evil", "c:evil", "a\\evil"])
def test_reading_refuses_names_that_lead_out(tmp_path: Path, name: str) -> None:
    path = crafted(tmp_path / "a-1-py3-none-any.whl", [(name, b""), ("a-1.dist-info/METADATA", b"")])
    with pytest.raises(MalformedError, match="outside the installation"):
        Wheel(path)


def test_reading_refuses_symbolic_links(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("a/link.py")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(MalformedError, match="symbolic link"):
        Wheel(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_reading_refuses_two_members_of_one_name(tmp_path: Path) -> None:
    path = crafted(tmp_path / "a-1-py3-none-any.whl", [("a.py", b"1"), ("a.py", b"2")])
    with pytest.raises(MalformedError, match="two members"):
        Wheel(path)


@pytest.mark.parametrize("folders", [[], ["a-1.dist-info", "b-1.dist-info"]])
def test_reading_wants_one_metadata_directory(tmp_path: Path, folders: list[str]) -> None:
    path = crafted(tmp_path / "a-1-py3-none-any.whl", [(f"{folder}/METADATA", b"") for folder in folders])
    with pytest.raises(MalformedError, match=f"has {len(folders)} .dist-info"):
        Wheel(path)


def test_no_zip(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(MalformedError, match="no readable zip"):
        Wheel(path)
    with pytest.raises(UsageError, match="there is no such file"):
        Wheel(tmp_path / "b-1-py3-none-any.whl")


def test_a_damaged_member(tmp_path: Path) -> None:
    path = make(tmp_path, files=[("kernel_ops/a.bin", bytes(range(256)) * 100)])
    with Wheel(path) as wheel:
        info = wheel.members["kernel_ops/a.bin"]
        data = bytearray(path.read_bytes())
        data[info.header_offset + 30 + len("kernel_ops/a.bin") + info.compress_size // 2] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(MalformedError, match="damaged"):
            list(wheel.stream("kernel_ops/a.bin"))


def test_a_member_larger_than_it_claims_is_cut_off(tmp_path: Path) -> None:
    path = make(tmp_path, files=[("kernel_ops/bomb", bytes(50 << 20))])
    data = bytearray(path.read_bytes())
    with Wheel(path) as wheel:
        start = data.index(b"PK\1\2")
        struct.pack_into("<I", data, start + 24, 10)
    path.write_bytes(data)
    with Wheel(path) as wheel:
        pieces = wheel.stream("kernel_ops/bomb")
        with pytest.raises(MalformedError, match="damaged"):
            next(pieces)


def test_a_huge_metadata_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smwheel.wheels.wheelfile.MAX_METADATA", 100)
    with Wheel(make(tmp_path)) as wheel, pytest.raises(MalformedError, match="claims"):
        _ = wheel.metadata


@pytest.mark.parametrize("record", [b"a,b\n", b"a,b,c\n", b"\xff,,\n"])
def test_no_record(tmp_path: Path, record: bytes) -> None:
    path = crafted(tmp_path / "a-1-py3-none-any.whl", [("a-1.dist-info/RECORD", record)])
    with Wheel(path) as wheel, pytest.raises(MalformedError, match="is no RECORD"):
        _ = wheel.record


@pytest.mark.parametrize("name", ["a.whl", "a-1-py3-none-any.zip", "a-x-py3-none-any.whl", "a-1-py3.whl"])
def test_no_wheel_name(name: str) -> None:
    with pytest.raises(MalformedError, match="not named as a wheel"):
        WheelName.parse(name)


def test_names_with_commas_survive_record(tmp_path: Path) -> None:
    path = make(tmp_path, files=[('kernel_ops/a,"b".py', b"")])
    with Wheel(path) as wheel:
        text = wheel.read(f"{wheel.dist_info}/RECORD").decode()
    assert 'kernel_ops/a,"b".py' in [row[0] for row in csv.reader(io.StringIO(text))]


def test_extract(tmp_path: Path) -> None:
    with Wheel(make(tmp_path / "a")) as wheel:
        wheel.extract(tmp_path / "b")
    assert (tmp_path / "b/kernel_ops/tool.sh").stat().st_mode & 0o111
    assert (tmp_path / "b/kernel_ops/__init__.py").read_bytes() == b"answer = 42\n" * 1000


def test_tag_text_round_trip() -> None:
    assert tag_text(expand_tags(["py2.py3-none-any"])) == "py2.py3-none-any"
