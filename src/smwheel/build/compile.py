"""Carrying out a plan: units → libraries → wheels → wheelhouse."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smwheel.build import ninja
from smwheel.build.asking import ask_package
from smwheel.build.gate import admit, admit_published
from smwheel.build.generator import Product
from smwheel.build.libraries import Finding, check_library
from smwheel.build.sandbox import kill_survivors
from smwheel.estimate import ledger, ledger_key, predict
from smwheel.governor.limits import measure
from smwheel.governor.policy import LaunchPolicy
from smwheel.governor.session import Governor
from smwheel.governor.trace import Summary
from smwheel.locks import locked
from smwheel.pipeline import Prepared, Site, plan_json
from smwheel.plan import Module
from smwheel.progress import Reporter, duration
from smwheel.recipe import FileSource
from smwheel.verify.expectations import from_resolution
from smwheel.wheelhouse import Entry, Wheelhouse
from smwheel.wheels.elf import platform_tag
from smwheel.wheels.wheelfile import write_wheel


@dataclass(frozen=True)
class Compiled:
    """What compiling gave: each module's finding, how the machine was used, and the seconds it took."""

    findings: dict[str, Finding]
    summary: Summary
    seconds: float


LOCK_SECONDS = 2.0
"""How long a second build of the same work directory waits before it says who holds it."""


def build_compiled(prepared: Prepared, reporter: Reporter) -> list[Entry]:
    """Build every wheel of a plan into the wheelhouse and return the entries, upstream's own wheels first.

    Raises:
        LockedError: another live build works on the same tree and architecture.
        BuildError: a unit failed.
        VerifyError: a product is not what the plan says.
    """
    wheelhouse = Wheelhouse(prepared.site.options.wheelhouse)
    made = wheelhouse.made_from(prepared.plan.fingerprint)
    if made:
        reporter.stage("unchanged", f"{prepared.plan.resolution.name} is in the wheelhouse as this plan makes it")
        return made
    with locked(prepared.site.work / "lock", timeout=LOCK_SECONDS):
        killed = kill_survivors(prepared.site.build_id)
        if killed:
            reporter.line(f"ended {killed} processes that an earlier run of this build left behind")
        published = [
            admit_published(stored, prepared.plan, source.sha256, wheelhouse=wheelhouse, reporter=reporter)
            for source, stored in _published(prepared)
        ]
        compiled = _compile(prepared, reporter)
        entries = published + _pack(prepared, compiled, wheelhouse, reporter)
    wheelhouse.complete(prepared.plan.fingerprint, entries)
    return entries


def _published(prepared: Prepared) -> list[tuple[FileSource, Path]]:
    """Return upstream's own wheels that the recipe wants beside ours, as they lie in the store."""
    return [
        (source, stored)
        for source in prepared.plan.resolution.data.sources
        if isinstance(source, FileSource) and source.publish and (stored := prepared.site.store.path(source.sha256))
    ]


def _compile(prepared: Prepared, reporter: Reporter) -> Compiled:
    """Run the units that are not finished, checking each module as it is completed."""
    begun = time.monotonic()
    plan, site, sandbox = prepared.plan, prepared.site, prepared.site.sandbox
    file = site.work / "build.ninja"
    predictions = predict(plan)
    # ninja starts about 190 launchers at once, in this order: the broker must have the long ones to choose from.
    ninja.write_file(file, sorted(plan.units, key=lambda unit: -predictions[unit.id].seconds))
    pending = ninja.pending(file, sandbox, cwd=site.work)
    total = len(plan.units)
    findings: dict[str, Finding] = {}
    by_last_unit = {module.units[-1]: module for module in plan.modules}
    reporter.stage("compile", f"{total} units of {len(plan.modules)} modules, {total - len(pending)} finished before")
    limits = measure(site.options.memory, site.options.jobs)
    governor = Governor(
        limits,
        {unit: predictions[unit] for unit in pending},
        site.work,
        families={unit.id: unit.family for unit in plan.units},
        ledger=ledger().path,
        build=ledger_key(plan),
        build_id=site.build_id,
        policy=LaunchPolicy.for_arch(plan.resolution.arch),
        on_event=lambda event: _say(event, reporter),
    )
    left = {unit: predictions[unit].seconds for unit in pending}
    with governor, reporter.units(total, left, limits.jobs) as shown:
        for unit in ninja.run(
            file,
            sandbox,
            cwd=site.work,
            jobs=governor.ninja_jobs,
            build_id=site.build_id,
            environment=site.variables | {ninja.LAUNCHER: sandbox.inside(_launcher(governor, site))},
            log=site.work / "log" / "compile.log",
        ):
            shown.ended(unit)
            module = by_last_unit.get(unit)
            if module and sandbox.outside(module.library).is_file():  # ninja counts a failed unit too
                findings[module.name] = _check(prepared, module)
                reporter.line(f"module {module.name}: {findings[module.name].sentence}")
    assert governor.summary is not None  # noqa: S101 - set when the governor's block ends
    findings = {module.name: findings.get(module.name) or _check(prepared, module) for module in plan.modules}
    return Compiled(findings, governor.summary, time.monotonic() - begun)


