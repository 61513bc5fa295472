"""W2: GPU code: what is there, for which architecture, and whether the package's loader would open it."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from smwheel.arch import Arch
from smwheel.verify.registry import NotMade, check
from smwheel.verify.verdict import Problem
from smwheel.wheels.fatbin import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smwheel.verify.expectations import Expectations
    from smwheel.verify.subject import Library, Subject


def _with_code(subject: Subject, expect: Expectations) -> Iterator[Library]:
    """Yield the libraries that should hold GPU code."""
    for library in subject.libraries:
        if not _matches(library.name, expect.no_device_code):
            yield library


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _cubins(library: Library) -> Counter[Arch]:
    return Counter(entry.arch for entry in library.entries if entry.kind is Kind.CUBIN)


def _allowed(library: Library, expect: Expectations) -> dict[Arch, str]:
    """Return the other architectures that the recipe allows in a library, with its reasons."""
    rules = [rule for rule in expect.foreign if _matches(library.name, rule.files)]
    return {Arch.parse(code): rule.reason for rule in rules for code in rule.allow}


def _listed(archs: Iterable[Arch]) -> str:
    return ", ".join(arch.sm for arch in sorted(set(archs)))


@check(
    "W201",
    "Every library that should hold GPU code does, and it can be read.",
    cure="look for 'Not building …' or a missing -gencode in the build's log; an empty fat binary means that no "
    "architecture was asked for when linking",
)
def code_is_there(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Read every fat binary."""
    for library in _with_code(subject, expect):
        if not library.entries:
            what = "a fat binary with nothing in it" if library.has_fat_binary else "no GPU code at all"
            yield Problem(f"holds {what}", library.name)
        elif not _cubins(library):
            kinds = "PTX" if any(entry.kind is Kind.PTX for entry in library.entries) else "LTO-IR"
            yield Problem(f"holds only {kinds}, no machine code", library.name)
    if not subject.libraries:
        yield "the wheel holds no machine code"


