from __future__ import annotations

import hashlib
import json
import os
import random
import re
import zipfile
from pathlib import Path

import gpufiles
import gpulibs
import pytest
from packaging.version import Version

from smwheel.arch import Arch
from smwheel.errors import ArchError, LicenceError, MalformedError
from smwheel.wheels import fatbin, thin
from smwheel.wheels.compare import compare
from smwheel.wheels.thin import Rules, Stub, thin_wheel
from smwheel.wheels.wheelfile import Wheel, rewrite_wheel, write_wheel

GPU = Arch.parse("120")
TAGS = ["cp310-abi3-manylinux2014_x86_64"]
STUB = Stub("pkg/flash.abi3.so", "pkg/flash.py", b"SUPPORTED = False\n", "its users import it")
RULES = Rules(
    stubs=(STUB,),
    drop={"pkg/sm90/*": "never opened"},
    licences={"LICENSE.cutlass.txt": b"BSD-3-Clause"},
    requires=("torch==2.14.*",),
    compiled="compile it",
)


def region(*codes: str, size: int = 30_000) -> bytes:
    return gpufiles.region(*(gpufiles.entry(code, random.Random(code).randbytes(size)) for code in codes))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("libraries")
    both, other = region("80", "90a", "120a"), region("80", "90a")
    return {
        "pkg/sm100/ops.abi3.so": gpulibs.build(base / "sm100", [both, both]),
        "pkg/sm90/ops.abi3.so": gpulibs.build(base / "sm90", [both]),
        "pkg/flash.abi3.so": gpulibs.build(base / "flash", [other]),
    }


def wheel_of(
    directory: Path, files: dict[str, Path], *, name: str = "fat-pkg", headers: list[tuple[str, str]] | None = None
) -> Path:
    return write_wheel(
        directory,
        distribution=name,
        version="0.4.10",
        tags=TAGS,
        files=[*files.items(), ("pkg/__init__.py", b"import torch\n"), ("pkg/notes.so.txt", b"not a library")],
        headers=headers or [("Summary", "kernels")],
        description="# Kernels\n",
        extra_dist_info={"licenses/LICENSE": b"Apache-2.0"},
    )


@pytest.fixture
def fat(tmp_path: Path, libraries: dict[str, Path]) -> Path:
    return wheel_of(tmp_path / "published", libraries)


def test_new_wheel_holds_the_targets_code_bit_for_bit(tmp_path: Path, fat: Path) -> None:
    report = thin_wheel(fat, tmp_path / "out", GPU, rules=RULES, cuda_tag="cu130")
    assert report.wheel.name.startswith("fat_pkg-0.4.10+cu130.sm120a.thin-cp310-abi3-manylinux_2_")
    actions = {file.name: file.action for file in report.files}
    assert actions == {
        "pkg/sm100/ops.abi3.so": "cut",
        "pkg/sm90/ops.abi3.so": "left out",
        "pkg/flash.abi3.so": "stub",
    }
    with Wheel(report.wheel) as wheel:
        assert set(wheel.members) >= {"pkg/sm100/ops.abi3.so", "pkg/flash.py", "pkg/__init__.py", "pkg/notes.so.txt"}
        assert not set(wheel.members) & {"pkg/sm90/ops.abi3.so", "pkg/flash.abi3.so"}
        assert wheel.read("pkg/flash.py") == STUB.content
        data = wheel.read("pkg/sm100/ops.abi3.so")
    entries = [entry for one in fatbin.read_regions(data, where="x") for entry in one.entries]
    assert [entry.arch.code for entry in entries] == ["120a", "120a"]
    for entry in entries:
        assert data[entry.payload_offset :].startswith(random.Random("120a").randbytes(30_000))
    assert report.wheel.stat().st_size < fat.stat().st_size / 3
    assert list((tmp_path / "out").iterdir()) == [report.wheel], "nothing else is left in the directory"