def _say(event: dict[str, Any], reporter: Reporter) -> None:
    """Pass on what the governor warns of."""
    if event["event"] in ("warning", "killed"):
        reporter.warn(str(event["text"]))


def _launcher(governor: Governor, site: Site) -> Path:
    """Write the program that stands before every command: it is given the unit's id, then the command."""
    path = site.work / "launch"
    command = [site.sandbox.inside(word) for word in governor.launcher_command()]
    path.write_text(f'#!/bin/sh\nunit=$1\nshift\nexec {shlex.join(command)} --unit "$unit" -- "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def _check(prepared: Prepared, module: Module) -> Finding:
    resolution = prepared.plan.resolution
    return check_library(prepared.site.sandbox.outside(module.library), resolution.arch, resolution.data.expect)


def _pack(prepared: Prepared, compiled: Compiled, wheelhouse: Wheelhouse, reporter: Reporter) -> list[Entry]:
    plan = prepared.plan
    built = {module.name: module.library for module in plan.modules}
    answer = prepared.site.generator().products(prepared.site.request() | {"label": plan.label, "built": built})
    cubins = sum((finding.code for finding in compiled.findings.values()), Counter[str]())
    site = prepared.site
    evidence: dict[str, Any] = {
        "build.json": {
            "compile_seconds": round(compiled.seconds, 1),
            "modules": len(plan.modules),
            "units": len(plan.units),
            "governor": compiled.summary.as_json(),
            "network": "allowed" if site.sandbox.network else "none",
        },
        "modules.json": {name: vars(finding) for name, finding in compiled.findings.items()},
    }
    with tempfile.TemporaryDirectory(dir=site.work / "tmp") as scratch:
        wheels = [_write(prepared, product, Path(scratch)) for product in answer.products]
        if (found := ask_package(prepared, [*(path for _, path in _published(prepared)), *wheels])) is not None:
            evidence["loader.json"] = found
            reporter.line(f"its own loader finds {found['found']} of {found['asked']} modules, nothing compiled")
        entries = [
            admit(
                wheel,
                plan,
                from_resolution(plan.resolution, modules=() if product.pure else tuple(built)),
                wheelhouse=wheelhouse,
                reporter=reporter,
                holds={} if product.pure else dict(cubins),
                evidence={} if product.pure else evidence,
                logs=[] if product.pure else sorted((site.work / "log").glob("*.log")) + _governor_files(site),
            )
            for product, wheel in zip(answer.products, wheels, strict=True)
        ]
    reporter.line(f"compiled in {duration(compiled.seconds)}")
    return entries


def _governor_files(site: Site) -> list[Path]:
    """Return what the governor wrote of this build: its trace, and every change of a command line."""
    return [site.work / "governor" / name for name in ("trace.json", "rewrites.jsonl")]


def _write(prepared: Prepared, product: Product, destination: Path) -> Path:
    files: list[tuple[str, bytes | Path]] = []
    extra: dict[str, bytes | Path] = {"plan.json": plan_json(prepared.plan).encode()}
    libraries: list[Path] = []
    for file in product.files:
        content: bytes | Path = (
            (file.text or "").encode() if file.origin is None else prepared.site.sandbox.outside(file.origin)
        )
        if file.dist_info:
            extra[f"{file.dist_info}/{Path(file.path).name}"] = content
            continue
        if isinstance(content, Path) and content.suffix == ".so":
            libraries.append(content)
        files.append((file.path, content))
    platform = "any" if product.pure else platform_tag(libraries)
    headers = [
        ("Summary", product.summary),
        ("License-Expression", product.license),
        ("Requires-Python", product.requires_python),
        *(("Requires-Dist", requirement) for requirement in product.requires),
    ]
    return write_wheel(
        destination,
        distribution=product.distribution,
        version=prepared.plan.label,
        tags=[f"py3-none-{platform}"],
        files=files,
        headers=headers,
        entry_points=_entry_points(product.entry_points),
        extra_dist_info=extra,
    )


def _entry_points(groups: dict[str, dict[str, str]]) -> str:
    return "\n".join(
        line
        for group, names in groups.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()), "")
    )
