"""Names and tags of wheels: what a file name says, and what a name inside a wheel may be.

Source: the binary distribution format of the Python packaging specifications, read by `packaging`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from packaging.tags import Tag, parse_tag
from packaging.utils import InvalidWheelFilename, NormalizedName, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from smwheel.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class WheelName:
    """A wheel's file name, parsed."""

    distribution: NormalizedName
    version: Version
    build: tuple[int, str] | tuple[()]
    tags: frozenset[Tag]

    @classmethod
    def parse(cls, filename: str) -> WheelName:
        """Read a file name.

        Raises:
            MalformedError: it is no wheel's name.

        """
        try:
            return cls(*parse_wheel_filename(filename))
        except (InvalidWheelFilename, InvalidVersion) as error:
            raise MalformedError(
                f"is not named as a wheel is: {error}",
                where=filename,
                cure="a wheel's name is NAME-VERSION-PYTHON-ABI-PLATFORM.whl; build it again, do not rename it",
            ) from error


def check_member_name(name: str, *, where: str) -> None:
    """Refuse a member name that would be written outside the directory it is unpacked into.

    Raises:
        MalformedError: absolute, with `..`, a drive, a backslash or a NUL.

    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or any(bad in name for bad in "\\\0:"):
        raise MalformedError(
            f"member {name!r} would be written outside the installation directory",
            where=where,
            cure="do not install this wheel",
        )


def expand_tags(texts: Iterable[str], *, where: str = "") -> frozenset[Tag]:
    """Return single tags for texts such as `cp310-abi3-manylinux_2_28_x86_64` or `py2.py3-none-any`.

    Raises:
        MalformedError: one of them is no tag.

    """
    tags: set[Tag] = set()
    for text in texts:
        if text.count("-") != 2:
            raise MalformedError(f"{text!r} is no wheel tag", where=where)
        try:
            tags |= parse_tag(text)
        except ValueError as error:
            raise MalformedError(f"{text!r} is no wheel tag", where=where) from error
    return frozenset(tags)


def tag_text(tags: Iterable[Tag]) -> str:
    """Return the compressed form of a tag set for a file name, e.g. `py2.py3-none-any`.

    Raises:
        MalformedError: the set is not what one file name can say.

    """
    found = frozenset(tags)
    parts = (
        ".".join(sorted({tag.interpreter for tag in found})),
        ".".join(sorted({tag.abi for tag in found})),
        ".".join(sorted({tag.platform for tag in found})),
    )
    text = "-".join(parts)
    if not found or parse_tag(text) != found:
        raise MalformedError(
            f"no file name can say the tags {', '.join(sorted(map(str, found)))}",
            cure="build it again: a wheel's tags are one set for each of Python, ABI and platform",
        )
    return text


def escaped(distribution: str) -> str:
    """Return a distribution's name as file names of wheels spell it, e.g. `sglang_kernel`."""
    return canonicalize_name(distribution).replace("-", "_")


def normal_version(version: str) -> str:
    """Return a version as PEP 440 writes it.

    Raises:
        MalformedError: it is none.

    """
    try:
        return str(Version(version))
    except InvalidVersion as error:
        raise MalformedError(f"{version!r} is no version (PEP 440)", cure="correct the version, e.g. 1.2.3") from error
