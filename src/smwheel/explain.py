"""What `smwheel plan` says: everything that is resolved, what it will cost here, or why it cannot be built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smwheel.build.thinned import plan_thin
from smwheel.errors import SmwheelError
from smwheel.estimate import Estimate, estimate, predict
from smwheel.governor.limits import Limits, measure
from smwheel.pipeline import Options, Site, download_size, prepare, sources_of
from smwheel.plan import Plan, Resolution, Unit
from smwheel.progress import Reporter, size
from smwheel.recipe import GitSource, Source

ONLY_CONFIGURING = "only configuring the package's own build can tell"
"""Why a plan lists neither modules nor units of a PEP 517 build."""


@dataclass(frozen=True)
class PlanReport:
    """One recipe's plan, as far as it could be made."""

    name: str
    resolution: Resolution | None
    plan: Plan | None
    site: Site | None
    costs: Costs | None
    estimate: Estimate | None
    limits: Limits
    error: SmwheelError | None
    fine: str = ""
    """Why nothing is to be made."""

    def as_json(self) -> dict[str, Any]:
        """Return the object that `plan --json` prints for this recipe."""
        head: dict[str, Any] = {
            "recipe": self.name,
            "error": self.error.as_json() if self.error else None,
            "already_fine": self.fine,
            "modules": None,
            "units": None,
            "limits": self.limits.as_json(),
        }
        if self.resolution is not None:
            head |= _resolved_json(self.resolution)
        if self.costs is not None:
            head["costs"] = vars(self.costs)
        if self.plan is None:
            return head | {"modules_reason": self.error.message if self.error else ""}
        head |= {"fingerprint": self.plan.fingerprint, "label": self.plan.label}
        if self.site is None:
            return head | {"modules_reason": "nothing is compiled: the published wheel is cut down"}
        plan = self.plan
        known = {
            "modules": [
                {"name": module.name, "family": module.family, "library": module.library, "units": list(module.units)}
                for module in plan.modules
            ],
            "units": [_unit_json(unit) for unit in plan.units],
        }
        return head | {
            "toolchain": plan.toolchain,
            "host": vars(plan.host),
            "environment": self.site.variables,
            "requirements": plan.environment,
            "work": str(self.site.work),
            "estimate": self.estimate.as_json() if self.estimate else None,
            **(known if plan.units else {"modules_reason": ONLY_CONFIGURING}),
            "excluded": [{"name": name, "reason": reason} for name, reason in plan.excluded],
            "missing": list(plan.missing),
            "notes": list(plan.notes),
        }

    def as_text(self) -> str:
        """Return the plan as people read it."""
        lines = [self.name if self.resolution is None else self.resolution.name]
        if self.resolution is not None:
            lines += _resolved_text(self.resolution)
        if self.fine:
            lines.append(f"  decision   nothing to make: {self.fine}")
        if self.costs is not None:
            lines.append(self.costs.as_text())
        if self.plan is not None:
            lines += _planned_text(self.plan, self.site)
        if self.estimate is not None:
            lines.append(f"  expected   {self.estimate.as_text()}")
            lines.append(
                f"  limits     {size(self.limits.budget)} of memory ({self.limits.memory_source}), "
                f"{self.limits.jobs} units at once ({self.limits.jobs_source})"
            )
        if self.error is not None:
            lines.append("  CANNOT BE BUILT HERE")
            lines += [f"    {line}" for line in str(self.error).splitlines()]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Costs:
    """What a build fetches and what it takes on disk, in bytes, before anything is fetched."""

    download: int
    disk: int

    def as_text(self) -> str:
        """Return the costs as a line of a plan."""
        what = f"{size(self.download)} to download" if self.download else "nothing to download"
        return f"  costs      {what}, {size(self.disk)} of disk needed"


