"""Shared objects made by the system's C compiler: what a test needs of names, libraries and versions."""

from __future__ import annotations

import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def make_so(
    path: Path,
    *,
    asks: Iterable[str] = (),
    brings: Iterable[str] = (),
    needed: Iterable[str] = (),
    versions: Mapping[str, str] | None = None,
    soname: str = "",
    rpath: str = "",
    fatbin: bytes | None = None,
    flags: Iterable[str] = (),
) -> Path:
    """Link `path`.

    `asks` are undefined symbols, `brings` exported ones, `needed` sonames; `versions` maps a version name
    like `GLIBCXX_3.4.30` to the soname that it is asked of; `fatbin` becomes the section `.nv_fatbin`.
    """
    options = [*flags]
    options += [f"-Wl,-soname,{soname}"] if soname else []
    options += [f"-Wl,-rpath,{rpath}"] if rpath else []
    asked = tuple((versions or {}).items())
    path.write_bytes(_linked(tuple(asks), tuple(brings), tuple(needed), asked, fatbin, tuple(options)))
    return path


@cache
def _linked(
    asks: tuple[str, ...],
    brings: tuple[str, ...],
    needed: tuple[str, ...],
    versions: tuple[tuple[str, str], ...],
    fatbin: bytes | None,
    options: tuple[str, ...],
) -> bytes:
    by_library: dict[str, list[str]] = {name: [] for name in needed}
    for version, library in versions:
        by_library.setdefault(library, []).append(version)
    stubs = [_stub(name, tuple(asked)) for name, asked in by_library.items()]
    calls = [*asks, *(_symbol(version) for version, _ in versions)]
    source = "".join(f"void {name}(void);\n" for name in calls)
    source += "".join(f"void {name}(void) {{}}\n" for name in brings)
    source += "void made_for_a_test(void) {" + "".join(f"{name}();" for name in calls) + "}\n"
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        if fatbin is not None:
            (work / "fatbin").write_bytes(fatbin)
            source += (
                f'__asm__(".section .nv_fatbin,\\"a\\"\\n.balign 8\\n.incbin \\"{work}/fatbin\\"\\n.previous\\n");\n'
            )
        (work / "source.c").write_text(source)
        base = ["gcc", "-shared", "-fPIC", "-nostdlib", "-w", "-o", f"{work}/made", f"{work}/source.c"]
        subprocess.run([*base, *options, "-Wl,--no-as-needed", *map(str, stubs)], check=True)
        return (work / "made").read_bytes()


def _symbol(version: str) -> str:
    return "of_" + version.replace(".", "_")


_STUBS = tempfile.TemporaryDirectory(prefix="stubs-")


@cache
def _stub(soname: str, versions: tuple[str, ...]) -> Path:
    work = Path(tempfile.mkdtemp(dir=_STUBS.name))
    made, source, script = work / soname, work / "stub.c", work / "stub.map"
    source.write_text("".join(f"void {_symbol(version)}(void) {{}}\n" for version in versions))
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{soname}", "-o", str(made), str(source)]
    if versions:
        script.write_text("".join(f"{version} {{ global: {_symbol(version)}; }};\n" for version in versions))
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True)
    return made
