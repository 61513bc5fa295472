"""W5: the platform tag: true of the symbols that the wheel's own files ask for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from smwheel.verify.registry import check
from smwheel.verify.verdict import Problem
from smwheel.wheels.elf import ElfFacts, policy_floor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smwheel.verify.expectations import Expectations
    from smwheel.verify.subject import Subject

_LEGACY = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_(\w+)|(manylinux(?:1|2010|2014))_(\w+)")
_RETAG = "give the wheel the tag that its symbols earn (repair does, in every place), or build on an older system"


@check("W501", "The platform tag is one that the symbols of the wheel's files earn.", cure=_RETAG)
def tag_is_honest(subject: Subject, _: Expectations) -> Iterable[Problem | str]:
    """Compare each platform tag with the floor of all files."""
    tags = sorted({tag.platform for tag in subject.wheel.name.tags | subject.wheel.tags})
    if not subject.libraries:
        if tags != ["any"]:
            yield Problem(f"is tagged {', '.join(tags)} and holds no machine code", cure="tag it any")
        return
    earned = policy_floor(library.facts for library in subject.libraries)
    minor, machine = (int(earned.split("_")[2]), earned.split("_", 3)[3])
    for tag in tags:
        match = _MANYLINUX.fullmatch(tag)
        if match is None:
            yield Problem(
                f"is tagged {tag}: no public index takes it, and on an older system it fails only when loaded; its "
                f"symbols earn {earned}"
            )
            continue
        claimed = int(match[1]) if match[1] else _LEGACY[match[3]]
        if (match[2] or match[4]) != machine:
            yield Problem(f"is tagged {tag}, and its files are made for {machine}")
        elif claimed < minor:
            yield Problem(f"is tagged {tag}, and its symbols earn {earned}: {_why(subject, claimed)}")
        elif claimed > minor:
            yield f"is tagged {tag}; its symbols would earn {earned}"


def _why(subject: Subject, claimed: int) -> str:
    """Name the version that asks for more than the policy claimed, and a file that asks for it."""
    for library in subject.libraries:
        for space, version in library.facts.versions.items():
            alone = ElfFacts(machine=library.facts.machine, versions={space: version})
            if alone.policy_minor > claimed:
                return f"{library.name} asks for {space}_{library.facts.version(space)}"
    return ""


@check(
    "W502",
    "No file asks for what the C library keeps to itself.",
    cure="build in a manylinux image; names of GLIBC_PRIVATE exist in one build of the C library only",
)
def nothing_private(subject: Subject, _: Expectations) -> Iterable[Problem | str]:
    """Look for versions that no release promises."""
    for library in subject.libraries:
        if library.facts.private:
            yield Problem(f"asks for names of {', '.join(library.facts.private)}", library.name)
