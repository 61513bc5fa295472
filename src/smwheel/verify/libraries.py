"""W3: libraries: who brings each one that is needed, whether their CUDA majors agree, and what must not be bundled."""

from __future__ import annotations

import ast
import posixpath
import re
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from smwheel.verify.registry import check
from smwheel.verify.verdict import Problem
from smwheel.wheels.sonames import cuda_majors, owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from smwheel.verify.expectations import Expectations
    from smwheel.verify.subject import Library, Subject

# System libraries of C functions that kernel packages need, with the apt and the dnf package that brings each.
SYSTEM_PACKAGES: Mapping[str, tuple[str, str]] = {
    "libnuma.so.1": ("libnuma1", "numactl-libs"),
    "libibverbs.so.1": ("libibverbs1", "libibverbs"),
    "libmlx5.so.1": ("ibverbs-providers", "libibverbs"),
    "librdmacm.so.1": ("librdmacm1", "librdmacm"),
    "libgomp.so.1": ("libgomp1", "libgomp"),
    "libz.so.1": ("zlib1g", "zlib"),
    "libzstd.so.1": ("libzstd1", "libzstd"),
}
_FILE_NAME = re.compile(r"(lib[\w+-]+?)(?:-[0-9a-f]{8})?\.so(\.\d+)?")