@check(
    "W202",
    "Every library holds machine code for exactly the architecture asked for.",
    cure="compile with exactly this architecture (-gencode arch=compute_X,code=sm_X, suffix included), or verify "
    "for the architecture that the wheel is for",
    needs=("arch",),
)
def code_for_target(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Look for the target's cubins in each library."""
    target = expect.arch
    if target is None:
        return
    for library in _with_code(subject, expect):
        found = _cubins(library)
        if not library.entries or target in found:
            continue
        loads = [arch for arch in found if not arch.suffix and arch.loads_on(target)]
        if loads and _matches(library.name, expect.plain):
            yield f"{library.name} has {_listed(loads)}, which the recipe says is enough"
            continue
        others = _allowed(library, expect)
        if found and all(arch in others and arch.number == target.number for arch in found):
            yield f"{library.name} has {_listed(found)} alone, which the recipe allows: {others[min(found)]}"
            continue
        yield Problem(f"has no code for {target.sm}: {_instead(target, library, found)}", library.name)


def _instead(target: Arch, library: Library, found: Counter[Arch]) -> str:
    """Say what there is, and why it does not do."""
    if not found:
        ptx = _listed(entry.arch for entry in library.entries if entry.kind is Kind.PTX)
        return (
            f"only PTX ({ptx}), which the driver must compile when the program starts, and which a driver older than "
            f"the CUDA that made it refuses"
        )
    same = [arch for arch in found if arch.number == target.number]
    if same:
        return f"it has {_listed(same)}, and {target.sm} is due: the kernels that need the suffix are not in it"
    family = [arch for arch in found if arch.major == target.major]
    if family:
        reason = "code with suffix 'a' loads on exactly its own GPU" if any(a.suffix == "a" for a in family) else ""
        return f"it has {_listed(found)}" + (f"; {reason}" if reason else "")
    return f"it has {_listed(found)}"


@check(
    "W203",
    "No library holds code that the target cannot load, but where the recipe allows it.",
    cure="compile for one architecture, at the device link too (nvcc adds its default where none is given); or cut "
    "the wheel with smwheel thin",
    needs=("arch", "recipe"),
)
def no_foreign_code(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Look for cubins of other architectures."""
    if expect.arch is None:
        return
    for library in subject.libraries:
        allowed = _allowed(library, expect)
        found = {arch: count for arch, count in _cubins(library).items() if not arch.loads_on(expect.arch)}
        foreign = {arch: count for arch, count in found.items() if arch not in allowed}
        for arch in sorted(found.keys() & allowed.keys()):
            yield f"{library.name}: {arch.sm} is allowed: {allowed[arch]}"
        if foreign:
            counts = ", ".join(f"{count} × {arch.sm}" for arch, count in sorted(foreign.items()))
            yield Problem(f"holds code for other architectures: {counts}", library.name)


@check(
    "W204",
    "There is no PTX or LTO-IR, unless the recipe wants PTX.",
    cure="compile with code=sm_X alone, not code=[sm_X,compute_X]; or say ptx = true in the recipe",
    needs=("recipe",),
)
def ptx_policy(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Look for code that is not machine code."""
    for library in subject.libraries:
        kinds = Counter(entry.kind for entry in library.entries)
        if kinds[Kind.LTOIR]:
            yield Problem(f"holds {kinds[Kind.LTOIR]} × LTO-IR, which nothing loads", library.name)
        if kinds[Kind.PTX] and not expect.ptx:
            archs = _listed(entry.arch for entry in library.entries if entry.kind is Kind.PTX)
            yield Problem(f"holds {kinds[Kind.PTX]} × PTX ({archs}), which this recipe does not allow", library.name)


@check(
    "W206",
    "There is code that loads on every GPU of this machine.",
    cure="build it for this GPU: smwheel build RECIPE --arch …; or install it on a machine with the GPU it is made for",
)
def loads_here(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Compare each library's cubins with the GPUs that the driver names."""
    if not expect.live:
        raise NotMade("no GPU is visible here", cure="run it on a machine with a GPU, or leave --live away")
    for gpu in sorted(set(expect.live)):
        for library in _with_code(subject, expect):
            found = _cubins(library)
            if not any(arch.loads_on(gpu) for arch in found):
                made_for = ", ".join(sorted({arch.capability for arch in found})) or "no GPU"
                yield Problem(f"made for {made_for}, this GPU is {gpu.capability}", library.name)


@check(
    "W205",
    "The file that the package's loader opens on the target is one that holds code for it.",
    cure="put the code for this architecture into the directory that the loader opens, or correct the loader's rule "
    "in the recipe",
    needs=("arch", "recipe"),
)
def loader_finds_it(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Follow the loader's rule for the target's compute capability."""
    rule, target = expect.loader, expect.arch
    if rule is None or target is None:
        yield "the recipe has no loader rule: the package loads its files by their names"
        return
    directory = rule.directories.get(str(target.number), rule.directories.get("*", ""))
    opened = [library for library in subject.libraries if fnmatchcase(library.name, f"{directory}/{rule.pattern}")]
    holders = [
        library.name
        for library in subject.libraries
        if fnmatchcase(library.base, rule.pattern) and target in _cubins(library)
    ]
    elsewhere = [name for name in holders if name not in {library.name for library in opened}]
    hint = f"; the code for {target.sm} lies in {', '.join(elsewhere)}, which it never opens there" if elsewhere else ""
    if not opened:
        yield Problem(
            f"on a GPU of capability {target.capability} the loader opens {directory}/{rule.pattern}, and there is no "
            f"such file{hint}"
        )
    for library in opened:
        if target in _cubins(library):
            yield f"on capability {target.capability} the loader opens {library.name}"
        else:
            yield Problem(
                f"is what the loader opens on capability {target.capability}, and it has no {target.sm} code{hint}",
                library.name,
            )
    if len(opened) > 1:
        names = ", ".join(library.name for library in opened)
        yield Problem(f"the loader's pattern fits {len(opened)} files, and which it opens is chance: {names}")