def explain(name: str, resolve: Callable[[str], Resolution], options: Options, reporter: Reporter) -> PlanReport:
    """Plan one recipe; errors become part of the report."""
    resolution, costs, expected, site = None, None, None, None
    limits = measure(options.memory, options.jobs)
    try:
        resolution = resolve(name)
        costs = Costs(*download_size(resolution, options))
        if resolution.strategy == "thin":
            return PlanReport(name, resolution, plan_thin(resolution), None, costs, None, limits, None)
        prepared = prepare(resolution, options, reporter)
        site, plan = prepared.site, prepared.plan
        expected = estimate(predict(plan), limits) if plan.units else None
    except SmwheelError as error:
        return PlanReport(name, resolution, None, site, costs, expected, limits, error)
    return PlanReport(name, resolution, plan, site, costs, expected, limits, None)


def nothing_to_make(name: str, reason: str, options: Options) -> PlanReport:
    """Return the report of a recipe whose package is already fine where it is to be used."""
    return PlanReport(name, None, None, None, None, None, measure(options.memory, options.jobs), None, reason)


def _unit_json(unit: Unit) -> dict[str, Any]:
    return {
        "id": unit.id,
        "module": unit.module,
        "family": unit.family,
        "kind": unit.kind,
        "source": unit.source,
        "command": list(unit.command),
        "inputs": list(unit.inputs),
        "output": unit.output,
    }


def _resolved_json(resolution: Resolution) -> dict[str, Any]:
    data = resolution.data
    return {
        "version": resolution.version,
        "strategy": resolution.strategy,
        "why_strategy": resolution.why_strategy,
        "request": resolution.request.code,
        "arch": resolution.arch.code,
        "why": resolution.why,
        "warning": resolution.warning,
        "stack": {
            "name": resolution.stack.name,
            "cuda": resolution.stack.cuda,
            "torch": resolution.stack.torch,
            "python": resolution.stack.python,
        },
        "pins": resolution.stack.recipes,
        "profile": resolution.profile,
        "sources": [source.model_dump() for source in sources_of(resolution)],
        "system": [need.model_dump() for need in data.system],
        "defines": data.build.environment if data.build else {},
    }


def _resolved_text(resolution: Resolution) -> list[str]:
    stack = resolution.stack
    lines = [
        f"  arch       {resolution.request} means {resolution.arch.sm}: {resolution.why}",
        f"  stack      {stack.name}: CUDA {stack.cuda}, torch {stack.torch}",
        f"  strategy   {resolution.strategy}: {resolution.why_strategy}",
        *([f"  profile    {resolution.profile}"] if resolution.strategy == "compile" and resolution.profile else []),
    ]
    if resolution.warning:
        lines.append(f"  WARNING    {resolution.warning}")
    return lines + [f"  source     {_source_text(source)}" for source in sources_of(resolution)]


def _source_text(source: Source) -> str:
    if isinstance(source, GitSource):
        return source.title
    return f"{source.file}  {size(source.size) if source.size else 'size not known'}  sha256 {source.sha256}"


def _planned_text(plan: Plan, site: Site | None) -> list[str]:
    lines = []
    if site is not None:
        sandbox = site.sandbox
        kinds = Counter(unit.kind for unit in plan.units)
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        lines = [
            f"  toolchain  CUDA {plan.toolchain['version']} ({plan.toolchain['origin']})",
            f"  host       {plan.host.compiler}; {plan.host.libc}",
            (
                f"  sandbox    paths {'fixed' if sandbox.fixed else 'of this machine'}, "
                f"network {'allowed' if sandbox.network else 'none'}{f' ({sandbox.reason})' if sandbox.reason else ''}"
            ),
            *(
                (f"  modules    {len(plan.modules)}", f"  units      {len(plan.units)}: {counted}")
                if plan.units
                else (f"  units      {ONLY_CONFIGURING}",)
            ),
        ]
    return [
        *lines,
        *(f"  left out   {name}: {reason}" for name, reason in plan.excluded),
        *(f"  NOT FOUND  {name}" for name in plan.missing),
        *(f"  note       {note}" for note in plan.notes),
        f"  version    {plan.label}",
        f"  plan       {plan.fingerprint}",
    ]
