"""D6: serving: compiled modules that are not used, and what would be compiled while serving."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from smwheel.arch import FIRST_CUDA
from smwheel.doctor.case import joined, listed
from smwheel.doctor.finding import Found, Level, NotSeen, look_for
from smwheel.doctor.knowledge import matches
from smwheel.doctor.machine import release_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smwheel.doctor.case import Case
    from smwheel.doctor.environment import Distribution
    from smwheel.doctor.knowledge import Compiles, Provider

_NAMES = {"c++": ("c++", "g++", "clang++")}


def _consumers(case: Case) -> Iterator[tuple[Provider, Distribution]]:
    """Yield the rules that hold here, with the package that looks for modules."""
    for rule in case.knowledge.providers:
        consumer = case.environment.distributions.get(rule.consumer)
        if consumer and SpecifierSet(rule.versions).contains(consumer.public, prereleases=True):
            yield rule, consumer


@look_for("D601", "A package of compiled modules breaks the import of the package that uses them.")
def provider_breaks_import(case: Case) -> Iterable[Found]:
    """Look whether the module that is asked for its providers can answer."""
    for rule, consumer in _consumers(case):
        module = case.environment.module(rule.module)
        if module is None or not rule.group:
            continue
        owner = case.environment.distributions.get(rule.module.replace("_", "-"))
        file = module / "__init__.py" if module.is_dir() else module
        if owner is not None and owner.public != consumer.public:
            continue  # it is left alone then, and D208 says so
        if file.is_file() and rule.defines in _defined(file):
            continue
        what = owner.title if owner else f"The directory {module}"
        lack = f"has no {rule.defines}" if file.is_file() else "is no package (it has no __init__.py)"
        yield Found(
            f"{what} breaks `import {_module(case, rule)}`: {rule.module} {lack}, which {consumer.title} calls.",
            f"It is made the way that versions before {rule.versions.lstrip('>=')} wanted it; the call ends with an "
            "AttributeError before anything else is imported.",
            f"{case.environment.pip} uninstall -y {owner.name}" if owner else f"remove {module}",
            rule.consumer,
        )


def _module(case: Case, rule: Provider) -> str:
    known = case.knowledge.package(rule.consumer)
    return known.module if known else rule.consumer


def _defined(file: Path) -> set[str]:
    """Return the names that a module defines or imports at its top level."""
    found: set[str] = set()
    try:
        tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError):
        return found
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                found |= {one.asname or one.name for one in names}
            case ast.Assign(targets=targets):
                found |= {one.id for one in targets if isinstance(one, ast.Name)}
    return found


@look_for("D602", "A package of compiled modules is silently ignored.")
def provider_ignored(case: Case) -> Iterable[Found]:
    """Look for providers that the importing package passes over: no shim, other version, other GPU."""
    for rule, consumer in _consumers(case):
        for provider in _with_entry_point(case, rule.group) if rule.group else ():
            reason, cure = _passed_over(case, rule, provider)
            if reason:
                yield Found(
                    f"{provider.title} is ignored without a word: {reason}.",
                    f"{consumer.title} then compiles the same modules again while it serves, which takes minutes and "
                    "needs a compiler.",
                    cure,
                    provider.name,
                )


def _passed_over(case: Case, rule: Provider, provider: Distribution) -> tuple[str, str]:
    """Return why a provider is not used, and the cure; empty texts if it is."""
    pip, name = case.environment.pip, rule.module.replace("_", "-")
    shim = case.environment.distributions.get(name)
    if case.environment.module(rule.module) is None:
        return (
            f"{name}, through which it is asked for, is not installed",
            f"{pip} install --no-deps {name}=={provider.version}  # it was made together with it",
        )
    if shim and shim.version != provider.version and shim.public == provider.public:
        return (
            f"its version differs from that of {shim.title}, and they must be equal to the last character",
            f"{pip} install --no-deps {shim.name}=={provider.version}",
        )
    package = next((one for one in case.packages if one.name == provider.name), None)
    if package is None or not case.gpus:
        return "", ""
    lacking = [gpu for gpu in case.gpus if not any(library.serves(gpu) for library in package.libraries)]
    if len(lacking) < len(case.gpus):
        return "", ""
    return (
        f"it holds code for {listed(package.cubins())}, and not for {case.gpu_name(lacking[0])}",
        case.build(package.known.recipe) if package.known else f"{pip} uninstall -y {provider.name}",
    )


def _with_entry_point(case: Case, group: str) -> list[Distribution]:
    return [
        one
        for one in case.environment.distributions.values()
        if (one.info / "entry_points.txt").is_file() and f"[{group}]" in (one.info / "entry_points.txt").read_text()
    ]


def _compiling(case: Case) -> Iterator[tuple[Compiles, Distribution]]:
    """Yield packages that will compile while serving: no package of compiled modules is there for them."""
    names = list(case.environment.distributions) + [one.name for one in case.wheels]
    for rule in case.knowledge.compiles:
        distribution = case.environment.distributions.get(rule.distribution)
        if distribution is None or any(matches(name, rule.prebuilt) for name in names):
            continue
        if SpecifierSet(rule.versions).contains(distribution.public, prereleases=True):
            yield rule, distribution


def _tool(case: Case, name: str) -> Path | None:
    if name == "nvcc":
        return case.machine.nvcc
    found = (case.machine.program(one) for one in _NAMES.get(name, (name,)))
    return next((one for one in found if one), None) or _in_environment(case, name)


def _in_environment(case: Case, name: str) -> Path | None:
    path = case.environment.root / "bin" / name
    return path if path.is_file() else None


@look_for("D603", "Kernels would be compiled while serving, and the tools for it are missing.")
def no_compiler(case: Case) -> Iterable[Found]:
    """Look for nvcc, ninja and a C++ compiler where packages look for them."""
    for rule, distribution in _compiling(case):
        missing = [tool for tool in rule.tools if _tool(case, tool) is None]
        if missing:
            yield Found(
                f"{distribution.title} will fail at the first request that needs a kernel it has to compile: "
                f"{joined(missing)} {'is' if len(missing) == 1 else 'are'} not here.",
                f"It compiles kernels while it serves unless a package of compiled ones ({rule.prebuilt[0]}) is "
                f"installed.",
                case.build(rule.recipe)
                if case.serves(rule.recipe)
                else f"install {joined(missing)}: no recipe makes {rule.prebuilt[-1]} for compute capability "
                f"{case.gpus[0].capability}",
                distribution.name,
            )


@look_for("D604", "A ptxas does not know the GPU's architecture.")
def assembler_too_old(case: Case) -> Iterable[Found | NotSeen]:
    """Ask each ptxas, and nvcc where it would be used, for its release."""
    for gpu in case.gpus:
        for tool, who, variable in _assemblers(case, gpu.number):
            release = release_of(tool)
            first = FIRST_CUDA.get(gpu.number)
            if not release:
                yield NotSeen(f"whether {tool} knows sm_{gpu.number}: it cannot be run")
            elif first and Version(release) < Version(first):
                yield Found(
                    f"{who} cannot compile for {case.gpu_name(gpu)}: its assembler {tool} is of CUDA {release}, and "
                    f"sm_{gpu.number} is known since CUDA {first}.",
                    f"It ends with 'ptxas fatal: Value sm_{gpu.number} is not defined for option gpu-name'; advice "
                    f"about "
                    "memory beside that message is wrong.",
                    f"{variable}=/usr/local/cuda/bin/ptxas (of CUDA {first} or newer)"
                    if variable
                    else f"install CUDA {first} or newer, and set CUDA_HOME to it",
                )


def _assemblers(case: Case, number: int) -> Iterator[tuple[Path, str, str]]:
    """Yield (file, who runs it, variable that replaces it) for a GPU."""
    seen: set[str] = set()
    for rule in case.knowledge.assemblers:
        named = case.machine.variables.get(rule.variable)
        inside = next((site / rule.file for site in case.environment.sites if (site / rule.file).is_file()), None)
        path = Path(named) if named and inside else inside
        if path and number >= rule.first and rule.who not in seen:
            seen.add(rule.who)
            yield path, rule.who, rule.variable
    nvcc = case.machine.nvcc
    for _, distribution in _compiling(case) if nvcc else ():
        assert nvcc is not None  # noqa: S101 - the loop is empty without it
        yield nvcc, distribution.title, ""
        return


@look_for("D605", "The CUDA compiler is of another major than torch's CUDA.")
def compiler_of_another_cuda(case: Case) -> Iterable[Found]:
    """Compare nvcc's release with torch's CUDA, where something would be compiled with it."""
    torch, nvcc = case.environment.torch, case.machine.nvcc
    compiling = [one.title for _, one in _compiling(case)]
    if torch is None or not torch.cuda or nvcc is None or not compiling:
        return
    release = release_of(nvcc)
    if release and Version(release).major != torch.cuda_major:
        yield Found(
            f"{joined(compiling)} would compile kernels with CUDA {release} ({nvcc}), and {torch.title} has loaded "
            f"CUDA "
            f"{torch.cuda_major}.",
            f"What is compiled would load libcudart.so.{Version(release).major}: two CUDA runtimes in one process.",
            f"CUDA_HOME=/usr/local/cuda-{torch.cuda} (a toolkit of torch's CUDA), or install compiled modules instead",
        )


@look_for("D606", "ninja is in the environment, and the server will not find it.", level=Level.WARNING)
def tool_not_on_path(case: Case) -> Iterable[Found]:
    """Look for tools that are in the environment's bin directory and not on PATH."""
    for rule, distribution in _compiling(case):
        hidden = [
            tool
            for tool in rule.tools
            if tool != "nvcc" and _in_environment(case, tool) and not case.machine.program(tool)
        ]
        if hidden:
            yield Found(
                f"{distribution.title} will not find {joined(hidden)}: it is in {case.environment.root}/bin, which "
                f"is not on "
                "PATH.",
                "Programs in the environment are found only while it is activated.",
                f"source {case.environment.root}/bin/activate  # before the server is started",
                distribution.name,
            )
            return
