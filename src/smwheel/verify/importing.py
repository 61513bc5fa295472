"""W6: import, in a fresh process and an environment without a GPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smwheel.verify.environment import driver_stub, environment
from smwheel.verify.libraries import requirements
from smwheel.verify.registry import NotMade, check
from smwheel.verify.verdict import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smwheel.verify.expectations import Expectations
    from smwheel.verify.subject import Subject

TIMEOUT = 600
"""Seconds that an import may take: torch alone needs up to a minute on a cold disk."""

_DRIVER_FUNCTION = re.compile(r"cu[A-Z]\w+")
_CAPABILITIES = ("12.0", "9.0")


@dataclass(frozen=True)
class Outcome:
    """What one process did: the errors (innermost last; none: it worked), files mapped, operators missing."""

    errors: tuple[str, ...]
    opened: tuple[str, ...]
    missing_ops: tuple[str, ...]
    crashed: str = ""

    @property
    def problem(self) -> str:
        """The innermost cause, and what the package made of it; "" if it worked."""
        if self.crashed:
            return self.crashed
        if not self.errors:
            return ""
        outer = f" (shown as {self.errors[0]})" if len(self.errors) > 1 else ""
        return f"{self.errors[-1]}{outer}"


class Importer:
    """Imports one wheel in fresh processes of one environment; unpacked once."""

    def __init__(
        self, subject: Subject, expect: Expectations, python: Path | None, say: Callable[[str], object]
    ) -> None:
        self._subject, self._expect, self._given, self._say = subject, expect, python, say

    @cached_property
    def python(self) -> Path:
        """The interpreter: the one given, or that of an environment made for this wheel."""
        if self._given is not None:
            return self._given
        wanted = [str(one) for one in requirements(self._subject) if one.marker is None or one.marker.evaluate()]
        if self._expect.torch:
            wanted.append(f"torch=={self._expect.torch}")
        return environment(wanted, self._say)

    @cached_property
    def site(self) -> Path:
        """The directory that the wheel is unpacked in."""
        site = self._subject.directory / "site"
        self._subject.wheel.extract(site)
        return site

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """The packages at the top that hold machine code, or all of them if none does."""
        packages = {name.split("/")[0] for name in self._subject.wheel.members if name.count("/__init__.py") == 1}
        packages = {name for name in packages if f"{name}/__init__.py" in self._subject.wheel.members}
        with_code = {library.name.split("/")[0] for library in self._subject.libraries} & packages
        return tuple(sorted(with_code or packages))

    @cached_property
    def variables(self) -> dict[str, str]:
        """The environment variables of the processes: no GPU, the stub of the driver, the unpacked wheel."""
        names = {
            name
            for library in self._subject.libraries
            for name in library.facts.undefined | library.facts.weak_undefined
            if _DRIVER_FUNCTION.fullmatch(name)
        }
        stub = driver_stub(names, self._subject.directory / "driver")
        kept = {key: os.environ[key] for key in ("HOME", "PATH", "TMPDIR", "LANG") if key in os.environ}
        return kept | {
            "PYTHONPATH": str(self.site),
            "LD_LIBRARY_PATH": str(stub),
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *, torch_first: bool = True, capability: str = "", ops: Iterable[str] = ()) -> Outcome:
        """Import the wheel's packages in a new process.

        Raises:
            NotMade: there is no environment, or nothing to import.

        """
        if not self.modules:
            raise NotMade("the wheel holds no package to import")
        work = self._subject.directory
        request, response = work / "request.json", work / "response.json"
        response.unlink(missing_ok=True)
        request.write_text(
            json.dumps(
                {
                    "torch_first": torch_first,
                    "capability": capability,
                    "modules": self.modules,
                    "ops": list(ops),
                    "site": str(self.site),
                }
            )
        )
        with resources.as_file(resources.files("smwheel.verify") / "probe.py") as probe:
            result = self._start([str(probe), str(request), str(response)])
        if isinstance(result, str):
            return Outcome((), (), (), crashed=result)
        if not response.is_file():
            return Outcome((), (), (), crashed=_ending(result))
        said = json.loads(response.read_text())
        return Outcome(tuple(said["error"]), tuple(said["opened"]), tuple(said["missing_ops"]))

    def script(self, path: Path, capability: str) -> dict[str, Any]:
        """Run the recipe's own check and return the document that it prints.

        Raises:
            NotMade: it printed no document.

        """
        result = self._start([str(path), "--gpu", capability])
        if isinstance(result, str):
            raise NotMade(f"{path.name} {result}")
        try:
            said = json.loads(result.stdout)
        except ValueError:
            raise NotMade(f"{path.name} printed no JSON document: {_ending(result)}") from None
        if not isinstance(said, dict):
            raise NotMade(f"{path.name} printed no JSON object")
        return {**said, "exit_status": result.returncode}

    def _start(self, arguments: list[str]) -> subprocess.CompletedProcess[str] | str:
        empty = self._subject.directory / "empty"
        empty.mkdir(exist_ok=True)
        try:
            return subprocess.run(
                [str(self.python), *arguments],
                env=self.variables,
                cwd=empty,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return f"did not end within {TIMEOUT} s"
        except OSError as error:
            raise NotMade(f"{self.python} cannot be started: {error.strerror}", cure="give another --python") from None


def _ending(result: subprocess.CompletedProcess[str]) -> str:
    if result.returncode < 0:
        return f"the process was ended by {signal.Signals(-result.returncode).name}"
    lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
    return f"the process ended without an answer: {lines[-1]}"


def _importer(subject: Subject) -> Importer:
    if subject.importer is None:
        raise NotMade("imports were not asked for", cure="add --import")
    return subject.importer


@check(
    "W601",
    "Its packages can be imported in a fresh process, after torch.",
    cure="the message is the innermost cause: a library that is missing, or a name that this torch does not have",
)
def imports_after_torch(subject: Subject, _: Expectations) -> Iterable[Problem | str]:
    """Import with torch loaded."""
    importer = _importer(subject)
    outcome = importer.run()
    if outcome.problem:
        yield Problem(f"import {', '.join(importer.modules)} failed: {outcome.problem}")
    else:
        yield f"imported {', '.join(importer.modules)}; mapped {', '.join(outcome.opened) or 'no file'}"


@check(
    "W602",
    "Imported without torch before, it works, or says clearly what is missing.",
    cure="import torch in the package's __init__ before the extension",
)
def imports_without_torch(subject: Subject, _: Expectations) -> Iterable[Problem | str]:
    """Import first thing in a process."""
    outcome = _importer(subject).run(torch_first=False)
    if outcome.crashed:
        yield Problem(f"import without torch: {outcome.crashed}")
    elif not outcome.problem:
        yield "works without torch imported before"
    elif outcome.errors[-1].startswith(("ImportError", "ModuleNotFoundError", "OSError")):
        yield f"works only after import torch; without: {outcome.problem}"
    else:
        yield Problem(f"import without torch fails for no clear reason: {outcome.problem}")


@check(
    "W603",
    "On the target the package's loader picks the file that the recipe says.",
    cure="put the code where the loader looks, or correct the loader's rule in the recipe",
    needs=("arch", "recipe"),
)
def loader_picks(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Make the loader believe in GPUs of some capabilities and see what it maps."""
    importer, rule = _importer(subject), expect.loader
    if rule is None or expect.arch is None:
        yield "the recipe has no loader rule"
        return
    for capability in dict.fromkeys((expect.arch.capability, *_CAPABILITIES)):
        directory = rule.directories.get(capability.replace(".", ""), rule.directories.get("*", ""))
        outcome = importer.run(capability=capability)
        picked = [name for name in outcome.opened if fnmatchcase(name.rpartition("/")[2], rule.pattern)]
        said = f"capability {capability}: {', '.join(picked) or 'none'}" + (
            f" ({outcome.problem})" if outcome.problem else ""
        )
        due = [name for name in picked if fnmatchcase(name, f"{directory}/{rule.pattern}")]
        if capability == expect.arch.capability and (not due or picked != due):
            yield Problem(f"{said}; the rule says {directory}/{rule.pattern}")
        else:
            yield said