def test_new_wheel_is_honest_about_itself(tmp_path: Path, fat: Path) -> None:
    report = thin_wheel(fat, tmp_path / "out", GPU, rules=RULES)
    with Wheel(report.wheel) as wheel:
        info = wheel.dist_info
        metadata = wheel.metadata
        text = wheel.read(f"{info}/METADATA").decode()
        notice = wheel.read(f"{info}/licenses/NOTICE.thinned.txt").decode()
        said = thin.read_report(wheel)
        assert wheel.read(f"{info}/licenses/LICENSE") == b"Apache-2.0"
        assert wheel.read(f"{info}/licenses/LICENSE.cutlass.txt") == b"BSD-3-Clause"
    assert metadata["Name"] == "fat-pkg"
    assert metadata.get_all("Requires-Dist") == ["torch==2.14.*"]
    assert Version(metadata["Version"]) >= Version("0.4.10"), "what a program checks that asks for at least 0.4.10"
    for claim in ("cut down to GPU architecture 120", "That mends size, not faults", "- pkg/sm100/ops.abi3.so: cut"):
        assert claim in notice
        assert claim in text
    assert text.endswith("# Kernels\n")
    assert said["original"]["sha256"] == hashlib.sha256(fat.read_bytes()).hexdigest()


def test_requirement_that_is_stated_is_not_added(tmp_path: Path, libraries: dict[str, Path]) -> None:
    fat = wheel_of(tmp_path, libraries, headers=[("Requires-Dist", "torch==2.14.1")])
    report = thin_wheel(fat, tmp_path / "out", GPU, rules=RULES)
    with Wheel(report.wheel) as wheel:
        assert wheel.metadata.get_all("Requires-Dist") == ["torch==2.14.1"]


def test_wheel_of_which_nothing_is_known_keeps_every_file(tmp_path: Path, fat: Path) -> None:
    """A library left without code is still imported by something: it stays, and fails when called, as published."""
    report = thin_wheel(fat, tmp_path / "out", GPU)
    with Wheel(report.wheel) as new, Wheel(fat) as old:
        assert set(old.members) - set(new.members) == {f"{old.dist_info}/{name}" for name in (
            "METADATA", "WHEEL", "RECORD", "licenses/LICENSE")}  # fmt: skip
        assert fatbin.read_regions(new.read("pkg/flash.abi3.so"), where="x")[0].entries == ()


def test_library_with_code_for_the_target_is_not_replaced_by_its_stub(tmp_path: Path, fat: Path) -> None:
    report = thin_wheel(fat, tmp_path / "out", Arch.parse("90"), rules=Rules(stubs=(STUB,)))
    with Wheel(report.wheel) as wheel:
        assert "pkg/flash.abi3.so" in wheel.members
        assert "pkg/flash.py" not in wheel.members
    assert "+sm90a.thin-" in report.wheel.name


def test_same_wheel_gives_the_same_bytes(tmp_path: Path, fat: Path) -> None:
    one = thin_wheel(fat, tmp_path / "a", GPU, rules=RULES).wheel
    two = thin_wheel(fat, tmp_path / "b", GPU, rules=RULES).wheel
    assert one.read_bytes() == two.read_bytes()


def test_ptx_is_kept_beside_machine_code_on_request_and_the_version_says_so(tmp_path: Path) -> None:
    both = gpufiles.region(
        gpufiles.entry("120a", random.Random(1).randbytes(9000)), gpufiles.entry("90", b"ptx", kind=gpufiles.PTX)
    )
    fat = wheel_of(tmp_path, {"pkg/ops.so": gpulibs.build(tmp_path / "build", [both, region("80", "120a")])})
    without = thin_wheel(fat, tmp_path / "out", GPU)
    beside = thin_wheel(fat, tmp_path / "out", GPU, ptx=True)
    assert thin.code_json(without.kept) == {"120a": 2}
    assert thin.code_json(beside.kept) == {"120a": 2, "ptx 90": 1}
    assert "sm120a.thin-" in without.wheel.name
    assert "sm120a.thinptx-" in beside.wheel.name
    assert compare(fat, beside.wheel) == []


