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
from smwheel.wheels.torchsymbols import is_torch_library

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from smwheel.verify.expectations import Expectations
    from smwheel.verify.subject import Library, Subject

# What every system that a manylinux tag allows brings: the C library, the compiler's run time, the C++ library.
LIBC_OWN = frozenset(
    {
        *("libc.so.6", "libm.so.6", "libmvec.so.1", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libutil.so.1"),
        *("libanl.so.1", "libresolv.so.2", "libnsl.so.1", "libgcc_s.so.1", "libstdc++.so.6", "libatomic.so.1"),
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    }
)
DRIVER = re.compile(r"lib(cuda|nvidia-ml|nvidia-ptxjitcompiler|cudadebugger)\.so\.\d+")
# Libraries of the CUDA toolkit and of NVIDIA's packages beside it, which pip installs as dependencies of torch.
CUDA = re.compile(
    r"lib(cudart|cublas|cublasLt|nvblas|nvrtc|nvrtc-builtins|nvJitLink|cufft|curand|cusparse|cusparseLt|cusolver"
    r"|cusolverMg|cufile|cupti|nvToolsExt|cudnn\w*|nccl|nvshmem_host|nvfatbin)\.so\.\d+"
)
# Of these the number in the name is the CUDA major; others (cuFFT, cuSPARSE, …) count for themselves.
NUMBERED_BY_CUDA = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvrtc-builtins|nvJitLink)\.so\.(\d+)")
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
# Names that only torch, the driver or NVIDIA's packages may install; auditwheel adds a hash before the suffix.
_NEVER_BUNDLED = re.compile(
    r"lib(torch\w*|c10\w*|shm|cuda|nvidia-ml|cudart|cublas|cublasLt|nvrtc\S*|nvJitLink|cufft|curand|cusparse|cusparseLt"
    r"|cusolver|cufile|cupti|cudnn\w*|nccl|nvshmem_host)(-[0-9a-f]{8})?\.so(\.\S+)?"
)


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
    torch = "torch" in required
    cuda = torch or any(name.startswith(("nvidia-", "cuda-")) for name in required)
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
            elif not (
                soname in LIBC_OWN
                or DRIVER.fullmatch(soname)
                or (torch and is_torch_library(soname))
                or (cuda and CUDA.fullmatch(soname))
                or any(fnmatchcase(soname, pattern) for pattern in expect.needed)
            ):
                missing.append(soname)
        yield from _unbrought(library, missing)


def _unbrought(library: Library, sonames: list[str]) -> Iterator[Problem]:
    ours = [soname for soname in sonames if is_torch_library(soname)]
    cuda = [soname for soname in sonames if CUDA.fullmatch(soname)]
    if ours:
        yield Problem(
            f"needs {', '.join(ours)}, and the wheel does not require torch",
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
        if soname in ours or soname in cuda:
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
    due = expect.cuda_major
    for library in subject.libraries:
        wrong: dict[str, list[str]] = defaultdict(list)
        for soname in library.facts.needed:
            numbered = NUMBERED_BY_CUDA.fullmatch(soname)
            if numbered and numbered[1] != due:
                wrong[numbered[1]].append(soname)
        for major, sonames in wrong.items():
            yield Problem(
                f"needs {', '.join(sonames)} of CUDA {major}, and the stack has CUDA {due} (torch {expect.torch})",
                library.name,
            )
    for name in subject.wheel.members:
        majors = _majors_in_code(subject.text(name)) if name.endswith(".py") else set()
        if majors and due not in majors:
            yield Problem(
                f"loads libraries of CUDA {', '.join(sorted(majors))} by name, and the stack has CUDA {due}",
                name,
                cure="derive the major from torch.version.cuda",
            )


def _majors_in_code(source: str) -> set[str]:
    """Return the CUDA majors of libraries that Python code names in a text of its own (comments do not count)."""
    if ".so." not in source:
        return set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()  # code for another Python: it loads nothing here
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    matches = (NUMBERED_BY_CUDA.fullmatch(text.rpartition("/")[2]) for text in texts if isinstance(text, str))
    return {match[1] for match in matches if match}


@check(
    "W303",
    "Nothing of torch, CUDA or the driver is in the wheel.",
    cure="exclude it when repairing (smwheel's repair does); NVIDIA's and torch's own packages bring it",
)
def nothing_bundled_by_mistake(subject: Subject, _: Expectations) -> Iterable[Problem | str]:
    """Look at the names of the files."""
    for library in subject.libraries:
        if _NEVER_BUNDLED.fullmatch(library.base):
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
