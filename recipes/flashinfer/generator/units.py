"""Specs as the protocol's modules and units, with upstream's own commands."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from generator import ninja
from generator.request import GeneratorError, Request

_KINDS = {
    "compile": "cxx",
    "cuda_compile": "cuda",
    "link": "link",
    "nvcc_link": "devicelink",
    "embed_cubin": "other",
}


def family(name: str, rules: list[list[str]]) -> str:
    """Return the short name under which costs are kept: by the longest prefix in the recipe, else the name."""
    _prefix, short = max(
        ((prefix, short) for prefix, short in rules if name.startswith(prefix)),
        key=lambda rule: len(rule[0]),
        default=("", name),
    )
    return short


def describe(request: Request, name: str, spec: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Write a spec's ninja file and return the protocol's module and units for it."""
    spec.write_ninja()
    operations = request.work / "cached_ops"
    short = family(name, request.options.get("families", []))
    statements = ninja.read(operations / name / "build.ninja")
    made = {statement.output for statement in statements}
    if len(made) != len(statements):
        raise GeneratorError(f"two units of {name} write the same file")
    units = [
        {
            "id": _relative(statement.output, operations),
            "module": name,
            "family": short,
            "kind": _KINDS[statement.rule],
            "source": _source(request, statement),
            "source_path": _generated(request, statement),
            "command": _command(request, statement),
            "inputs": [path for path in statement.inputs if path in made],
            "output": statement.output,
        }
        for statement in statements
    ]
    module = {
        "name": name,
        "family": short,
        "library": statements[-1].output,
        "units": [unit["id"] for unit in units],
    }
    return module, units


def _command(request: Request, statement: ninja.Statement) -> list[str]:
    """Return the command; a link of device code gets the architecture where upstream forgets it.

    The directory of Python's own headers is left out: nothing that is compiled here needs it (the recipe's edits
    see to that), and it lies elsewhere on every machine.
    """
    command = _without_include(statement.command, sysconfig.get_path("include"))
    lacks_arch = statement.rule == "nvcc_link" and not any("-gencode" in word for word in command)
    return [command[0], request.arch.gencode, *command[1:]] if lacks_arch else command


def _without_include(command: list[str], directory: str) -> list[str]:
    kept: list[str] = []
    for word in command:
        if word == directory and kept and kept[-1] == "-isystem":
            kept.pop()
        else:
            kept.append(word)
    return kept


def _source(request: Request, statement: ninja.Statement) -> str:
    if statement.rule in ("link", "nvcc_link"):
        return Path(statement.output).name
    path = Path(statement.inputs[0])
    for root in (request.source.resolve(), request.work.resolve()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return path.name


def _generated(request: Request, statement: ninja.Statement) -> str:
    """Return the path of a source that was generated below `work`, or nothing."""
    path = Path(statement.inputs[0])
    compiled = _KINDS[statement.rule] in ("cuda", "cxx")
    return str(path) if compiled and path.is_relative_to(request.work.resolve()) else ""


def _relative(output: str, root: Path) -> str:
    return str(Path(output).relative_to(root.resolve()))
