"""D4: libraries: CUDA's majors, and whether each library needed would be found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smwheel.doctor.case import joined
from smwheel.doctor.finding import Found, NotSeen, look_for
from smwheel.wheels.elf import ElfFacts
from smwheel.wheels.sonames import cuda_majors, owner

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from smwheel.doctor.case import Case
    from smwheel.doctor.packages import Package
    from smwheel.wheels.inspect import Library


def _path(package: Package, library: Library) -> Path | None:
    return package.site / library.name if package.site else None


def _majors(case: Case, package: Package) -> set[int]:
    """Return the CUDA majors that a package's import needs, if no variant of it needs torch's own."""
    torch = case.environment.torch
    if torch is None or torch.cuda_major is None:
        return set()
    each = [cuda_majors(one.facts.needed) for one in case.opened(package) if one.facts]
    each = [majors for majors in each if majors]
    return set() if any(torch.cuda_major in majors for majors in each) else set().union(*each)


@look_for("D401", "The package is built for another CUDA major than torch.")
def cuda_majors_mixed(case: Case) -> Iterable[Found]:
    """Compare the numbers in the names of the CUDA libraries needed with torch's CUDA."""
    torch = case.environment.torch
    for package in case.packages:
        majors = _majors(case, package)
        wrong = _foreign(case, package, majors)
        if torch is None or not majors or all(found for _, found in wrong):
            continue
        needed = ", ".join(soname for soname, _ in wrong)
        yield Found(
            f"{package.title} is built for CUDA {joined(sorted(map(str, majors)))}, but torch {torch.version} uses "
            f"CUDA {torch.cuda_major}. Not found will be: {needed}.",
            f"Installing CUDA {min(majors)} beside it would load two CUDA runtimes into one process; the package "
            f"must be "
            "of torch's CUDA.",
            _of_this_cuda(case, package),
            package.name,
        )


def _foreign(case: Case, package: Package, majors: set[int]) -> list[tuple[str, Path | None]]:
    """Return the libraries of these CUDA majors that a package's import needs, with where they would be found."""
    found = {}
    for library in case.opened(package):
        for soname in library.facts.needed if library.facts else ():
            if cuda_majors([soname]) & majors:
                found[soname] = case.loading.find(
                    soname, _path(package, library), library.facts or ElfFacts(machine="")
                )
    return sorted(found.items())


def _of_this_cuda(case: Case, package: Package) -> str:
    if package.known is None:
        return f"install the build of {package.name} for CUDA {case.environment.torch and case.environment.torch.cuda}"
    return case.build(package.known.recipe)


@look_for("D402", "Two CUDA runtimes would be loaded into one process.")
def two_runtimes(case: Case) -> Iterable[Found]:
    """Look for packages whose libraries of another CUDA major are found, beside torch's own."""
    torch = case.environment.torch
    for package in case.packages:
        majors = _majors(case, package)
        wrong = _foreign(case, package, majors)
        if torch is None or not majors or package.known is None or not all(found for _, found in wrong):
            continue  # a package that is not known may be used in a process of its own
        yield Found(
            f"{package.title} loads CUDA {joined(sorted(map(str, majors)))} into a process where {torch.title} has "
            f"loaded "
            f"CUDA {torch.cuda_major} ({wrong[0][0]} is found as {wrong[0][1]}).",
            "Two CUDA runtimes do not share streams and memory: errors appear elsewhere, e.g. 'nvrtc: failed to open "
            "libnvrtc-builtins' or a crash.",
            _of_this_cuda(case, package),
            package.name,
        )


@look_for("D403", "A library that the package needs is missing (libnvrtc, libcudart, libnuma, libcuda, …).")
def library_missing(case: Case) -> Iterable[Found | NotSeen]:
    """Look where each library needed would be found once torch is imported."""
    torch = case.environment.torch
    if torch is None or not torch.cuda:
        return  # D201 and D202 say what is missing then
    driver_needed: list[str] = []
    for package in case.packages:
        missing: dict[str, Library] = {}
        for library in case.opened(package):
            for soname in library.facts.needed if library.facts else ():
                if _is_judged(case, package, soname) and not case.loading.find(
                    soname, _path(package, library), library.facts or ElfFacts(machine="")
                ):
                    missing.setdefault(soname, library)
        if any(owner(soname) == "driver" for soname in missing):
            driver_needed.append(package.title)
        for soname, library in missing.items():
            if owner(soname) != "driver":
                yield _missing(case, package, soname, library)
    if driver_needed and case.machine.driver.gpus:
        yield Found(
            f"libcuda.so.1, the driver's library, is not found, although the GPU is there: {joined(driver_needed)} "
            f"cannot "
            "be loaded.",
            "nvidia-smi works and the loader does not know where the driver's library lies.",
            "sudo ldconfig  # or add the directory of libcuda.so.1 to LD_LIBRARY_PATH",
        )
    elif driver_needed:
        yield NotSeen(
            f"Importing {joined(driver_needed)} was not tried: this machine has no NVIDIA driver (libcuda.so.1)."
        )


def _is_judged(case: Case, package: Package, soname: str) -> bool:
    """Say whether a name that is not found is a fault: not the C library's, not what other findings tell.

    What packages that are not known load may be there to be tried only, and they may know where it lies.
    """
    torch = case.environment.torch
    majors = cuda_majors([soname])
    if owner(soname) in ("libc", "torch") or (majors and torch and torch.cuda_major not in majors):
        return False
    if package.known is None:
        return bool(majors) and case.loading.unreachable(soname) is None
    return soname not in {one.name.rpartition("/")[2] for one in package.libraries}


def _missing(case: Case, package: Package, soname: str, library: Library) -> Found:
    why, cure = _how_to_bring(case, package, soname)
    return Found(
        f"{package.title} cannot be loaded: the library {soname} is missing ({library.name} needs it).",
        f"{why} A loader that tries several files hides this behind 'could not load any … library'.",
        cure,
        package.name,
    )


def _how_to_bring(case: Case, package: Package, soname: str) -> tuple[str, str]:
    """Return who brings a library that is missing, and the command."""
    pip, torch = case.environment.pip, case.environment.torch
    system, lies, known = (
        case.knowledge.system.get(soname),
        case.loading.unreachable(soname),
        case.knowledge.bringer(soname),
    )
    if system:
        return (
            f"It is a system library that no Python package brings; reinstalling {package.name} changes nothing.",
            f"apt-get install {system.apt} (Debian, Ubuntu), or dnf install {system.dnf} (Fedora, RHEL)",
        )
    if lies:
        return (
            f"It lies in the environment as {lies}, where neither torch nor the package looks for it.",
            f"export LD_LIBRARY_PATH={lies.parent}  # before the program is started",
        )
    if known:
        release = (
            f"=={torch.cuda}.*" if torch and not known.endswith(("-cu12", "-cu13")) and owner(soname) == "cuda" else ""
        )
        return f"The Python package {known} brings it, and is not installed.", f"{pip} install '{known}{release}'"
    if owner(soname) == "cuda" and torch:
        return (
            "A package of NVIDIA brings it, which torch requires.",
            f"{pip} install --force-reinstall torch=={torch.version}",
        )
    return (
        "Neither the package nor anything that is loaded before it brings this library.",
        f"apt-file search {soname} (Debian, Ubuntu), or dnf provides '*/{soname}', and install what it names",
    )
