from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import gpufiles
import gpulibs
import pytest

from smwheel.arch import Arch
from smwheel.errors import MalformedError
from smwheel.wheels import fatbin
from smwheel.wheels.cut import thin_file
from smwheel.wheels.fatbin import Kind
from smwheel.wheels.image import PT_LOAD, Image

if TYPE_CHECKING:
    from pathlib import Path

GPU = Arch.parse("120")
CODES = ("80", "90", "90a", "100f", "120a")


def big(code: str, number: int, size: int = 20_000) -> bytes:
    payload = random.Random(f"{code} {number}").randbytes(size + 8 * number)
    return gpufiles.entry(code, payload)


def regions(count: int = 3, codes: tuple[str, ...] = CODES) -> list[bytes]:
    return [gpufiles.region(*(big(code, number) for code in codes)) for number in range(count)]


def payloads(path: Path) -> list[tuple[str, bytes]]:
    data = path.read_bytes()
    return [
        (entry.arch.code, data[entry.payload_offset : entry.payload_offset + entry.payload_size])
        for entry in fatbin.list_entries(path)
    ]


def readelf(path: Path) -> str:
    result = subprocess.run(["readelf", "-aW", path], capture_output=True, text=True, check=True)
    return "\n".join(line for line in result.stderr.splitlines() if "Warning" in line or "Error" in line)


PROBE = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.region.restype = ctypes.c_void_p
lib.region.argtypes = [ctypes.c_size_t]
lib.text.restype = ctypes.c_char_p
assert lib.text() == b"read-only data before the GPU code"
assert lib.throws_through(7) == 7
for i in range(lib.regions()):
    start = lib.region(i)
    size = ctypes.c_uint64.from_address(start + 8).value
    print(ctypes.string_at(start, 16 + size).hex())
