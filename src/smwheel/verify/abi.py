"""W4: binary interfaces: torch's C++ symbols, the C++ string type, symbols that nobody has, Python's stable ABI."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from abi3info import DATAS, FUNCTIONS
from packaging.version import Version

from smwheel.verify.libraries import SYSTEM_PACKAGES, requirements
from smwheel.verify.registry import NotMade, check
from smwheel.verify.verdict import Problem
from smwheel.wheels import torchsymbols
from smwheel.wheels.sonames import owner
from smwheel.wheels.torchsymbols import TorchSymbols, is_torch_name, readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from packaging.requirements import Requirement

    from smwheel.verify.expectations import Expectations
    from smwheel.verify.subject import Library, Subject

_SOABI = re.compile(r"\.(cpython-\d+\w*|pypy\d+\S*)-[\w-]+\.so$")
# Minors of torch 2 that a requirement is tried on.
_MINORS = range(40)
_STABLE = {
    symbol.name: (entry.added.major, entry.added.minor)
    for table in (FUNCTIONS, DATAS)
    for symbol, entry in table.items()
}


def _table(expect: Expectations) -> TorchSymbols:
    """Return the table of the stack's torch, or say that there is none."""
    table = torchsymbols.load(expect.torch, expect.cuda_major)
    if table is None:
        known = ", ".join(f"{torch} (CUDA {cuda})" for torch, cuda in torchsymbols.available())
        raise NotMade(
            f"there is no table of the symbols of torch {expect.torch} for CUDA {expect.cuda_major}; "
            f"there are tables of {known}",
            cure="make one: ci/make-torch-symbols VERSION",
        )
    return table


def _uses_torch(library: Library) -> bool:
    return any(owner(name) == "torch" for name in library.facts.needed) and any(
        is_torch_name(name) for name in library.facts.undefined
    )


