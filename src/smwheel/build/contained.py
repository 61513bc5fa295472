"""What comes out of a container is looked at again: code of a recipe ran in it and could write what it liked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from smwheel.errors import ContainerError, SmwheelError, VerifyError
from smwheel.plan import Resolution, digest
from smwheel.progress import Reporter, size
from smwheel.recipe import FileSource
from smwheel.verify.expectations import carried_plan, from_resolution
from smwheel.verify.runner import verify_wheel
from smwheel.wheelhouse import Entry, Wheelhouse, describe
from smwheel.wheels.wheelfile import Wheel


def adopt(
    made: Path,
    entry: Entry,
    resolution: Resolution,
    wheelhouse: Wheelhouse,
    *,
    container: dict[str, Any],
    reporter: Reporter,
) -> Entry:
    """Check a wheel that a container left in `made`, and take it into the wheelhouse with its evidence.

    `container` is what is known of the container from outside; it becomes `container.json`.

    Raises:
        ContainerError: a file is not a plain one of that directory.
        VerifyError, VerifyIncompleteError: the wheel is not what its recipe says.
    """
    wheel = _plain(made, entry.file)
    found = describe(wheel)
    verdict: dict[str, Any] = {}
    if entry.level == "published":
        pinned = {source.sha256 for source in resolution.data.sources if isinstance(source, FileSource)}
        if found["sha256"] not in pinned:
            raise VerifyError("is called upstream's own, and the recipe pins other bytes", where=entry.file)
        entry = replace(entry, **found)
    else:
        entry, verdict = _judge(wheel, replace(entry, **found), resolution)
    known = next((one for one in wheelhouse.entries() if (one.file, one.sha256) == (entry.file, entry.sha256)), None)
    if known is not None:
        return known
    folder = f"evidence/{entry.file.removesuffix('.whl')}"
    documents = {
        name: json.loads(_plain(made, f"{folder}/{name}").read_bytes()) for name in _names(made, folder, ".json")
    }
    documents |= {"container.json": container} | ({"verdict.json": verdict} if verdict else {})
    documents.pop("entry.json", None)
    logs = [_plain(made, f"{folder}/{name}") for name in _names(made, folder, ".log")]
    wheelhouse.add(wheel, entry, documents, logs)
    reporter.stage(
        "wheel", f"{entry.file} ({size(entry.size)}, checked outside the container): you can install this now"
    )
    return entry


def as_error(said: dict[str, Any]) -> SmwheelError:
    """Return the error that a program's JSON document describes: of its kind, with its place and cure."""
    kinds = {kind.kind: kind for kind in _kinds(SmwheelError)}
    kind = kinds.get(said.get("error", ""), SmwheelError)
    return kind(str(said.get("message", "")), where=str(said.get("where", "")), cure=str(said.get("cure", "")))


def _judge(wheel: Path, entry: Entry, resolution: Resolution) -> tuple[Entry, dict[str, Any]]:
    with Wheel(wheel) as opened:
        plan = carried_plan(opened)
        native = any(member.endswith(".so") for member in opened.members)
    fingerprint = plan.pop("fingerprint", "")
    if digest(plan) != fingerprint or plan.get("recipe") != resolution.recipe.name:
        raise VerifyError("carries no plan of this recipe that fits its own fingerprint", where=entry.file)
    modules = tuple(plan.get("modules", ())) if native else ()
    verdict = verify_wheel(wheel, from_resolution(resolution, modules=modules))
    if error := verdict.error():
        raise error
    return replace(entry, fingerprint=fingerprint, level=str(verdict.level)), verdict.as_json()


def _names(made: Path, folder: str, suffix: str) -> list[str]:
    return sorted(path.name for path in (made / folder).glob(f"*{suffix}"))


def _plain(made: Path, name: str) -> Path:
    """Return a file below `made`, seen to be one, and not a link to somewhere else."""
    path = made.resolve() / name
    if not path.is_file() or path.resolve() != path:
        raise ContainerError(f"{name} is no plain file of what the build made", where=str(made))
    return path


def _kinds(base: type[SmwheelError]) -> list[type[SmwheelError]]:
    return [base, *(kind for sub in base.__subclasses__() for kind in _kinds(sub))]
