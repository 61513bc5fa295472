"""D5: torch and Python: whether a package's libraries fit the torch and the interpreter of the environment."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.version import Version

from smwheel.doctor.case import listed
from smwheel.doctor.finding import Found, Level, look_for
from smwheel.doctor.knowledge import recipe_of
from smwheel.wheels import torchsymbols
from smwheel.wheels.sonames import owner
from smwheel.wheels.torchsymbols import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from smwheel.doctor.case import Case
    from smwheel.doctor.environment import Torch
    from smwheel.doctor.packages import Package
    from smwheel.wheels.inspect import Library

MAX_DEPTH = 6
"""How many modules deep an import is followed."""


def using_torch(case: Case, package: Package) -> list[Library]:
    """Return the libraries opened by a package's import that need torch's."""
    return [
        library
        for library in case.opened(package)
        if library.facts is not None and any(owner(name) == "torch" for name in library.facts.needed)
    ]


@look_for(
    "D501", "The package was built for another torch: its C++ names are not there (never a missing architecture)."
)
def another_torch(case: Case) -> Iterable[Found]:
    """Look for names of torch that no library of this torch brings."""
    torch = case.environment.torch
    if torch is None or not torch.cuda:
        return
    for package in case.packages:
        libraries = using_torch(case, package)
        missing = {one.name: torch.symbols.missing(one.facts) for one in libraries if one.facts}
        # A package may bring variants of one library for several versions: one that fits is enough.
        if not libraries or not all(missing.values()) or _other_strings(torch, missing):
            continue
        names = sorted(set().union(*missing.values()))
        fits = torchsymbols.matching(one.facts for one in libraries if one.facts)
        built = f"for torch {fits[-1][0]}" if fits else "for another torch"
        yield Found(
            f"{package.title} cannot be loaded: it was built {built}, and torch {torch.version} is installed; your "
            f"wheel {_holds(case, package)}, but its torch symbols are from another torch.",
            f"It asks torch for {len(names)} C++ names that torch {torch.version} does not have, e.g. "
            f"{readable(names[0])}. No architecture is missing and building it again for the GPU alone changes "
            f"nothing; "
            "loaders that try several files hide this behind 'could not load any … library'.",
            _another_build(case, package, torch, fits[-1][0] if fits else ""),
            package.name,
        )


def _holds(case: Case, package: Package) -> str:
    able = {arch for gpu in case.gpus for arch in package.cubins() if arch.loads_on(gpu)}
    if able:
        return f"holds {listed(able)}, the right code for {case.gpu_name(case.gpus[0])}"
    return f"holds {listed(package.cubins())}" if package.cubins() else "may hold the right GPU code"


def _another_build(case: Case, package: Package, torch: Torch, fits: str) -> str:
    if fits and (wanted := _wanted_torch(case, torch, fits)):
        return f"{case.environment.pip} install '{wanted}'  # the installed server requires it, too"
    other_torch = f"  # or: {case.environment.pip} install torch=={fits}" if fits else ""
    if package.known:
        recipe = recipe_of(package.known.recipe)
        for version, data in recipe.versions.items():
            if data.torch and _minor(data.torch) == _minor(torch.version):
                name = data.distribution or recipe.name
                other = name != package.name and package.wheel is None
                uninstall = f"{case.environment.pip} uninstall -y {package.name} && " if other else ""
                install = f"{case.environment.pip} install --force-reinstall --no-deps {name}=={version}"
                return f"{uninstall}{install}{other_torch}"
        return f"{case.build(package.known.recipe)}{other_torch}"
    if fits:
        return f"{case.environment.pip} install torch=={fits}"
    return f"install a build of {package.name} that is made for torch {torch.version}"


def _wanted_torch(case: Case, torch: Torch, fits: str) -> str:
    """Return what an installed server requires of torch, if that is the torch that fits and not the one here."""
    for server in case.knowledge.servers:
        distribution = case.environment.distributions.get(server.distribution)
        for one in distribution.requirements(case.environment.version) if distribution else ():
            if one.name == "torch" and one.specifier.contains(fits) and not one.specifier.contains(torch.version):
                return str(one)
    return ""


def _minor(version: str) -> tuple[int, ...]:
    return Version(version).release[:2]


def _other_strings(torch: Torch, missing: dict[str, tuple[str, ...]]) -> list[str]:
    other = torchsymbols.uses_old_strings if torch.symbols.new_strings else torchsymbols.uses_new_strings
    return sorted(name for names in missing.values() for name in names if other(name))


@look_for("D502", "The package was compiled with the other C++ string type than torch (CXX11 ABI).")
def another_string_type(case: Case) -> Iterable[Found]:
    """Look for string types of the other ABI among the names of torch that are missing."""
    torch = case.environment.torch
    if torch is None or not torch.cuda:
        return
    for package in case.packages:
        missing = {one.name: torch.symbols.missing(one.facts) for one in using_torch(case, package) if one.facts}
        names = _other_strings(torch, missing)
        if names and all(missing.values()):
            new = int(torch.symbols.new_strings)
            yield Found(
                f"{package.title} cannot be loaded: its CXX11 ABI differs, it was compiled with "
                f"_GLIBCXX_USE_CXX11_ABI={1 - new}, and torch {torch.version} with {new}.",
                f"Every function of torch that takes a text has another name then, e.g. {readable(names[0])}.",
                f"compile it again with -D_GLIBCXX_USE_CXX11_ABI={new}: {case.build(package.known.recipe)}"
                if package.known
                else f"compile {package.name} again with -D_GLIBCXX_USE_CXX11_ABI={new}",
                package.name,
            )


@look_for("D503", "The package loads its library before torch is imported.", level=Level.WARNING)
def torch_not_first(case: Case) -> Iterable[Found]:
    """Follow the package's own imports: what comes first, torch or a library that needs it."""
    for package in case.packages:
        if package.site is None or not package.libraries:
            continue
        needing = {
            package.site / one.name
            for one in package.libraries
            if one.facts
            and not (one.facts.rpath or one.facts.runpath)
            and any(owner(name) == "torch" for name in one.facts.needed)
        }
        for top in sorted({one.name.split("/")[0] for one in package.libraries if "/" in one.name}):
            start = package.site / top / "__init__.py"
            first = _first_loaded(start, package.site, needing, MAX_DEPTH) if needing else None
            if first and first != "torch":
                yield Found(
                    f"{package.title} works only after `import torch`: its own `import {top}` loads {first} without "
                    f"it.",
                    "That library needs torch's libraries and has no path to them: alone it fails with 'libtorch.so: "
                    "cannot "
                    "open shared object file' (or libc10.so). Nothing is missing.",
                    f"import torch before {top} in your program",
                    package.name,
                )