@check(
    "W301",
    "Every library needed is in the wheel, comes with a declared dependency, the driver or the C library, or is a "
    "system library that the recipe declares.",
    cure="declare the library in the recipe (system needs with their packages, or needed patterns), build without it, "
    "or let the wheel bring it",
)
def needed_is_brought(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Say of each NEEDED name who brings it."""
    required = {requirement.name for requirement in requirements(subject)}
    brought = {"libc", "driver"} | ({"torch", "cuda"} if "torch" in required else set())
    if any(name.startswith(("nvidia-", "cuda-")) for name in required):
        brought.add("cuda")
    declared = {need.library: need for need in expect.system}
    bundled = _bundled(subject)
    for library in subject.libraries:
        missing: list[str] = []
        for soname in library.facts.needed:
            if soname in bundled:
                yield from _reachable(library, soname, bundled[soname])
            elif soname in declared:
                need = declared[soname]
                yield f"{library.name} needs the system library {soname}: apt {need.apt}, dnf {need.dnf}"
            elif not (owner(soname) in brought or any(fnmatchcase(soname, pattern) for pattern in expect.needed)):
                missing.append(soname)
        yield from _unbrought(library, missing)


def _unbrought(library: Library, sonames: list[str]) -> Iterator[Problem]:
    torch = [soname for soname in sonames if owner(soname) == "torch"]
    cuda = [soname for soname in sonames if owner(soname) == "cuda"]
    if torch:
        yield Problem(
            f"needs {', '.join(torch)}, and the wheel does not require torch",
            library.name,
            cure="add torch, pinned to the minor built against, to Requires-Dist",
        )
    if cuda:
        yield Problem(
            f"needs {', '.join(cuda)}, and nothing that the wheel requires brings it",
            library.name,
            cure="require torch, or the NVIDIA package that brings it",
        )
    for soname in sonames:
        if soname in torch or soname in cuda:
            continue
        apt, dnf = SYSTEM_PACKAGES.get(soname, ("", ""))
        packages = f" (system library: apt package {apt}, dnf package {dnf})" if apt else ""
        yield Problem(
            f"needs {soname}, which nothing declared brings{packages}",
            library.name,
            cure=f"declare it in the recipe's system needs with apt = {apt!r}, dnf = {dnf!r}, or build without it"
            if apt
            else "",
        )


def _reachable(library: Library, soname: str, target: str) -> Iterator[Problem]:
    here = posixpath.dirname(library.name)
    for path in (*library.facts.rpath, *library.facts.runpath):
        expanded = path.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", here or ".")
        if posixpath.normpath(expanded) == (posixpath.dirname(target) or "."):
            return
    yield Problem(
        f"needs {soname}, which the wheel holds as {target}, and no RPATH leads there",
        library.name,
        cure="set the RPATH to $ORIGIN/… when linking, or repair the wheel",
    )


def _bundled(subject: Subject) -> dict[str, str]:
    """Return the wheel's own libraries by the names that others can need them under."""
    found = {library.base: library.name for library in subject.libraries}
    for library in subject.libraries:
        if library.facts.soname:
            found.setdefault(library.facts.soname, library.name)
    return found


def requirements(subject: Subject) -> list[Requirement]:
    """Return what METADATA requires without an extra, names normalised; what cannot be parsed is left out."""
    found = []
    for text in subject.wheel.metadata.get_all("Requires-Dist") or []:
        try:
            requirement = Requirement(str(text))
        except InvalidRequirement:
            continue
        if requirement.marker is None or "extra" not in str(requirement.marker):
            requirement.name = canonicalize_name(requirement.name)
            found.append(requirement)
    return found


@check(
    "W302",
    "All files, and the Python code that loads libraries by name, want one CUDA major, and it is the stack's.",
    cure="build with the stack's CUDA, or verify with the stack that the wheel was built for (--stack)",
    needs=("cuda",),
)
def one_cuda_major(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Compare the majors in NEEDED names and in the Python code with the stack's."""
    due = int(expect.cuda_major)
    for library in subject.libraries:
        wrong: dict[int, list[str]] = defaultdict(list)
        for soname in library.facts.needed:
            for major in cuda_majors([soname]) - {due}:
                wrong[major].append(soname)
        for major, sonames in wrong.items():
            yield Problem(
                f"needs {', '.join(sonames)} of CUDA {major}, and the stack has CUDA {due} (torch {expect.torch})",
                library.name,
            )
    for name in subject.wheel.members:
        majors = _majors_in_code(subject.text(name)) if name.endswith(".py") else set[int]()
        if majors and due not in majors:
            yield Problem(
                f"loads libraries of CUDA {', '.join(map(str, sorted(majors)))} by name, and the stack has CUDA {due}",
                name,
                cure="derive the major from torch.version.cuda",
            )


def _majors_in_code(source: str) -> set[int]:
    """Return the CUDA majors of libraries that Python code names in a text of its own (comments do not count)."""
    if ".so." not in source:
        return set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()  # code for another Python: it loads nothing here
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return cuda_majors(text.rpartition("/")[2] for text in texts if isinstance(text, str))


@check(
    "W303",
    "Nothing of torch, CUDA or the driver is in the wheel.",
    cure="exclude it when repairing (smwheel's repair does); NVIDIA's and torch's own packages bring it",
)
def nothing_bundled_by_mistake(subject: Subject, _: Expectations) -> Iterable[Problem | str]:
    """Look at the names of the files, without the hash that auditwheel adds to what it grafts."""
    for library in subject.libraries:
        match = _FILE_NAME.match(library.base)
        soname = f"{match[1]}.so{match[2] or ''}" if match else library.base
        if owner(soname) in ("torch", "cuda", "driver"):
            size = subject.digests[library.name][1]
            yield Problem(f"({size / 1e6:.1f} MB) belongs to torch, CUDA or the driver", library.name)


@check(
    "W304",
    "No RPATH leads out of the environment: only $ORIGIN, never the build machine or a driver stub.",
    cure="link without -rpath, or with $ORIGIN/… only; -L of the stub directory belongs to the link, not the RPATH",
)
def rpath_stays_inside(subject: Subject, _: Expectations) -> Iterable[Problem | str]:
    """Look at RPATH and RUNPATH."""
    for library in subject.libraries:
        for path in (*library.facts.rpath, *library.facts.runpath):
            if "stubs" in path.split("/"):
                yield Problem(f"its RPATH {path} leads to a driver stub, which fails every call", library.name)
            elif not path.startswith(("$ORIGIN", "${ORIGIN}")):
                yield Problem(f"its RPATH {path} leads to the machine that it was built on", library.name)