@check(
    "W604",
    "Every torch operator that the recipe names is registered after the import.",
    cure="look into the build's log for the sources that were left out",
    needs=("recipe",),
)
def operators_are_registered(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Ask torch for each."""
    outcome = _importer(subject).run(ops=expect.ops)
    if outcome.problem:
        raise NotMade(f"the import failed: {outcome.problem}")
    if outcome.missing_ops:
        yield Problem(f"{len(outcome.missing_ops)} operators are not registered: {', '.join(outcome.missing_ops)}")
    else:
        yield f"{len(expect.ops)} operators registered"


@check(
    "W605",
    "The recipe's own check finds what the package is made to bring.",
    cure="see each module's problem",
    needs=("arch", "recipe"),
)
def own_check(subject: Subject, expect: Expectations) -> Iterable[Problem | str]:
    """Run the recipe's script; its protocol is in docs/check-protocol.md."""
    importer = _importer(subject)
    if expect.script is None or expect.arch is None:
        yield "the recipe has no check of its own"
        return
    said = importer.script(expect.script, expect.arch.capability)
    for module in said.get("modules", []):
        if module.get("problem"):
            yield Problem(f"{module.get('module')}: {module['problem']}")
    asked, found = said.get("asked"), said.get("found")
    if not asked or asked != found:
        yield Problem(f"asked for {asked or 'nothing'}, found {found}")
    elif said["exit_status"]:
        yield Problem(f"ended with status {said['exit_status']}")
    else:
        yield f"asked for {asked}, found {found}"