def _first_loaded(file: Path, site: Path, needing: set[Path], depth: int) -> str | None:
    """Return `torch` or the library's name, whichever running this file loads first; None if neither."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    for name in _imports(tree.body, file, site):
        if name.split(".")[0] == "torch":
            return "torch"
        base = site.joinpath(*name.split("."))
        library = next(
            (path for path in needing if path.parent == base.parent and path.name.startswith(f"{base.name}.")), None
        )
        if library:
            return library.name
        module = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if depth and module.is_file() and module != file:
            found = _first_loaded(module, site, needing, depth - 1)
            if found:
                return found
    return None


def _imports(body: list[ast.stmt], file: Path, site: Path) -> Iterator[str]:
    """Yield the full names that statements import when the module is run, in their order (functions are not run)."""
    package = file.parent.relative_to(site).parts
    for node in body:
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package[: len(package) - level + 1] if level else ()
                base = ".".join([*above, *([module] if module else [])])
                yield base
                yield from (f"{base}.{one.name}" for one in names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.If(body=first, orelse=second):
                yield from _imports([*first, *second], file, site)
            case ast.Try(body=first):
                # What fails in there is caught: only that torch is loaded counts.
                yield from (name for name in _imports(first, file, site) if name.split(".")[0] == "torch")
            case ast.With(body=first):
                yield from _imports(first, file, site)


@look_for("D504", "A wheel for every Python (abi3) holds a file for one Python only.", level=Level.WARNING)
def one_python_only(case: Case) -> Iterable[Found]:
    """Compare the interpreter with the Python in file names; the recipe knows what a package does without."""
    here = case.environment.version
    if here is None:
        return
    python = f"{here[0]}.{here[1]}"
    for package in case.packages:
        if not any(one.python == "abi3" for one in package.libraries):
            continue
        data = package.data
        spared = [*data.expect.one_python, *(data.thin.drop if data.thin else [])] if data else []
        fitting = {_stem(one) for one in package.libraries if one.python in ("abi3", f"cp{here[0]}{here[1]}")}
        wrong = [
            one
            for one in package.libraries
            if one.python not in ("", "abi3", f"cp{here[0]}{here[1]}") and _stem(one) not in fitting
        ]
        named = [one for one in wrong if not any(fnmatchcase(one.name, pattern) for pattern in spared)]
        if named:
            made = f"{named[0].python[2]}.{named[0].python[3:]}"
            yield Found(
                f"{package.title} holds {named[0].name} for Python {made} alone, and this is Python {python}.",
                "The wheel claims every Python (abi3); what is in this file raises ModuleNotFoundError here.",
                f"use Python {made}, or install a build of {package.name} for Python {python}",
                package.name,
            )


def _stem(library: Library) -> str:
    """Return a module's path without what says for which Python it is."""
    directory, _, file = library.name.rpartition("/")
    return f"{directory}/{file.partition('.')[0]}"
