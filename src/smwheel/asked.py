"""Which modules `--modules-from` and `--modules` ask for: what says so is kept for the generator, and nothing is said.

Every error here is the user's to mend: it names what was given, not the copy of it that a generator reads.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from smwheel.build.generator import ModulesResponse
from smwheel.errors import UsageError
from smwheel.plan import Resolution, digest, file_digest

ASKED_BYTES = 64 << 20
_NAMES_SHOWN = 5


def keep_asked(path: Path, work: Path) -> Path:
    """Copy a server's log, or the names in its JIT directory, to where a generator can read it; return the copy.

    The copy is named after its content, so that the same question is not asked twice.

    Raises:
        UsageError: there is no such file or directory, or the log is larger than 64 MiB.
    """
    if path.is_dir():
        names = sorted({found.relative_to(path) for end in ("*/*.ninja", "*/*.so") for found in path.glob(end)})
        kept = work / f"asked-{digest([str(name) for name in names])[:12]}"
        for name in names:
            (kept / name).parent.mkdir(parents=True, exist_ok=True)
            (kept / name).touch()
        kept.mkdir(exist_ok=True)
        return kept
    if path.stat().st_size > ASKED_BYTES:
        raise UsageError("a log of more than 64 MiB is not read", where=str(path), cure="cut out the server's start")
    kept = work / f"asked-{file_digest(path)[:12]}.log"
    shutil.copyfile(path, kept)
    return kept


def nothing_matches(resolution: Resolution, response: ModulesResponse) -> UsageError:
    """Return the error of an answer without a module: what was asked for, and why nothing of it is built."""
    recipe, given = resolution.name, resolution.modules_from
    lists = f"`smwheel plan {resolution.recipe.name} --json` lists the modules of a profile"
    if response.missing:
        what = f"{_listed(response.missing)}: {recipe} has no such module"
    elif response.excluded:
        left = _listed([f"{one.name} ({one.reason})" for one in response.excluded])
        what = f"{recipe} leaves out all that is asked for: {left}"
    else:
        what = f"no module of {recipe} is named there" if given else f"{recipe} has no module in this profile"
    if given is None:
        return UsageError(what, where="--modules" if resolution.modules else "--profile", cure=lists)
    own = (
        " ".join(response.notes) or f"give the log, or the JIT directory, of a server that compiled {recipe}'s modules"
    )
    return UsageError(what, where=str(given), cure=f"{own}; {lists}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