def test_absent_architecture_lists_what_there_is(tmp_path: Path, fat: Path) -> None:
    with pytest.raises(ArchError, match=r"holds nothing .* 100 can use; it holds 80, 90a, 120a") as caught:
        thin_wheel(fat, tmp_path / "out", Arch.parse("100"), rules=Rules(compiled="compile it: smwheel build x"))
    assert "smwheel build x" in caught.value.cure
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("name", "library", "headers"),
    [
        ("nvidia-cublas", "pkg/ops.so", None),
        ("bundler", "pkg/libcublasLt.so.13", None),
        ("bundler", "pkg/libnccl.so.2", None),
        ("closed", "pkg/ops.so", [("Classifier", "License :: Other/Proprietary License")]),
    ],
)
def test_nvidias_own_libraries_are_refused(
    tmp_path: Path, libraries: dict[str, Path], name: str, library: str, headers: list[tuple[str, str]] | None
) -> None:
    fat = wheel_of(tmp_path, {library: libraries["pkg/sm100/ops.abi3.so"]}, name=name, headers=headers)
    with pytest.raises(LicenceError):
        thin_wheel(fat, tmp_path / "out", GPU)


def test_damaged_library_is_named(tmp_path: Path, libraries: dict[str, Path]) -> None:
    data = bytearray(libraries["pkg/sm100/ops.abi3.so"].read_bytes())
    (section,) = fatbin.find_sections(bytes(data), where="x")
    data[section.offset + 16] = 77
    broken = tmp_path / "broken.so"
    broken.write_bytes(data)
    fat = wheel_of(tmp_path, {"pkg/ops.so": broken})
    with pytest.raises(MalformedError, match="unknown kind 77") as caught:
        thin_wheel(fat, tmp_path / "out", GPU)
    assert "pkg/ops.so" in caught.value.where


@pytest.fixture
def pair(tmp_path: Path, fat: Path) -> tuple[Path, Path]:
    return fat, thin_wheel(fat, tmp_path / "out", GPU, rules=RULES).wheel


def test_true_wheel_compares_equal(pair: tuple[Path, Path]) -> None:
    assert compare(*pair) == []


def test_zero_filled_wheel_compares_equal(tmp_path: Path) -> None:
    library = gpulibs.build(tmp_path / "l", [region("90", "120a")], version=2)
    fat = wheel_of(tmp_path, {"pkg/ops.so": library})
    report = thin_wheel(fat, tmp_path / "out", GPU)
    assert [file.action for file in report.files] == ["zero-filled"]
    assert compare(fat, report.wheel) == []


LIBRARY = "pkg/sm100/ops.abi3.so"


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def in_kept_code(data: bytes) -> bytes:
    return flipped(data, fatbin.read_regions(data, where="x")[0].entries[0].payload_offset + 100)


def in_the_program(data: bytes) -> bytes:
    return flipped(data, data.index(b"read-only data before"))


def in_the_hole(data: bytes) -> bytes:
    (section,) = fatbin.find_sections(data, where="x")
    return flipped(data, section.end + 2)


def in_rights(data: bytes) -> bytes:
    start = int.from_bytes(data[32:40], "little")
    return data[: start + 4] + b"\7" + data[start + 5 :]


