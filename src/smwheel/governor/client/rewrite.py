"""What the plan says of an nvcc command line, enforced; pure functions, the standard library only.

- Code for architectures that the target cannot load is dropped; none is ever converted into another. Where a command
  asks for the target's very own code, other machine code that loads there too is dropped: no GPU would take it.
- Code is added only where the recipe says so: some links name no architecture, and nvcc then takes its oldest.
- One thread a unit, temporary files named after the object (`-objtemp`) and no split compilation: otherwise the
  unit takes more memory than the governor knows, or two runs differ.

Options are those of nvcc 11.8 to 13.2 (`nvcc --help`).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # see run.py
    from collections.abc import Iterator
    from typing import Any

# Options whose next argument belongs to another tool and must not be read as one of nvcc's.
PASSING = {
    "-Xcompiler", "-Xlinker", "-Xptxas", "-Xarchive", "-Xnvlink", "-Xcudafe", "-Xfatbin", "-Xnvvm",
    "--compiler-options", "--linker-options", "--ptxas-options", "--archive-options", "--nvlink-options",
    "-o", "--output-file", "-MF", "--dependency-output", "-MT", "-MQ", "-x", "--x", "-ccbin", "--compiler-bindir",
    "-I", "-isystem", "--include-path", "--system-include", "-D", "--define-macro", "-include", "--pre-include",
}  # fmt: skip
GENCODE = ("-gencode", "--generate-code")
ARCH = ("-arch", "--gpu-architecture")
CODE = ("-code", "--gpu-code")
THREADS = ("-t", "--threads")
SPLIT = ("-split-compile", "--split-compile", "-split-compile-extended", "--split-compile-extended")
OPTIONS_FILE = ("-optf", "--options-file")
OBJTEMP = ("-objtemp", "--objdir-as-tempdir")

SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c", ".C", ".ptx")
DEVICE_SOURCES = (".cu", ".ptx")


class PolicyError(Exception):
    """Nothing that the plan allows is left of the command; the message says why and what to do."""


Option = tuple[str, str, list[str]]


def rewrite(
    command: list[str], policy: dict[str, Any], unit: str, *, strict: bool = True
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the command as the policy allows it, and each change as {"drop" or "add": …, "why": …}.

    `strict` is for units of the plan; a build system's own trials may leave the architecture open.

    Raises:
        PolicyError: no architecture that the target can load is left, or a device compilation names none.

    """
    changes: list[dict[str, str]] = []
    kept: list[str] = []
    found: list[str] = []
    options = list(_options(_whole(command, changes)))
    policy = {**policy, "codes": _wanted(options, policy)}
    for name, value, words in options:
        if name in GENCODE:
            found.append(value)
            kept += _loadable_gencode(value, words, policy, changes)
        elif name in ARCH or name in CODE:
            found += [value] if name in ARCH else []
            kept += _loadable_plain(value, words, policy, changes)
        elif name in THREADS and value != "1":
            changes.append({"drop": " ".join(words), "why": "one thread a unit"})
            kept.append("--threads=1")
        elif name in SPLIT:
            changes.append({"drop": " ".join(words), "why": "split compilation is not reproducible"})
        else:
            kept += words
    kind = kind_of(options)
    kept += _added(kind, unit, policy, changes)
    _require_code(kept, found, options, policy["target"], kind if strict else "other")
    if kind == "compile" and not any(name in OBJTEMP for name, _, _ in options):
        changes.append({"add": "-objtemp", "why": "two runs give the same object"})
        kept.append("-objtemp")
    return [command[0], *kept], changes


def kind_of(options: list[Option]) -> str:
    """Return what an nvcc command does: `compile`, `device-link`, `link`, or `other` (preprocess, print)."""
    names = {name for name, _, _ in options}
    if names & {"-dlink", "--device-link"}:
        return "device-link"
    if names & {"-E", "--preprocess", "-M", "--generate-dependencies", "-dryrun", "--dryrun", "--version", "-V"}:
        return "other"
    if any(words[0].endswith(SOURCES) for name, _, words in options if not name):
        return "compile"
    return "link" if any(not name for name, _, _ in options) else "other"


def compiled_codes(command: list[str]) -> list[str]:
    """Return what an nvcc command compiles device code for, e.g. `sm_120a`; nothing if it compiles none.

    Each once: CMake's flag and the project's own may both name an architecture, and nvcc compiles for it one time.
    """
    options = list(_options(command[1:]))
    if kind_of(options) != "compile" or not any(
        words[0].endswith(DEVICE_SOURCES) for name, _, words in options if not name
    ):
        return []
    named = [code for name, value, _ in options if name in GENCODE for code in _gencode(value)[1]]
    named = named or [value for name, value, _ in options if name in (*ARCH, *CODE)]
    return list(dict.fromkeys(named))


def _whole(command: list[str], changes: list[dict[str, str]]) -> list[str]:
    """Return all of the arguments: nvcc also reads two environment variables and files of options."""
    arguments = [*_variable("NVCC_PREPEND_FLAGS", changes), *command[1:]]
    arguments += _variable("NVCC_APPEND_FLAGS", changes)
    whole: list[str] = []
    for name, value, words in _options(arguments):
        whole += _file_of_options(value, words, changes) if name in OPTIONS_FILE else words
    return whole


