from __future__ import annotations

import io
import random
import subprocess
from typing import TYPE_CHECKING

import pytest
from sofiles import make_so

from smwheel.errors import MalformedError
from smwheel.wheels.elf import ElfFacts, ElfStream, Unseen, platform_tag, policy_floor, read_elf

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_so(
        tmp_path_factory.mktemp("elf") / "ops.abi3.so",
        asks=["PyType_FromSpec", "_PyErr_Print", "_ZN3c105ErrorEv"],
        brings=["PyInit_ops"],
        needed=["libcudart.so.13", "libc10.so"],
        versions={
            "GLIBC_2.27": "libc.so.6",
            "GLIBCXX_3.4.22": "libstdc++.so.6",
            "CXXABI_1.3.9": "libstdc++.so.6",
        },
        soname="ops.abi3.so",
        rpath="$ORIGIN/../torch/lib:/stubs",
    )


def test_facts(library: Path) -> None:
    facts = read_elf(library)
    assert facts.machine in ("x86_64", "aarch64")
    assert facts.soname == "ops.abi3.so"
    assert facts.needed == ("libcudart.so.13", "libc10.so", "libc.so.6", "libstdc++.so.6")
    assert facts.rpath + facts.runpath == ("$ORIGIN/../torch/lib", "/stubs")
    assert facts.version("GLIBC") == "2.27"
    assert facts.version("GLIBCXX") == "3.4.22"
    assert facts.version("CXXABI") == "1.3.9"
    assert facts.python_symbols == {"PyType_FromSpec", "_PyErr_Print"}
    assert "_ZN3c105ErrorEv" in facts.undefined
    assert "PyInit_ops" in facts.exported
    assert facts.asked_of["of_GLIBC_2_27"] == "libc.so.6"
    assert facts.asked_of["of_GLIBCXX_3_4_22"] == "libstdc++.so.6"
    assert "PyType_FromSpec" not in facts.asked_of


def test_every_way_of_reading_gives_the_same(library: Path) -> None:
    data = library.read_bytes()
    facts = read_elf(library)
    assert read_elf(data) == facts
    assert read_elf(io.BytesIO(data)) == facts
    for step in (64, 4096, len(data)):
        stream = ElfStream(where="ops")
        for at in range(0, len(data), step):
            stream.feed(data[at : at + step])
        assert stream.facts() == facts


def test_symbols_equal_what_nm_says(library: Path) -> None:
    printed = subprocess.run(["nm", "-D", "-u", str(library)], check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].partition("@")[0] for line in printed.splitlines() if line.split()[-2] == "U"}
    assert read_elf(library).undefined == names


@pytest.mark.parametrize("style", ["gnu", "sysv"])
def test_symbols_without_section_headers(library: Path, tmp_path: Path, style: str) -> None:
    made = make_so(
        tmp_path / "a.so",
        asks=["wanted"],
        brings=[f"given{i}" for i in range(40)],
        flags=[f"-Wl,--hash-style={style}"],
    )
    data = bytearray(made.read_bytes())
    whole = read_elf(bytes(data))
    data[40:48] = bytes(8)  # e_shoff
    data[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
    assert read_elf(bytes(data)) == whole


def test_stream_says_when_a_table_was_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smwheel.wheels.elf.STREAM_HEAD", 640)
    stream = ElfStream()
    data = make_so(tmp_path / "a.so", fatbin=bytes(1 << 18)).read_bytes()
    for at in range(0, len(data), 512):
        stream.feed(data[at : at + 512])
    with pytest.raises(Unseen):
        stream.facts()


@pytest.mark.parametrize(
    ("versions", "minor"),
    [
        ({}, 17),
        ({"GLIBC": (2, 14)}, 17),
        ({"GLIBC": (2, 27)}, 27),
        ({"GLIBC": (2, 2, 5), "GLIBCXX": (3, 4, 22)}, 24),
        ({"GLIBCXX": (3, 4, 21)}, 24),
        ({"GLIBC": (2, 34), "GLIBCXX": (3, 4, 30)}, 35),
        ({"CXXABI": (1, 3, 13)}, 34),
        ({"GCC": (3, 0)}, 17),
    ],
)
def test_policy(versions: dict[str, tuple[int, ...]], minor: int) -> None:
    assert ElfFacts(machine="x86_64", versions=versions).policy_minor == minor
    assert policy_floor([ElfFacts(machine="x86_64", versions=versions)]) == f"manylinux_2_{minor}_x86_64"


def test_policy_of_an_unknown_future() -> None:
    with pytest.raises(MalformedError, match=r"GLIBCXX_3\.4\.99"):
        _ = ElfFacts(machine="x86_64", versions={"GLIBCXX": (3, 4, 99)}).policy_minor


def test_packed_relocations_need_glibc_2_36(tmp_path: Path) -> None:
    made = make_so(tmp_path / "a.so", versions={"GLIBC_ABI_DT_RELR": "libc.so.6", "GLIBC_PRIVATE": "libc.so.6"})
    facts = read_elf(made)
    assert facts.version("GLIBC") == "2.36"
    assert facts.private == ("GLIBC_PRIVATE",)


def test_platform_tag(tmp_path: Path, library: Path) -> None:
    text = tmp_path / "a.py"
    text.write_text("pass")
    assert platform_tag([text]) == "any"
    assert platform_tag([text, library]).startswith("manylinux_2_27_")


def test_files_of_two_machines_have_no_tag() -> None:
    with pytest.raises(MalformedError, match="different machines: aarch64, x86_64"):
        policy_floor([ElfFacts(machine="x86_64"), ElfFacts(machine="aarch64")])


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"not an elf file", b"\x7fELF\x01\x01\x01" + bytes(60)])
def test_no_elf_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(data)
    with pytest.raises(MalformedError, match=r"x\.so"):
        read_elf(path)


@pytest.mark.parametrize(
    ("limit", "said"),
    [("MAX_TABLE", "claims a DT_"), ("MAX_TAGS", "more than 3 dynamic tags"), ("MAX_SECTIONS", "sections")],
)
def test_what_a_file_may_claim_is_bounded(
    library: Path, monkeypatch: pytest.MonkeyPatch, limit: str, said: str
) -> None:
    monkeypatch.setattr(f"smwheel.wheels.elf.{limit}", 3)
    with pytest.raises(MalformedError, match=said):
        read_elf(library)


def test_damage_gives_one_kind_of_error(library: Path) -> None:
    original = library.read_bytes()
    dice = random.Random(1)
    for _ in range(300):
        data = bytearray(original)
        for _ in range(dice.randint(1, 8)):
            data[dice.randrange(min(len(data), 3000))] = dice.randrange(256)
        try:
            read_elf(bytes(data[: dice.randint(100, len(data))]))
        except MalformedError:
            continue
