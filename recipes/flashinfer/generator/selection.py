"""What is built of what there is: patterns, names, profiles, and what is left out with its reason."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from generator.catalogue import ByName
from generator.request import GeneratorError, Request

# Where FlashInfer names a module: the directory of its files, and the line of 0.7 before it compiles one.
_IN_LOG = re.compile(r"(?:cached_ops/|jit_cache/|Building JIT module )([A-Za-z0-9_]+)")


@dataclass
class Selection:
    """The specs to build by name, what was left out (name → reason), and what could not be found."""

    specs: dict[str, Any] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def select(request: Request, default: dict[str, Any]) -> Selection:
    """Apply the request's patterns, or the profile's, to upstream's set.

    Patterns of the command line also find the recipe's `extra` names; a profile's `*` is upstream's set alone.
    """
    maker = ByName(request)
    more = request.options.get("extra", ()) if request.modules is not None else ()
    catalogue: dict[str, Any] = default | dict.fromkeys(name for name in more if name not in default)
    selection = Selection()
    patterns, leave_out = _patterns(request)
    for pattern in patterns:
        is_name = not any(character in pattern for character in "*?[")
        names = [pattern] if is_name else [name for name in catalogue if fnmatchcase(name, pattern)]
        names = [name for name in names if not any(fnmatchcase(name, other) for other in leave_out)]
        found = False
        for name in names:
            reason = exclusion(request, name)
            spec = catalogue.get(name) or maker.make(name) if reason is None else None
            if reason is not None:
                selection.excluded[name] = reason
            elif spec is not None:
                selection.specs[name] = spec
            found = found or reason is not None or spec is not None
        if not found:
            selection.missing.append(pattern)
    return selection


def exclusion(request: Request, name: str) -> str | None:
    """Return why the recipe leaves this module out on this architecture, or None."""
    for rule in request.exclusions:
        serves = str(request.arch.number) in rule.get("unless", ())
        if not serves and any(fnmatchcase(name, pattern) for pattern in rule["modules"]):
            return str(rule["reason"])
    for rule in request.options.get("needs", ()):
        if name == rule["module"] and not _importable(rule["import"]):
            return str(rule["reason"])
    return None


def names_in(path: Path) -> list[str]:
    """Return the names of the modules that a server asked for, from its log or from its JIT directory."""
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and entry.name != "tmp")
        names = [name for name in names if any((path / name).glob("*.ninja")) or (path / name / f"{name}.so").exists()]
    else:
        names = list(dict.fromkeys(_IN_LOG.findall(path.read_text(errors="replace"))))
        names = [name for name in names if name != "tmp"]
    return names


def _patterns(request: Request) -> tuple[list[str], list[str]]:
    """Return what is asked for and what of it is left out."""
    if request.modules_from is not None:
        return names_in(request.modules_from), []
    if request.modules is not None:
        return _expand(request.modules, request, seen=()), []
    return _of_profile(request.profile, request, seen=()), list(request.profile.get("leave_out", ()))


def _of_profile(profile: dict[str, Any], request: Request, *, seen: tuple[str, ...]) -> list[str]:
    """Return a profile's patterns, with those that its `extra` adds for this architecture."""
    patterns = list(profile["modules"])
    for more in profile.get("extra", ()):
        if {request.arch.code, str(request.arch.number)} & set(more["arch"]):
            patterns += more["modules"]
    return _expand(patterns, request, seen=seen)


def _expand(patterns: list[str], request: Request, *, seen: tuple[str, ...]) -> list[str]:
    """Replace each `@profile` by that profile's patterns."""
    result: list[str] = []
    for pattern in patterns:
        if not pattern.startswith("@"):
            result.append(pattern)
            continue
        name = pattern[1:]
        if name not in request.profiles or name in seen:
            raise GeneratorError(f"{pattern}: the recipe has no profile {name!r}, or it holds itself")
        result += _of_profile(request.profiles[name], request, seen=(*seen, name))
    return list(dict.fromkeys(result))


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
