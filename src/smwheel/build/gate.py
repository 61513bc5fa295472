"""The way into the wheelhouse: nothing less than every static check, made and passed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from smwheel.errors import HashMismatchError
from smwheel.pipeline import plan_document
from smwheel.plan import Plan
from smwheel.progress import Reporter, size
from smwheel.verify.expectations import Expectations
from smwheel.verify.runner import verify_wheel
from smwheel.wheelhouse import Entry, Wheelhouse, describe
from smwheel.wheels.wheelname import WheelName


def admit(
    wheel: Path,
    plan: Plan,
    expect: Expectations,
    *,
    wheelhouse: Wheelhouse,
    reporter: Reporter,
    holds: dict[str, int],
    evidence: dict[str, Any],
    logs: list[Path],
) -> Entry:
    """Check a wheel of ours and move it into the wheelhouse with its evidence.

    Raises:
        VerifyError, VerifyIncompleteError: a check failed or could not be made; the wheel stays where it is.
    """
    verdict = verify_wheel(wheel, expect)
    if error := verdict.error():
        raise error
    entry = entry_of(wheel, plan, level=str(verdict.level), holds=holds)
    documents = {"plan.json": plan_document(plan), "verdict.json": verdict.as_json(), **evidence}
    wheelhouse.add(wheel, entry, documents, logs)
    reporter.stage("wheel", f"{entry.file} ({size(entry.size)}, proven: {entry.level}): you can install this now")
    return entry


def admit_published(wheel: Path, plan: Plan, sha256: str, *, wheelhouse: Wheelhouse, reporter: Reporter) -> Entry:
    """Copy upstream's own wheel, unchanged, into the wheelhouse.

    Raises:
        HashMismatchError: the stored file is not the one that the recipe pins.
    """
    entry = entry_of(wheel, plan, level="published", holds={})
    if entry.sha256 != sha256:
        raise HashMismatchError(
            "the stored file has other bytes than the recipe pins",
            where=str(wheel),
            cure="delete it: it is fetched again",
        )
    wheelhouse.add(wheel, entry, {"plan.json": plan_document(plan)}, [])
    reporter.stage("wheel", f"{entry.file} ({size(entry.size)}, upstream's own): you can install this now")
    return entry


def entry_of(wheel: Path, plan: Plan, *, level: str, holds: dict[str, int]) -> Entry:
    """Return what the wheelhouse keeps of a wheel."""
    name, resolution = WheelName.parse(wheel.name), plan.resolution
    return Entry(
        **describe(wheel),
        distribution=name.distribution,
        version=str(name.version),
        recipe=resolution.recipe.name,
        arch=resolution.arch.code,
        stack=resolution.stack.name,
        profile=resolution.profile,
        fingerprint=plan.fingerprint,
        level=level,
        made=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        holds=holds,
    )
