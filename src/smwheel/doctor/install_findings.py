"""D2: what is installed: whether the environment can be read, is whole, and its versions belong together."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from smwheel.doctor.case import joined
from smwheel.doctor.finding import Found, NotSeen, look_for
from smwheel.doctor.knowledge import matches
from smwheel.doctor.packages import is_ours
from smwheel.wheels.sonames import owner
from smwheel.wheels.wheelfile import Wheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from packaging.requirements import Requirement

    from smwheel.doctor.case import Case
    from smwheel.doctor.environment import Distribution
    from smwheel.doctor.packages import Package

HASH_BUDGET = 64 << 20
"""Bytes that are hashed at most; the rest is compared by size. 64 MiB take about 0.1 s."""
SMALL_FILE = 1 << 20
"""Files up to this size in bytes are hashed always."""
_LATER = 5.0
"""Seconds by which a file must be newer than RECORD to have been changed after the installation."""


@look_for("D201", "The environment cannot be read, or holds no torch.")
def environment_unusable(case: Case) -> Iterable[Found | NotSeen]:
    """Look for an interpreter that runs, and for torch where kernels are installed."""
    environment = case.environment
    if environment.problem and not environment.root.exists():
        yield Found(
            f"There is no such directory: {environment.root}.",
            "No environment can be judged without it.",
            f"check the path {environment.root}",
        )
    elif environment.problem:
        yield Found(
            f"The Python environment {environment.root} does not work: {environment.problem}.",
            "Nothing in it can start."
            + (" What lies in its directories was looked at nevertheless." if environment.sites else ""),
            "make the environment again, or name another one: smwheel doctor --env DIR",
        )
    needing = [one for one in case.packages if _needs_torch(one)]
    if needing and environment.torch is None and (environment.sites or not environment.problem):
        pin = next((str(one) for package in needing for one in package.requires if one.name == "torch"), "torch")
        yield Found(
            f"torch is not installed in {environment.root}, and {joined([one.title for one in needing])} needs it.",
            "Its libraries load torch's: without it they fail with 'libc10.so: cannot open shared object file'.",
            f"{environment.pip} install '{pin}'",
        )


def _needs_torch(package: Package) -> bool:
    return any(one.facts and any(owner(name) == "torch" for name in one.facts.needed) for one in package.libraries)


@look_for("D202", "torch is the build without CUDA.")
def torch_without_cuda(case: Case) -> Iterable[Found]:
    """Look at the CUDA that torch was built with."""
    torch = case.environment.torch
    needing = [one.title for one in case.packages if _needs_torch(one) and any(lib.code for lib in one.libraries)]
    if torch and not torch.cuda and needing:
        yield Found(
            f"torch {torch.version} is the build without CUDA, and {joined(needing)} needs the one with CUDA.",
            "Its libraries ask for libc10_cuda.so and libtorch_cuda.so, which only that build has; the first message "
            "may "
            "be about libnvrtc or libcudart instead.",
            f"{case.environment.pip} install --force-reinstall torch=={torch.version}  # from an index with CUDA",
        )


@look_for("D203", "An installed version is not the one that a package requires.")
def requirement_unmet(case: Case) -> Iterable[Found]:
    """Compare what kernels require, and what servers require of kernels and torch, with what is installed."""
    watched = {one.name for one in case.installed} | {"torch"}
    for title, requirement in _requirements(case):
        if requirement.name not in watched and not case.knowledge.package(requirement.name):
            continue
        have = _version(case, requirement.name)
        if have and not requirement.specifier.contains(have, prereleases=True):
            yield Found(
                f"{title} requires {requirement.name} {requirement.specifier}, and {requirement.name} {have} is "
                f"installed.",
                "It was built against, or is written for, exactly the version that it names.",
                f"{case.environment.pip} install '{requirement.name}{requirement.specifier}'",
                requirement.name,
            )


def _requirements(case: Case) -> Iterator[tuple[str, Requirement]]:
    for package in case.packages:
        for requirement in package.requires:
            yield package.title, requirement
    for server in case.knowledge.servers:
        distribution = case.environment.distributions.get(server.distribution)
        for requirement in distribution.requirements(case.environment.version) if distribution else ():
            yield (distribution.title if distribution else "", requirement)


def _version(case: Case, name: str) -> str:
    """Return what counts as installed: a wheel that is judged stands for its distribution."""
    judged = next((one.version for one in case.packages if one.name == name), "")
    distribution = case.environment.distributions.get(name)
    text = judged or (distribution.version if distribution else "")
    try:
        return str(Version(text))
    except InvalidVersion:
        return ""


@look_for("D204", "An editable install without its compiled library.")
def editable_without_library(case: Case) -> Iterable[Found]:
    """Look for the libraries without which the import fails in the source tree of an editable install."""
    for package in case.installed:
        tree = package.distribution.editable if package.distribution else None
        if tree is None or not package.known or package.choices or package.libraries:
            continue
        yield Found(
            f"{package.title} is installed in place from {tree}, and no compiled library is there.",
            "An editable install takes Python code from the source tree; its CUDA code must be built into that tree, "
            "and "
            "was not.",
            case.build(package.known.recipe),
            package.name,
        )


@look_for("D205", "Installed files are not those that the package recorded (RECORD).")
def files_changed(case: Case) -> Iterable[Found | NotSeen]:
    """Compare sizes of all recorded files, and hashes of small files, ours, and those changed after RECORD."""
    for package in case.installed:
        distribution = package.distribution
        if distribution is None or distribution.editable or package.known is None:
            continue
        if not distribution.record:
            yield NotSeen(f"whether the files of {package.title} are as installed: it has no RECORD")
            continue
        wrong, by_size = _compare(distribution)
        if by_size:
            yield NotSeen(f"{by_size} large files of {package.title} were compared by size only, not by hash")
        others = [
            one.title
            for one in case.installed
            if one is not package and one.distribution and _share(one.distribution, distribution)
        ]
        if not wrong or others:
            continue  # D206 says it of files that two distributions share
        ours = "The wheel made for this GPU was overwritten" if package.ours else "Its files were overwritten or lost"
        yield Found(
            f"{package.title} is not what is really there: {len(wrong)} of its files differ from what was installed, "
            f"e.g. "
            f"{wrong[0]}.",
            f"{ours}, by another wheel of the same package or by hand; its version number says nothing any more.",
            f"{case.environment.pip} install --force-reinstall --no-deps {package.name}=={package.version}"
            + ("  # from your wheelhouse" if package.ours else ""),
            package.name,
        )


def _compare(distribution: Distribution) -> tuple[list[str], int]:
    """Return the recorded files that are missing or differ, and how many large ones were compared by size only."""
    installed_at = (distribution.info / "RECORD").stat().st_mtime
    left, wrong, by_size = HASH_BUDGET, [], 0
    ours = is_ours(distribution.version)
    for row in sorted(distribution.record, key=lambda one: one.size or 0):
        path = distribution.site / row.path
        if not row.digest or row.size is None or row.path.endswith(".pyc"):
            continue
        try:
            status = path.stat()
        except OSError:
            wrong.append(row.path)
            continue
        later = status.st_mtime > installed_at + _LATER
        if status.st_size != row.size:
            wrong.append(row.path)
        elif (row.size <= SMALL_FILE or ours or later) and row.size <= left:
            left -= row.size
            if _digest(path.read_bytes()) != row.digest.rstrip("="):
                wrong.append(row.path)
        else:
            by_size += 1
    return sorted(wrong, key=lambda name: (not name.endswith(".so"), name)), by_size


def _digest(data: bytes) -> str:
    """Return a digest as RECORD spells it, without padding."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


