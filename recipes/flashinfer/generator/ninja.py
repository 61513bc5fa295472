"""A ninja file of FlashInfer as a list of commands.

Reads the part of ninja's language that FlashInfer writes: variables, rules with one command, build statements with
variables of their own. Anything else is an error, not a guess. Source: the ninja manual, "Ninja file reference".
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from generator.request import GeneratorError

_VARIABLE = re.compile(r"\$(?:\{([\w.-]+)\}|([\w-]+)|([$ :]))")
_IGNORED = {"default", "ninja_required_version"}


@dataclass(frozen=True)
class Statement:
    """One command: which rule made it, what it reads and what it writes (paths as in the file)."""

    rule: str
    command: list[str]
    inputs: list[str]
    output: str


def read(path: Path) -> list[Statement]:
    """Return the commands of a ninja file in the order of its build statements.

    Raises:
        GeneratorError: a line is none of those that FlashInfer writes; names the file and the line.

    """
    lines = path.read_text().replace("$\n", "").splitlines()
    variables: dict[str, str] = {}
    rules: dict[str, str] = {}
    statements = []
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        block: dict[str, str] = {}
        while index < len(lines) and lines[index].startswith(" "):
            name, _, value = lines[index].partition("=")
            block[name.strip()] = value.strip()
            index += 1
        keyword, _, rest = line.partition(" ")
        if keyword == "rule":
            rules[rest.strip()] = block["command"]
        elif keyword == "build":
            statements.append(_statement(path, rest, block, rules=rules, variables=variables))
        elif "=" in line:
            name, _, value = line.partition("=")
            variables[name.strip()] = _expand(value.strip(), variables)
        elif line.strip() and keyword not in _IGNORED:
            raise GeneratorError(f"{path}: {line!r} is no line that FlashInfer writes")
    return statements


def _statement(
    path: Path, text: str, block: dict[str, str], *, rules: dict[str, str], variables: dict[str, str]
) -> Statement:
    output, _, rest = text.partition(":")
    explicit, _, _implicit = rest.partition("|")
    rule, *inputs = explicit.split()
    if rule not in rules:
        raise GeneratorError(f"{path}: the rule {rule!r} is not defined")
    scope = variables | {name: _expand(value, variables) for name, value in block.items()}
    scope |= {"in": " ".join(inputs), "out": output.strip()}
    command = _expand(rules[rule], scope)
    if re.search(r"[;&|<>`]|\$\(", command):
        raise GeneratorError(f"{path}: the command of {output!r} needs a shell: {command}")
    return Statement(rule=rule, command=shlex.split(command), inputs=inputs, output=output.strip())


def _expand(text: str, variables: dict[str, str]) -> str:
    """Replace `$name` and `${name}`; an unknown name is empty, as in ninja."""
    return _VARIABLE.sub(lambda match: match[3] or variables.get(match[1] or match[2], ""), text)
