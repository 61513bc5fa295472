"""Carrying out strategy `thin`: the published wheel, cut down to one architecture, and proven against it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from smwheel.build.gate import admit
from smwheel.paths import cache_dir
from smwheel.pipeline import EPOCH, Options, announce, fetch_sources, plan_json
from smwheel.plan import Host, Plan, Resolution, digest
from smwheel.progress import Reporter, size
from smwheel.recipe import Thin
from smwheel.sources.store import Store, file_digest
from smwheel.verify.expectations import from_resolution
from smwheel.wheelhouse import Entry, Wheelhouse
from smwheel.wheels.rules import rules_for
from smwheel.wheels.thin import code_json, thin_wheel

FORMAT = 1
"""Raised when the way a wheel is thinned changes its bytes."""


def plan_thin(resolution: Resolution) -> Plan:
    """Return the plan of a thinned wheel: the recipe and the pinned wheel decide all of it, no toolchain and no host.

    Raises:
        RecipeError: a file that the recipe names is not there.
    """
    thin = _thin(resolution)
    directory = resolution.recipe.directory
    texts = {name: file_digest(directory / name) for name in [*(stub.file for stub in thin.stubs), *thin.licenses]}
    return Plan(
        resolution=resolution,
        toolchain={},
        environment="",
        tree=resolution.data.file(thin.source).sha256,
        generator=digest([FORMAT, EPOCH, thin.model_dump(), resolution.data.expect.model_dump(), texts]),
        host=Host("", "", "", "fixed"),
        modules=(),
        units=(),
        excluded=(),
        missing=(),
        notes=(),
    )


def build_thinned(resolution: Resolution, options: Options, reporter: Reporter) -> list[Entry]:
    """Cut the published wheel down and move it, checked, into the wheelhouse.

    Raises:
        ArchError: it holds nothing for this architecture.
        SourceError, NetworkError: it cannot be had.
        VerifyError: the result is not what it must be.
    """
    plan = plan_thin(resolution)
    wheelhouse = Wheelhouse(options.wheelhouse)
    if made := wheelhouse.made_from(plan.fingerprint):
        reporter.stage("unchanged", f"{resolution.name} is in the wheelhouse as this plan makes it")
        return made
    announce(resolution, options, reporter)
    files = fetch_sources(resolution, Store(cache_dir() / "store"), options, reporter)
    original = files[_thin(resolution).source]
    options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.work, prefix="thin-") as scratch:
        report = thin_wheel(
            original,
            Path(scratch),
            resolution.arch,
            version=plan.label,
            rules=rules_for(resolution.recipe, resolution.version, resolution.arch),
            extra_dist_info={"plan.json": plan_json(plan).encode()},
        )
        for file in report.files:
            reporter.line(f"{file.name}: {file.action}, {size(file.before)} to {size(file.after)}")
        expect = replace(from_resolution(resolution), against=original)
        entry = admit(
            report.wheel,
            plan,
            expect,
            wheelhouse=wheelhouse,
            reporter=reporter,
            holds=code_json(report.kept),
            evidence={"thin.json": [file.as_json() for file in report.files]},
            logs=[],
        )
    wheelhouse.complete(plan.fingerprint, [entry])
    reporter.line("upstream's binary cut down: it mends size, not faults; if the published wheel fails, so will this")
    return [entry]


def _thin(resolution: Resolution) -> Thin:
    assert resolution.data.thin is not None  # noqa: S101 - the recipe's model demands it for strategy thin
    return resolution.data.thin