@look_for("D206", "Two distributions have installed the same files: the later one replaced the first.")
def files_shared(case: Case) -> Iterable[Found]:
    """Look for files that two kernel packages record, and whose content is on the disk."""
    packages = [one for one in case.installed if one.distribution and one.known]
    for index, one in enumerate(packages):
        for other in packages[index + 1 :]:
            assert one.distribution is not None and other.distribution is not None  # noqa: S101, PT018 - selected above
            shared = _share(one.distribution, other.distribution)
            if not shared:
                continue
            lost = one if _compare(one.distribution)[0] else other
            kept = other if lost is one else one
            yield Found(
                f"{lost.title} was overwritten by {kept.title}: both install the same {len(shared)} files, e.g. "
                f"{shared[0]}.",
                "They are one package under two names; pip does not know, and lists both as installed.",
                f"{case.environment.pip} uninstall -y {lost.name} {kept.name} && {case.environment.pip} install "
                f"{_wanted(one, other)}",
                lost.name,
            )


def _share(one: Distribution, other: Distribution) -> list[str]:
    mine = {row.path for row in one.record if row.path.endswith((".so", ".py"))}
    return sorted(mine & {row.path for row in other.record}, key=lambda name: (not name.endswith(".so"), name))


def _wanted(one: Package, other: Package) -> str:
    first = max((one, other), key=lambda package: (package.ours, Version(package.version)))
    return f"{first.name}=={first.version}"


@look_for("D207", "What is installed is not the wheel that was given: another one took its place.")
def not_the_wheel(case: Case) -> Iterable[Found]:
    """Compare RECORD of what is installed with that of the wheel."""
    for package in case.wheels:
        distribution = case.environment.distributions.get(package.name)
        if distribution is None or package.wheel is None:
            continue
        with Wheel(package.wheel) as wheel:
            given = {row.path: row.digest for row in wheel.record if row.path.endswith((".so", ".py"))}
        have = {row.path: row.digest for row in distribution.record if row.path.endswith((".so", ".py"))}
        if given == have:
            continue
        public = package.ours and not is_ours(distribution.version)
        what = "the public wheel" if public else "another wheel"
        yield Found(
            f"{package.wheel.name} is not what is installed: {distribution.title} is {what} of the same package.",
            "A later installation replaced it; a program that asks for its version without the local part takes the "
            "public one from an index.",
            f"{case.environment.pip} install --force-reinstall --no-deps {package.wheel}",
            package.name,
        )


@look_for("D208", "Packages of one release have different versions.")
def released_apart(case: Case) -> Iterable[Found]:
    """Compare the public versions of distributions that belong together."""
    for rule in case.knowledge.together:
        found = [
            one
            for pattern in rule.distributions
            for one in case.environment.distributions.values()
            if matches(one.name, [pattern])
        ]
        found = list(dict.fromkeys(found))
        if len({one.public for one in found}) > 1:
            first, odd = found[0], next(one for one in found if one.public != found[0].public)
            override = case.machine.variables.get(rule.override) if rule.override else None
            more = f" {rule.override}={override} hides this." if override else ""
            yield Found(
                f"{odd.title} does not belong to {first.title}: their versions must be equal.",
                f"{rule.why[0].upper()}{rule.why[1:]}.{more}",
                f"{case.environment.pip} install --no-deps {odd.name}=={first.public}",
                odd.name,
            )


@look_for("D209", "A compiled library is damaged.")
def library_damaged(case: Case) -> Iterable[Found]:
    """Report libraries that could not be read."""
    for package in case.packages:
        for library in package.libraries:
            if library.error:
                yield Found(
                    f"{package.title} is damaged: {library.name} cannot be read as a library.",
                    f"{library.error}. It may have been cut off while it was copied or unpacked.",
                    f"{case.environment.pip} install --force-reinstall --no-deps {package.name}=={package.version}",
                    package.name,
                )