def in_a_section_header(data: bytes) -> bytes:
    return flipped(data, int.from_bytes(data[40:48], "little") + 64 + 16)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (in_kept_code, "region 0: the sm_120a code is not the original's"),
        (in_the_program, "outside the GPU code"),
        (in_the_hole, "in the place of the GPU code that was cut out"),
        (in_rights, "other rights"),
        (in_a_section_header, "header of section"),
    ],
)
def test_changed_byte_in_a_library_is_found(tmp_path: Path, pair: tuple[Path, Path], change, says: str) -> None:  # type: ignore[no-untyped-def]
    original, thinned = pair
    with Wheel(thinned) as wheel:
        data = wheel.read(LIBRARY)
    forged = rewrite_wheel(thinned, tmp_path / "forged", replace={LIBRARY: change(data)})
    assert any(one.name == LIBRARY and says in one.what for one in compare(original, forged)), compare(original, forged)


def test_swapped_region_pointers_are_found(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    original, thinned = pair
    with Wheel(thinned) as wheel:
        data = wheel.read(LIBRARY)
    regions = fatbin.read_regions(data, where="x")
    one, two = (region.offset.to_bytes(8, "little") for region in regions)
    table = int.from_bytes(data[40:48], "little")  # the section headers behind name the same place: they stay
    swapped = re.sub(re.escape(one) + b"|" + re.escape(two), lambda m: two if m[0] == one else one, data[:table])
    swapped += data[table:]
    assert swapped != data
    forged = rewrite_wheel(thinned, tmp_path / "forged", replace={LIBRARY: swapped})
    assert [one.name for one in compare(original, forged)] == [LIBRARY]


def test_changed_missing_and_strange_files_are_found(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    original, thinned = pair
    with Wheel(thinned) as wheel:
        info = wheel.dist_info
        metadata = wheel.read(f"{info}/METADATA").replace(b"Summary: kernels", b"Summary: better kernels")
    forged = rewrite_wheel(
        thinned,
        tmp_path / "forged",
        replace={"pkg/__init__.py": b"import os\n", "pkg/new.py": b"", f"{info}/METADATA": metadata},
        remove=["pkg/notes.so.txt"],
        extra_dist_info={"entry_points.txt": b"[console_scripts]\nx = x:y\n"},
    )
    found = {one.name.rpartition("/")[2] for one in compare(original, forged)}
    assert found == {"__init__.py", "new.py", "METADATA", "notes.so.txt", "entry_points.txt"}


def test_another_original_is_found(tmp_path: Path, pair: tuple[Path, Path], libraries: dict[str, Path]) -> None:
    other = wheel_of(tmp_path / "other", libraries, headers=[("Summary", "others")])
    assert any("another original" in one.what for one in compare(other, pair[1]))


def test_wheel_not_made_by_thin_cannot_be_compared(fat: Path) -> None:
    with pytest.raises(MalformedError, match="not made by smwheel thin"):
        compare(fat, fat)


def test_report_is_json_of_what_was_done(tmp_path: Path, fat: Path) -> None:
    report = thin_wheel(fat, tmp_path / "out", GPU, rules=RULES)
    with zipfile.ZipFile(report.wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("thin.json")]
        inside = json.loads(archive.read(name))
    printed = report.as_json()
    assert {key: printed[key] for key in inside} == inside
    (kept,) = [file["kept"] for file in inside["files"] if file["kept"]]
    assert kept == {"120a": 2}


def test_a_wheel_that_is_not_what_it_says_is_refused(tmp_path: Path, fat: Path) -> None:
    with zipfile.ZipFile(fat) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    info = next(name for name in members if name.endswith("/METADATA"))
    spoilt = {
        "METADATA says other 9.9": members | {info: b"Metadata-Version: 2.1\nName: other\nVersion: 9.9\n"},
        "RECORD does not list pkg/stranger.py": members | {"pkg/stranger.py": b""},
    }
    for message, content in spoilt.items():
        path = tmp_path / "spoilt" / fat.name
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in content.items():
                archive.writestr(name, data)
        with pytest.raises(MalformedError, match=message):
            thin_wheel(path, tmp_path / "out", GPU)
    fifo = tmp_path / "pipe" / fat.name
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    with pytest.raises(MalformedError, match="no regular file"):
        Wheel(fifo)
