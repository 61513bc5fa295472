"""The proof that a wheel comes from its plan: the plan is carried out again, and the bytes are compared."""

from __future__ import annotations

import json
import tempfile
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smwheel.arch import Arch
from smwheel.builder import Wish, build_all
from smwheel.errors import UsageError, VerifyError
from smwheel.pipeline import Options
from smwheel.plan import CUSTOM_PROFILE
from smwheel.progress import Reporter
from smwheel.sources.store import file_digest
from smwheel.verify.expectations import carried_plan, stack_of
from smwheel.wheelhouse import Entry, Wheelhouse
from smwheel.wheels.wheelfile import Wheel
from smwheel.wheels.wheelname import WheelName


@dataclass(frozen=True)
class Rebuilt:
    """A wheel that was made again with the same bytes: its sha256, its plan's fingerprint, and what it was made on."""

    wheel: str
    sha256: str
    fingerprint: str
    base_image: str

    def as_json(self) -> dict[str, Any]:
        """Return the object that `rebuild --json` prints."""
        return vars(self) | {"identical": True}


def rebuild(wheel: Path, options: Options, reporter: Reporter, *, recipe: str = "") -> Rebuilt:
    """Carry out the plan that a wheel carries, from nothing but the cache of sources, and compare what comes out.

    A wheel that was made on a base image is made on exactly that one again, with the engine of `options.backend`
    (docker, if that says host); one made on a host is made on this host. Nothing that was compiled before is taken.
    `recipe` is the recipe's directory, if it is none of smwheel's own.

    Raises:
        UsageError: the file carries no plan, or its recipe and stack are not known here.
        VerifyError: this machine's plan is another, or the bytes differ; says in what.
        SmwheelError: whatever building ended with.
    """
    with Wheel(wheel) as opened:
        plan = carried_plan(opened)
    base = plan.get("host", {}).get("base_image", "")
    wish = wish_of(plan, recipe, where=wheel.name)
    options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.work.absolute(), prefix="rebuild-") as scratch:
        backend = ("docker" if options.backend == "host" else options.backend) if base else "host"
        again = replace(
            options,
            work=Path(scratch) / "work",
            wheelhouse=Path(scratch) / "wheelhouse",
            backend=backend,
            base_image=base,
        )
        outcome = build_all(wish, again, reporter)
        if error := outcome.error():
            raise error
        _compare(wheel, plan, outcome.entries, Wheelhouse(again.wheelhouse))
    return Rebuilt(wheel.name, file_digest(wheel), plan["fingerprint"], base)


def wish_of(plan: dict[str, Any], recipe: str = "", *, where: str) -> Wish:
    """Return what must be asked for to get this plan again.

    Raises:
        UsageError: there is no plan, or no stack with its versions.
    """
    if not plan:
        raise UsageError("carries no plan", where=where, cure="only wheels that smwheel made can be made again")
    known = stack_of(plan)
    if known is None:
        versions = f"{plan['recipe']} {plan['version']}, CUDA {plan['stack']['cuda']}, torch {plan['stack']['torch']}"
        raise UsageError(f"no stack here has {versions}", where=where, cure="use the smwheel that made the wheel")
    custom = plan["profile"] == CUSTOM_PROFILE
    compiled = plan["strategy"] == "compile"
    return Wish(
        recipes=(recipe or plan["recipe"],),
        arch=Arch.parse(plan["arch"]),
        stack=known,
        profile=plan["profile"] if compiled and not custom else None,
        modules=tuple(plan["modules"]) if custom else None,
        strategy=plan["strategy"],
    )


def _compare(wheel: Path, plan: dict[str, Any], entries: list[Entry], made: Wheelhouse) -> None:
    distribution = WheelName.parse(wheel.name).distribution
    entry = next((entry for entry in entries if WheelName.parse(entry.file).distribution == distribution), None)
    if entry is None:
        raise VerifyError("this plan makes no such wheel any more", where=wheel.name)
    again = made.root / entry.file
    if entry.fingerprint != plan["fingerprint"]:
        evidence = made.root / "evidence" / entry.file.removesuffix(".whl") / "plan.json"
        changed = differing(plan, json.loads(evidence.read_bytes()))
        raise VerifyError(
            f"cannot be made again here: the plan is another in {', '.join(changed)}",
            where=wheel.name,
            cure="use the smwheel, the toolkit and the base image that made it",
        )
    if file_digest(again) != file_digest(wheel):
        raise VerifyError(f"other bytes from the same plan: {', '.join(_members(wheel, again))}", where=wheel.name)


def differing(one: dict[str, Any], other: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the keys in which two plans differ, e.g. `host.compiler`."""
    found = []
    for key in sorted((one.keys() | other.keys()) - {"fingerprint"}):
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += differing(mine, theirs, f"{prefix}{key}.")
        elif mine != theirs:
            found.append(f"{prefix}{key}")
    return found


def _members(wheel: Path, again: Path) -> list[str]:
    """Return the members that differ, or that it is the archive around them."""
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as two:
        sums = [{info.filename: info.CRC for info in archive.infolist()} for archive in (one, two)]
    names = sorted(name for name in sums[0].keys() | sums[1].keys() if sums[0].get(name) != sums[1].get(name))
    return names or ["the archive itself (order, times or compression)"]