@check(
    "W401",
    "Every name of torch's C++ libraries that is asked for exists in the stack's torch.",
    cure="compile against the stack's torch, or install the torch that the wheel was built for",
    needs=("torch", "cuda"),
)
def torch_symbols_exist(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Compare undefined names with the table of the stack's torch."""
    using = [library for library in subject.libraries if any(map(is_torch_name, library.facts.undefined))]
    if not using:
        yield "no library asks for torch's C++ names"
        return
    table = _table(expect)
    for library in using:
        missing = table.missing(library.facts)
        if missing:
            fits = torchsymbols.matching([library.facts])
            places = ", ".join(f"{torch} (CUDA {cuda})" for torch, cuda in fits)
            built = f"; all are in torch {places}" if fits else ""
            shown = ", ".join(f"{readable(name)} ({name})" for name in missing[:5])
            shown += f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            yield Problem(
                f"torch ABI: asks torch {expect.torch} for {len(missing)} names that it does not have{built}: {shown}",
                library.name,
                cure=f"use it with torch {fits[-1][0]}, or compile it against torch {expect.torch}" if fits else "",
            )


@check(
    "W402",
    "The C++11 string type is the one that torch was built with.",
    cure="compile with -D_GLIBCXX_USE_CXX11_ABI set to what torch._C._GLIBCXX_USE_CXX11_ABI says",
    needs=("torch", "cuda"),
)
def same_string_type(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Look for string types of the other ABI in the torch names asked for."""
    using = [library for library in subject.libraries if any(map(is_torch_name, library.facts.undefined))]
    if not using:
        return
    new = _table(expect).new_strings
    other = torchsymbols.uses_old_strings if new else torchsymbols.uses_new_strings
    for library in using:
        names = sorted(name for name in library.facts.undefined if is_torch_name(name) and other(name))
        if names:
            yield Problem(
                f"CXX11 ABI differs: it was compiled with _GLIBCXX_USE_CXX11_ABI={int(not new)}, "
                f"torch {expect.torch} with {int(new)}: {names[0]}",
                library.name,
            )


@check(
    "W403",
    "No library asks for a C++ name that nobody brings.",
    cure="compile the source file that defines it for this architecture too, or leave out the call (the macro that "
    "enables it must depend on the architecture)",
    needs=("torch", "cuda"),
)
def nothing_is_nobodys(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Look for undefined C++ names outside torch that neither the wheel nor a library with versions brings.

    C names are left to the import checks: they may come from any library that is needed.
    """
    own = frozenset().union(*(library.facts.exported for library in subject.libraries))
    for library in subject.libraries:
        facts = library.facts
        left = {
            name
            for name in facts.undefined - own - facts.asked_of.keys()
            if name.startswith("_Z") and not is_torch_name(name)
        }
        for rule in expect.undefined:
            if any(fnmatchcase(library.name, pattern) for pattern in rule.files):
                allowed = {name for name in left if re.match(rule.names, name)}
                left -= allowed
                if allowed:
                    yield f"{library.name}: {len(allowed)} names that nobody brings are allowed: {rule.reason}"
        others = [name for name in facts.needed if not _is_plain(name)]
        if not left or others:
            if left:
                yield f"{library.name}: {len(left)} C++ names may come from {', '.join(others)}"
            continue
        if any(owner(name) == "torch" for name in facts.needed):
            left -= _table(expect).reachable(facts.needed)
        if left:
            shown = ", ".join(sorted(left)[:5])
            yield Problem(f"asks for {len(left)} names that no library brings: {shown}", library.name)


def _is_plain(soname: str) -> bool:
    """Return whether a library brings no C++ names without versions: torch, CUDA, driver, libraries of C."""
    return owner(soname) != "other" or soname in SYSTEM_PACKAGES


@check(
    "W404",
    "A wheel that uses torch's C++ names requires exactly the minor version of torch that it was built against.",
    cure="add Requires-Dist: torch==X.Y.* with the version built against (smwheel's builds do)",
)
def torch_is_pinned(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Try every minor of torch 2 on the requirement."""
    using = [library.name for library in subject.libraries if _uses_torch(library)]
    if not using and not expect.torch_pin:
        yield "no library asks for torch's C++ names: no pin is due"
        return
    pins = [requirement for requirement in requirements(subject) if requirement.name == "torch"]
    if not pins:
        yield Problem(
            "uses torch's C++ names, and the wheel does not require torch: any version would be accepted",
            using[0] if using else "",
        )
        return
    accepted = [minor for minor in _MINORS if all(_accepts(pin, minor) for pin in pins)]
    text = " and ".join(map(str, pins))
    if len(accepted) != 1:
        yield Problem(f"requires {text}, which accepts {len(accepted)} minor versions, not one")
    elif expect.torch and Version(expect.torch).minor != accepted[0]:
        yield Problem(f"requires {text}, and the stack has torch {expect.torch}")


def _accepts(pin: Requirement, minor: int) -> bool:
    return any(pin.specifier.contains(f"2.{minor}.{patch}", prereleases=True) for patch in range(10))


@check(
    "W405",
    "Every file of a wheel tagged abi3 works on each Python that the tag claims.",
    cure="build that extension with the limited API, or leave it out, or tag the wheel for its one Python",
)
def stable_abi(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Look at names of files and at the names of CPython's API that they ask for."""
    tags = [tag for tag in subject.wheel.name.tags | subject.wheel.tags if tag.abi == "abi3"]
    if not tags:
        yield "the wheel is not tagged abi3"
        return
    since = min((int(tag.interpreter[2]), int(tag.interpreter[3:] or 0)) for tag in tags)
    for library in subject.libraries:
        soabi = _SOABI.search(library.name)
        if soabi and any(fnmatchcase(library.name, pattern) for pattern in expect.one_python):
            yield f"{library.name} is for {soabi[1]} alone; the recipe says that the package does without it elsewhere"
            continue
        if soabi:
            yield Problem(
                f"is for {soabi[1]} alone, in a wheel that claims every Python from {since[0]}.{since[1]} on",
                library.name,
            )
            continue
        yield from _outside_stable_abi(library, since)


def _outside_stable_abi(library: Library, since: tuple[int, int]) -> Iterator[Problem]:
    asked = sorted(library.facts.python_symbols)
    unstable = [name for name in asked if name not in _STABLE]
    later = [name for name in asked if _STABLE.get(name, since) > since]
    if unstable:
        yield Problem(f"asks for {', '.join(unstable[:5])}: no part of the stable ABI", library.name)
    if later:
        major, minor = _STABLE[later[0]]
        yield Problem(
            f"asks for {', '.join(later[:5])}, in the stable ABI only since {major}.{minor}; the tag says "
            f"{since[0]}.{since[1]}",
            library.name,
        )