"""


def loaded(path: Path) -> list[bytes]:
    """Load a library in a fresh process; what the pointers in its records point to."""
    run = subprocess.run([sys.executable, "-c", PROBE, path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return [bytes.fromhex(line) for line in run.stdout.split()]


LINKERS = {
    "bfd": (),
    "bfd, code with data": ("-Wl,-z,noseparate-code",),
    "bfd, 2 MB pages": ("-Wl,-z,max-page-size=0x200000",),
    "bfd, packed relocations": ("-Wl,-z,pack-relative-relocs",),
    "gold": ("-fuse-ld=gold",),
    "lld": ("-fuse-ld=lld",),
    "lld, packed relocations": ("-fuse-ld=lld", "-Wl,--pack-dyn-relocs=relr"),
    "lld, 2 MB pages": ("-fuse-ld=lld", "-Wl,-z,max-page-size=0x200000"),
    "mold": ("-fuse-ld=mold",),
    "bfd, not stripped": (),
    "no build id": ("-Wl,--build-id=none",),
}


@pytest.mark.parametrize("linker", LINKERS)
def test_cut_file_is_smaller_loads_and_points_at_what_was_kept(tmp_path: Path, linker: str) -> None:
    source = gpulibs.build(tmp_path, regions(), *LINKERS[linker], strip=linker == "bfd")
    target = tmp_path / "thin.so"
    outcome = thin_file(source, target, GPU)
    assert outcome.method == "cut", outcome.reason
    assert outcome.kept == Counter({(Kind.CUBIN, Arch.parse("120a")): 3})
    assert outcome.dropped.total() == 12
    assert target.stat().st_size == outcome.after < outcome.before - 200_000
    assert payloads(target) == [pair for pair in payloads(source) if pair[0] == "120a"]
    assert loaded(target) == [gpufiles.region(big("120a", number)) for number in range(3)]
    assert readelf(target) == readelf(source)
    for segment in Image.read(target.read_bytes(), where="x").segments:
        if segment.kind == PT_LOAD:
            assert (segment.address - segment.offset) % segment.align == 0, "loaders may refuse it"


def test_pointer_whose_value_is_not_its_relocations_is_not_understood(tmp_path: Path) -> None:
    source = gpulibs.build(tmp_path, regions())
    data = bytearray(source.read_bytes())
    image = Image.read(data, where="x")
    (records,) = (section for section in image.sections if section.name == ".nvFatBinSegment")
    data[records.offset + 8 : records.offset + 16] = (12345).to_bytes(8, "little")
    source.write_bytes(data)
    outcome = thin_file(source, tmp_path / "thin.so", GPU)
    assert (outcome.method, outcome.reason) == (
        "zero-filled",
        "a pointer to GPU code does not hold what its relocation says",
    )


def test_tools_still_work_on_a_cut_file(tmp_path: Path) -> None:
    target = tmp_path / "thin.so"
    thin_file(gpulibs.build(tmp_path, regions(), strip=False), target, GPU)
    for command in (["strip", target], ["objcopy", target], ["objcopy", "--add-section", f"x={__file__}", target]):
        subprocess.run(command, check=True)
        assert len(loaded(target)) == 3


def test_every_byte_outside_the_gpu_code_and_the_tables_is_the_original(tmp_path: Path) -> None:
    source = gpulibs.build(tmp_path, regions())
    target = tmp_path / "thin.so"
    thin_file(source, target, GPU)
    for section in (".text", ".rodata", ".eh_frame", ".dynsym", ".dynstr", ".dynamic", ".data.rel.ro", ".comment"):
        assert section_bytes(source, section) == section_bytes(target, section), section


def section_bytes(path: Path, name: str) -> bytes:
    result = subprocess.run(["readelf", "-x", name, path], capture_output=True, check=True)
    return re.sub(rb"from.*", b"", result.stdout)


REFUSED = {
    "relocatable device code: not shown to launch after a cut": {"version": 2},
    "not match one to one": {"extra": '.section .data,"aw"\n.balign 8\n.quad fatbin0\n'},
    "middle of GPU code": {"extra": '.section .data,"aw"\n.balign 8\n.quad fatbin0 + 64\n'},
    "a symbol names a place": {"extra": ".globl named\n.set named, fatbin0\n"},
    "plain read-only data": {"extra": '.section .nv_fatbin,"aw",@progbits\n'},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_understood_is_zero_filled_and_says_why(tmp_path: Path, reason: str) -> None:
    options = REFUSED[reason]
    if "plain" in reason:
        build_writable = gpulibs.RECORD.replace('.nv_fatbin,"a"', '.nv_fatbin,"aw"')
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpulibs, "RECORD", build_writable)
            source = gpulibs.build(tmp_path, regions())
    else:
        source = gpulibs.build(tmp_path, regions(), **options)
    target = tmp_path / "thin.so"
    outcome = thin_file(source, target, GPU)
    assert outcome.method == "zero-filled"
    assert reason in outcome.reason
    assert outcome.after == outcome.before
    assert payloads(target) == [pair for pair in payloads(source) if pair[0] == "120a"]
    assert loaded(target) == [gpufiles.region(big("120a", number)) for number in range(3)]
    assert readelf(target) == readelf(source)
    before, after = source.read_bytes(), target.read_bytes()
    (section,) = fatbin.find_sections(before, where="x")
    assert after[: section.offset] == before[: section.offset]
    assert after[section.end :] == before[section.end :]
    assert after.count(0) > before.count(0) + 100_000


def test_relocatable_device_code_section_is_zero_filled(tmp_path: Path) -> None:
    (tmp_path / "rdc.bin").write_bytes(regions(1)[0])
    extra = f'.section __nv_relfatbin,"a",@progbits\n.balign 8\n.incbin "{tmp_path}/rdc.bin"\n'
    source = gpulibs.build(tmp_path, regions(), extra=extra)
    outcome = thin_file(source, tmp_path / "thin.so", GPU)
    assert outcome.method == "zero-filled"
    assert outcome.kept == Counter({(Kind.CUBIN, Arch.parse("120a")): 4})
    assert len(loaded(tmp_path / "thin.so")) == 3


def test_file_that_holds_nothing_else_is_copied(tmp_path: Path) -> None:
    source = gpulibs.build(tmp_path, regions(codes=("120a",)))
    outcome = thin_file(source, tmp_path / "thin.so", GPU)
    assert outcome.method == "unchanged"
    assert (tmp_path / "thin.so").read_bytes() == source.read_bytes()


def test_region_left_empty_stays_a_region(tmp_path: Path) -> None:
    source = gpulibs.build(tmp_path, [*regions(1), *regions(1, codes=("80", "90"))])
    outcome = thin_file(source, tmp_path / "thin.so", GPU)
    assert outcome.method == "cut"
    assert loaded(tmp_path / "thin.so") == [gpufiles.region(big("120a", 0)), gpufiles.region()]


@pytest.mark.parametrize(
    ("gpu", "kept"),
    [("90", ["90", "90a"]), ("89", ["80"]), ("120a", ["120a"]), ("121", ["ptx90"]), ("103", ["100f"])],
)
@pytest.mark.parametrize("keep_ptx", [True, False])
def test_keeps_what_the_gpu_could_load(tmp_path: Path, gpu: str, kept: list[str], keep_ptx: bool) -> None:
    ptx = gpufiles.entry("90", b"ptx" * 9000, kind=gpufiles.PTX)
    region = gpufiles.region(*(big(code, 0) for code in CODES), ptx)
    source = gpulibs.build(tmp_path, [region])
    outcome = thin_file(source, tmp_path / "thin.so", Arch.parse(gpu), ptx=keep_ptx)
    names = [("ptx" if kind is Kind.PTX else "") + arch.code for kind, arch in outcome.kept]
    compiles = Arch.parse("90").ptx_runs_on(Arch.parse(gpu))
    assert sorted(names) == sorted({*kept, "ptx90"} if keep_ptx and compiles else kept)


def test_result_is_the_same_every_time(tmp_path: Path) -> None:
    source = gpulibs.build(tmp_path, regions())
    for name in ("a.so", "b.so"):
        thin_file(source, tmp_path / name, GPU)
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()


def test_mutated_files_are_cut_zero_filled_or_refused(tmp_path: Path) -> None:
    data = gpulibs.build(tmp_path, regions(2, codes=("90", "120a"))).read_bytes()
    source = random.Random(7)
    seen = Counter[str]()
    for number in range(150):
        path, target = tmp_path / "m.so", tmp_path / f"t{number}.so"
        path.write_bytes(mutated_tables(source, data))
        try:
            seen[thin_file(path, target, GPU).method] += 1
        except MalformedError:
            seen["refused"] += 1
            assert not target.exists()
        target.unlink(missing_ok=True)
    assert len(seen) >= 3, seen


def mutated_tables(source: random.Random, data: bytes) -> bytes:
    """Mutate the header, the program headers or the section headers: what the cut goes by."""
    table = int.from_bytes(data[40:48], "little")
    if source.random() < 0.5:
        return gpufiles.mutate(source, data[:1024])[:1024].ljust(1024, b"\0") + data[1024:]
    return data[:table] + gpufiles.mutate(source, data[table:])
