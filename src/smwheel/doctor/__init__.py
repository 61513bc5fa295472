"""`smwheel doctor`: why kernels do not load in an environment, said in sentences; see `docs/doctor.md`.

Facts first (`machine`, `environment`, `packages`, `loading`), then findings, one function a fault, then their order
(`report`). Nothing of the environment is imported here; `importing` does it in a child process, on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smwheel.doctor import (
    code_findings,
    importing,
    install_findings,
    knowledge,
    library_findings,
    machine_findings,
    packages,
    serving_findings,
    torch_findings,
    wheel_findings,
)
from smwheel.doctor.case import Case
from smwheel.doctor.finding import Finding, registered
from smwheel.doctor.report import ORDER, Report, what_is_fine

if TYPE_CHECKING:
    from pathlib import Path

    from smwheel.arch import Arch
    from smwheel.doctor.environment import Environment
    from smwheel.doctor.machine import Machine

MODULES = (
    machine_findings,
    wheel_findings,
    install_findings,
    code_findings,
    library_findings,
    torch_findings,
    serving_findings,
)


def examine(
    machine: Machine,
    environment: Environment,
    *,
    wheels: tuple[Path, ...] = (),
    asked: Arch | None = None,
    imports: bool = False,
) -> Report:
    """Look for every fault, and return what was found.

    Raises:
        MalformedError: a wheel that was given is damaged.
        RecipeError: the data beside the recipes is wrong.
    """
    known = knowledge.load()
    case = Case(
        machine=machine,
        environment=environment,
        installed=packages.installed(environment, known),
        wheels=tuple(packages.of_wheel(path, known) for path in wheels),
        knowledge=known,
        asked=asked,
    )
    findings: list[Finding] = []
    unseen: list[str] = []
    tried: list[str] = []
    for look in registered().values():
        found, not_seen = look.make(case)
        findings += found
        unseen += not_seen
    findings.sort(key=lambda one: ORDER.index(one.code))
    if imports:
        failed, not_tried, tried = importing.try_imports(case, findings)
        findings = sorted([*findings, *failed], key=lambda one: ORDER.index(one.code))
        unseen += not_tried
    fine = [*what_is_fine(case, findings), *tried]
    return Report(case, tuple(findings), tuple(fine), tuple(dict.fromkeys(unseen)))


__all__ = ["Report", "examine"]