def _variable(name: str, changes: list[dict[str, str]]) -> list[str]:
    """Take an environment variable of nvcc's into the command line, where it is judged like the rest."""
    text = os.environ.pop(name, "")
    if text:
        changes.append({"add": text, "why": f"from {name}"})
    return _split(text)


def _file_of_options(path: str, words: list[str], changes: list[dict[str, str]]) -> list[str]:
    """Return a file's options in its place if they say anything that is judged here; else leave the file."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123  # pathlib costs 5 ms
        inside = _split(file.read())
    judged = {*GENCODE, *ARCH, *CODE, *THREADS, *SPLIT}
    if not any(name in judged for name, _, _ in _options(inside)):
        return words
    changes.append({"add": " ".join(inside), "why": f"from {path}"})
    return inside


def _split(text: str) -> list[str]:
    if not text.strip():
        return []
    import shlex  # noqa: PLC0415  # rarely needed

    return shlex.split(text)


def _options(arguments: list[str]) -> Iterator[Option]:
    """Yield (name, value, words) of each option; an input file has the name ""."""
    valued = {*GENCODE, *ARCH, *CODE, *THREADS, *SPLIT, *OPTIONS_FILE, *PASSING}
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            yield "", "", [word]
        elif equals:
            yield name, value, [word]
        elif word.startswith("-t") and word[2:].isdigit():
            yield "-t", word[2:], [word]
        elif word in valued:
            following = next(rest, None)
            yield (word, following, [word, following]) if following is not None else (word, "", [word])
        else:
            yield word, "", [word]


def _wanted(options: list[Option], policy: dict[str, Any]) -> list[str]:
    """Return the codes that may stay on this command line."""
    named = [code for name, value, _ in options if name in GENCODE for code in _gencode(value)[1]]
    if policy["target"] not in named:
        return list(policy["codes"])
    return [code for code in policy["codes"] if code == policy["target"] or code.startswith("compute_")]


def _loadable_gencode(value: str, words: list[str], policy: dict[str, Any], changes: list[dict[str, str]]) -> list[str]:
    """Return a -gencode with the codes that load on the target; nothing if none does."""
    arch, codes = _gencode(value)
    kept = [code for code in codes if code in policy["codes"]]
    if kept == codes:
        return words
    for code in codes:
        if code not in kept:
            why = f"{code} is not for {policy['target']}"
            changes.append({"drop": f"-gencode=arch={arch},code={code}", "why": why})
    if not kept:
        return []
    inside = kept[0] if len(kept) == 1 else f"[{','.join(kept)}]"
    return [f"-gencode=arch={arch},code={inside}"]


def _gencode(value: str) -> tuple[str, list[str]]:
    """Read `arch=compute_90,code=[sm_90,compute_90]`; quotes and the order of the two do not matter."""
    text = value.replace('"', "").replace("'", "").replace("\\", "")
    before, _, after = text.partition("code=")
    if after.startswith("["):
        inside, _, tail = after[1:].partition("]")
        codes = inside.split(",")
    else:
        parts = after.split(",")
        codes = [part for part in parts if "=" not in part and part]
        tail = ",".join(part for part in parts if "=" in part)
    arch = next((part[5:] for part in f"{before},{tail}".split(",") if part.startswith("arch=")), "")
    return arch, [code.strip() for code in codes if code.strip()] or [arch]


def _loadable_plain(value: str, words: list[str], policy: dict[str, Any], changes: list[dict[str, str]]) -> list[str]:
    """Return an -arch or -code if all that it names loads on the target; nothing otherwise."""
    codes = [code.strip() for code in value.strip("[]").split(",")]
    accepted = {*policy["codes"], *(code.replace("sm_", "compute_") for code in policy["codes"])}
    if all(code in accepted for code in codes):
        return words
    changes.append({"drop": " ".join(words), "why": f"{value} is not for {policy['target']}"})
    return []


def _added(kind: str, unit: str, policy: dict[str, Any], changes: list[dict[str, str]]) -> list[str]:
    """Return the architectures that the recipe adds to this unit."""
    rules = [rule for rule in policy["add"] if kind in rule["kinds"]]
    if not rules:
        return []
    from fnmatch import fnmatchcase  # noqa: PLC0415  # rarely needed

    flags = [f"-gencode={rule['gencode']}" for rule in rules if fnmatchcase(unit, rule["unit"])]
    changes += [{"add": flag, "why": "the recipe says so"} for flag in flags]
    return flags


def _require_code(kept: list[str], found: list[str], options: list[Option], target: str, kind: str) -> None:
    if any(name in GENCODE or name in ARCH for name, _, _ in _options(kept)):
        return
    if found:
        raise PolicyError(
            f"nothing is left to compile for {target}: the unit asks for {', '.join(found)} only\n"
            "To do: leave the unit or its module out of the recipe, or choose an architecture that it has"
        )
    device = any(words[0].endswith(DEVICE_SOURCES) for name, _, words in options if not name)
    if kind == "device-link" or (kind == "compile" and device):
        raise PolicyError(
            f"the command names no architecture, so nvcc would compile for its oldest, not for {target}\n"
            "To do: let the recipe add one to this unit"
        )
