"""Shared objects made by the system's C compiler: what a test needs of names, libraries and versions."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


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
    work = path.parent / f".{path.name}.work"
    work.mkdir(parents=True)
    source = "".join(f"void {name}(void);\n" for name in asks)
    source += "".join(f"void {name}(void) {{}}\n" for name in brings)
    by_library: dict[str, list[str]] = {name: [] for name in needed}
    for version, library in (versions or {}).items():
        by_library.setdefault(library, []).append(version)
    stubs = [_stub(work, name, asked) for name, asked in by_library.items()]
    calls = [*asks, *(_symbol(version) for version in versions or {})]
    source += "".join(f"void {_symbol(version)}(void);\n" for version in versions or {})
    source += "void made_for_a_test(void) {" + "".join(f"{name}();" for name in calls) + "}\n"
    if fatbin is not None:
        blob = work / "fatbin"
        blob.write_bytes(fatbin)
        source += (
            f'__asm__(".section .nv_fatbin,\\"a\\"\\n.balign 8\\n.incbin \\"{blob}\\"\\n.previous\\n");\n'
        )
    code = work / "source.c"
    code.write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-w", "-o", str(path), str(code), *flags]
    command += [f"-Wl,-soname,{soname}"] if soname else []
    command += [f"-Wl,-rpath,{rpath}"] if rpath else []
    subprocess.run([*command, "-Wl,--no-as-needed", *map(str, stubs)], check=True)
    return path


def _symbol(version: str) -> str:
    return "of_" + version.replace(".", "_")


def _stub(work: Path, soname: str, versions: list[str]) -> Path:
    made, source, script = work / f"{soname}.stub", work / "stub.c", work / "stub.map"
    source.write_text("".join(f"void {_symbol(version)}(void) {{}}\n" for version in versions))
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{soname}", "-o", str(made), str(source)]
    if versions:
        script.write_text("".join(f"{version} {{ global: {_symbol(version)}; }};\n" for version in versions))
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True)
    return made
