"""What the output of a package's own build says of why it failed: the innermost cause, not the last line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from smwheel.errors import BuildError, OutOfMemoryError, SmwheelError

_LINES = 25
_NOT_GIVEN = re.compile(r"FETCHCONTENT_FULLY_DISCONNECTED.*?(?:dependency|content)[^\w]+([\w.-]+)", re.DOTALL)
_CMAKE_ERROR = re.compile(
    r"^CMake Error(?: at (?P<place>[^\n]*?))?(?: \([\w-]+\))?:\s*\n(?P<text>(?:[ \t]+[^\n]*\n|\n)+)", re.MULTILINE
)
_TOO_OLD = "Compatibility with CMake < 3.5 has been removed"
_NOT_FOUND = re.compile(r"Could NOT find (\w+)")


def failure(log: Path, code: int, *, third_party: Iterable[str]) -> SmwheelError:
    """Return the error that a failed build's output amounts to; `third_party` are those that the recipe gives."""
    text = log.read_text(encoding="utf-8", errors="replace")
    whole = f"the whole output is in {log}"
    if unit := _failed_unit(text):
        name, lines = unit
        killed = any("memory" in line and "killed" in line for line in lines)
        kind = OutOfMemoryError if killed else BuildError
        return kind("\n".join(["failed", *lines[-_LINES:]]), where=f"unit {name}", cure=whole)
    errors = list(_CMAKE_ERROR.finditer(text))
    if not errors:
        last = "\n".join(text.strip().splitlines()[-_LINES:])
        return BuildError(f"ended with code {code}:\n{last}", where="the package's build", cure=whole)
    first = errors[0]
    said = " ".join(first["text"].split())
    where = first["place"] or "CMake"
    if missing := _NOT_GIVEN.search(said):
        return BuildError(
            f"the package's CMake project fetches {missing[1]}, and the recipe does not give it "
            f"(it gives {', '.join(sorted(third_party)) or 'none'})",
            where=where,
            cure=f"add a [[third_party]] with id = {missing[1]!r} and its commit to the recipe",
        )
    if _TOO_OLD in said:
        return BuildError(
            f"this CMake refuses a project that was written for one older than 3.5: {said}",
            where=where,
            cure='say CMAKE_POLICY_VERSION_MINIMUM = "3.5" in the recipe\'s build.defines',
        )
    if absent := _NOT_FOUND.search(said):
        return BuildError(
            f"configuring did not find {absent[1]}: {said}",
            where=where,
            cure=f"install what brings {absent[1]}, and declare it as a [[system]] need of the recipe; {whole}",
        )
    return BuildError(f"configuring failed: {said[:1000]}", where=where, cure=whole)


def _failed_unit(text: str) -> tuple[str, list[str]] | None:
    """Return the first unit that ninja says failed, and the lines below it."""
    match = re.search(r"^FAILED: (?:\[code=\d+\] )?(\S+).*\n((?:.*\n)*)", text, re.MULTILINE)
    if match is None:
        return None
    lines = []
    for line in match[2].splitlines():
        if re.match(r"^(\[\d+/\d+\]|ninja: )", line):
            break
        lines.append(line)
    return match[1], lines


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines; nothing if it is not there."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
