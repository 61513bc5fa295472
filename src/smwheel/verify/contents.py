"""W1: the wheel as an archive: RECORD, names, versions, tags, files."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from smwheel.verify.registry import NotMade, check
from smwheel.verify.verdict import Problem
from smwheel.wheels.wheelname import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smwheel.verify.expectations import Expectations
    from smwheel.verify.subject import Subject

# Top-level directories that an installation would merge into the environment's own, or into other packages'.
INTRUDERS = frozenset({"bin", "docs", "examples", "include", "lib", "lib64", "share", "src", "test", "tests"})
_SIGNATURES = ("RECORD", "RECORD.jws", "RECORD.p7s")
_REWRITE = "rewrite the wheel (smwheel does it in every place at once); renaming the file is not enough"


@check(
    "W101",
    "RECORD lists every file of the wheel with its true digest and size, and nothing else.",
    cure="do not use this wheel: it was changed after it was made, or damaged; build or download it again",
)
def record_is_true(subject: Subject, _: Expectations) -> Iterable[Problem | str]:
    """Compare RECORD with the bytes."""
    wheel = subject.wheel
    listed = {}
    for row in wheel.record:
        if row.path in listed:
            yield Problem("is listed twice in RECORD", row.path)
        listed[row.path] = row
    exempt = {f"{wheel.dist_info}/{name}" for name in _SIGNATURES}
    for name in wheel.members:
        if name in subject.damaged:
            yield Problem(subject.damaged[name].message, name)
        elif name in exempt:
            continue
        elif name not in listed:
            yield Problem("is not listed in RECORD", name)
        elif not listed[name].digest.startswith("sha256="):
            yield Problem(f"RECORD gives {listed[name].digest or 'no digest'}, not a sha256", name)
        elif (listed[name].digest, listed[name].size) != subject.digests[name]:
            digest, size = subject.digests[name]
            yield Problem(
                f"is not what RECORD says: it is {digest} of {size} bytes, "
                f"recorded are {listed[name].digest} and {listed[name].size} bytes",
                name,
            )
    for name in sorted(set(listed) - set(wheel.members)):
        yield Problem("is listed in RECORD and not in the wheel", name)


@check("W102", "The distribution's name is the same everywhere, spelled as wheels spell it.", cure=_REWRITE)
def one_name(subject: Subject, _: Expectations) -> Iterable[Problem | str]:
    """Compare the file name, the metadata directory and METADATA."""
    wheel = subject.wheel
    name = str(wheel.metadata["Name"] or "")
    if canonicalize_name(name) != wheel.name.distribution:
        yield Problem(f"the file is named for {wheel.name.distribution!r}, METADATA says {name!r}")
    directory = wheel.dist_info.removesuffix(".dist-info").rpartition("-")[0]
    if directory != directory.replace("-", "_"):
        yield Problem(
            f"the metadata directory {wheel.dist_info!r} has a hyphen in the name: installers take the rest "
            f"for the version",
            cure=f"name it {escaped(name)}-{wheel.name.version}.dist-info",
        )
    elif canonicalize_name(directory) != wheel.name.distribution:
        yield Problem(f"the file is named for {wheel.name.distribution!r}, its metadata directory {directory!r}")


@check("W103", "The version is the same in the file name, the metadata directory and METADATA.", cure=_REWRITE)
def one_version(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Compare the three, and the release with the recipe's."""
    wheel = subject.wheel
    version = wheel.name.version
    for place, text in (
        ("METADATA", str(wheel.metadata["Version"] or "")),
        ("the metadata directory", wheel.dist_info.removesuffix(".dist-info").rpartition("-")[2]),
    ):
        try:
            same = Version(text) == version
        except InvalidVersion:
            same = False
        if not same:
            yield Problem(f"the file name says version {version}, {place} says {text!r}: pip discards such a wheel")
    if expect.version and Version(version.public) != Version(Version(expect.version).public):
        yield Problem(
            f"this is version {version}, and the stack has {expect.recipe} {expect.version}",
            cure="verify it with the stack that has this version (--stack)",
        )


@check("W104", "The tags in the file name are those in WHEEL.", cure=_REWRITE)
def one_tag_set(subject: Subject, _: Expectations) -> Iterable[Problem | str]:
    """Compare both sets of tags."""
    wheel = subject.wheel
    named, stated = wheel.name.tags, wheel.tags
    if named != stated:
        yield Problem(
            f"the file name says {', '.join(sorted(map(str, named - stated))) or 'less'}, "
            f"WHEEL says {', '.join(sorted(map(str, stated - named))) or 'less'}"
        )


@check(
    "W105",
    "Root-Is-Purelib says whether the wheel holds machine code.",
    cure="build the wheel as one of its platform (Root-Is-Purelib: false), or without machine code",
)
def purelib_is_right(subject: Subject, _: Expectations) -> Iterable[Problem | str]:
    """Compare the field with the files and the tags."""
    stated = str(subject.wheel.wheel["Root-Is-Purelib"] or "").strip().lower()
    if stated not in ("true", "false"):
        yield Problem(f"WHEEL says Root-Is-Purelib: {stated or 'nothing'}")
    elif stated == "true" and subject.libraries:
        yield Problem("WHEEL says Root-Is-Purelib: true, and this is machine code", subject.libraries[0].name)
    elif stated == "false" and not subject.libraries:
        yield "WHEEL says Root-Is-Purelib: false although there is no machine code; it does no harm"


@check(
    "W106",
    "Every file that the recipe calls for is there.",
    cure="look into the build's log for what was left out, and build again",
    needs=("recipe",),
)
def required_files(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Look for each required pattern."""
    for pattern in expect.required:
        if not any(fnmatchcase(name, pattern) for name in subject.wheel.members):
            yield Problem(f"no file matches {pattern!r}, which the recipe requires")


@check(
    "W107",
    "There is no file that does not belong to the package.",
    cure="install only the package's own components when building, or add the file to the recipe if it belongs",
)
def no_strangers(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Look for top-level directories that belong to no package, and files outside the recipe's patterns."""
    wheel = subject.wheel
    own = [name for name in wheel.members if not name.startswith(f"{wheel.dist_info}/")]
    intruders = sorted({name.split("/")[0] for name in own if "/" in name} & INTRUDERS)
    for top in intruders:
        yield Problem("is installed at the top of site-packages, beside every other package", f"{top}/")
    if not expect.recipe:
        raise NotMade("which files belong is not known: give --recipe", cure="give what is missing")
    if not expect.files:
        return
    strange = [
        name
        for name in own
        if name.split("/")[0] not in intruders and not any(fnmatchcase(name, pattern) for pattern in expect.files)
    ]
    for name in strange[:20]:
        yield Problem("matches none of the recipe's patterns", name)
    if len(strange) > 20:
        yield Problem(f"and {len(strange) - 20} more files match none of the recipe's patterns")
