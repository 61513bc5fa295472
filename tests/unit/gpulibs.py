"""Links small shared objects that hold fat binaries as nvcc's do, with the system's compiler and any linker."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

SOURCE = """
#include <cstddef>
#include <cstring>
#include <stdexcept>
extern "C" {
struct Record { unsigned magic, version; const void *region; void *unused; };
extern Record __start_records[] __attribute__((visibility("hidden")));
extern Record __stop_records[] __attribute__((visibility("hidden")));
size_t regions() { return __stop_records - __start_records; }
const void *region(size_t i) { return __start_records[i].region; }
const char *text() { return "read-only data before the GPU code"; }
int throws_through(int x) {
    try { if (x > 1) throw std::runtime_error("x"); return 0; } catch (const std::exception &) { return x; }
}
}
"""

# The linker's start and stop symbols exist only for sections with C names: this marks where the records are.
RECORD = """
.section .nv_fatbin,"a",@progbits
.balign {align}
fatbin{i}:
.incbin "{file}"
.balign 8
.section .nvFatBinSegment,"aw",@progbits
.balign 8
record{i}:
.long 0x466243b1
.long {version}
.quad fatbin{i}
.quad 0
"""


@cache
def _host_object() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="gpulibs-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "host.cc").write_text(SOURCE)
    command = ["g++", "-c", "-fPIC", "-O1", "-o", "host.o", "host.cc"]
    subprocess.run(command, cwd=directory, check=True)
    return directory / "host.o"


def build(
    directory: Path,
    regions: list[bytes],
    *flags: str,
    extra: str = "",
    version: int = 1,
    strip: bool = True,
    align: int = 8,
    name: str = "lib.so",
) -> Path:
    """Link a library with these regions; skips the test if the machine lacks the linker."""
    if not shutil.which("g++"):
        pytest.skip("no C++ compiler")
    directory.mkdir(parents=True, exist_ok=True)
    assembly = []
    for i, content in enumerate(regions):
        file = directory / f"region{i}.bin"
        file.write_bytes(content)
        assembly.append(RECORD.format(i=i, file=file, version=version, align=align))
    if not regions:
        assembly.append(".data\nrecord0:\n.quad 0\n")
    last = len(regions) * 24
    assembly.append(
        ".globl __start_records\n.hidden __start_records\n.set __start_records, record0\n"
        f".globl __stop_records\n.hidden __stop_records\n.set __stop_records, record0 + {last}\n"
        '.section .note.GNU-stack,"",@progbits\n' + extra
    )
    (directory / "code.s").write_text("".join(assembly))
    target = directory / name
    command = ["g++", "-shared", "-o", str(target), str(_host_object()), "code.s", *flags]
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if "cannot find" in result.stderr or "unrecognized" in result.stderr:
        pytest.skip(f"not to be had here: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    if strip:
        subprocess.run(["strip", str(target)], check=True)
    return target
