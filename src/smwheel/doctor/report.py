"""What an examination found, most important first: as sentences for people, and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smwheel.doctor.case import joined, listed
from smwheel.doctor.finding import Finding, Level
from smwheel.doctor.packages import cubins
from smwheel.errors import DoctorError

if TYPE_CHECKING:
    from smwheel.doctor.case import Case

FORMAT = 1
"""Version of the JSON; its schema is `docs/doctor.schema.json`."""

# What stops everything comes first; of what is wrong with one package, the cause that others are blamed for in vain.
ORDER = (
    *(
        "D201",
        "D210",
        "D102",
        "D101",
        "D202",
        "D204",
        "D206",
        "D209",
        "D501",
        "D502",
        "D302",
        "D301",
        "D304",
        "D401",
        "D403",
    ),
    *("D207", "D205", "D303", "D402", "D601", "D208", "D203", "D603", "D604", "D602", "D605", "D503", "D701"),
    *("D103", "D104", "D504", "D606", "D211"),
)


@dataclass(frozen=True)
class Report:
    """The result. `fine` are sentences about what works, `unseen` about what could not be looked at."""

    case: Case
    findings: tuple[Finding, ...]
    fine: tuple[str, ...]
    unseen: tuple[str, ...]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings of things that will not work."""
        return tuple(one for one in self.findings if one.level is Level.FAULT)

    @property
    def sentence(self) -> str:
        """The first sentence: the most important finding, or that nothing is wrong."""
        if self.findings:
            return self.findings[0].sentence
        names = joined([one.title for one in self.case.packages])
        looked = f"in {self.case.environment.root}" + (f" ({names})" if names else ", which holds no kernel packages")
        if not self.case.gpus and any(one.code for package in self.case.packages for one in package.libraries):
            return (
                f"No fault was found {looked}, but whether the code fits a GPU was not judged: "
                "no GPU here and no --arch."
            )
        given = self.case.wheels
        if given:
            titles = joined([one.title for one in given])
            on = joined([gpu.capability for gpu in self.case.gpus])
            return (
                f"Nothing wrong was found: {titles} (given with --wheel, not installed) should work in "
                f"{self.case.environment.root}" + (f" on compute capability {on}." if on else ".")
            )
        return f"Nothing wrong was found {looked}."

    @property
    def exit_code(self) -> int:
        """The process's status: 0 without a fault."""
        return DoctorError.exit_code if self.faults else 0

    def as_json(self) -> dict[str, Any]:
        """Return it as `docs/doctor.schema.json` says."""
        return {
            "format": FORMAT,
            "sentence": self.sentence,
            "exit_code": self.exit_code,
            "findings": [one.as_json() for one in self.findings],
            "fine": list(self.fine),
            "not_looked_at": list(self.unseen),
            "machine": _machine_json(self.case),
            "environment": _environment_json(self.case),
        }


def _machine_json(case: Case) -> dict[str, Any]:
    machine = case.machine
    return {
        "driver": machine.driver.version,
        "driver_cuda": machine.driver.cuda,
        "devices": machine.devices,
        "container": machine.container,
        "shared_memory": machine.shared_memory,
        "nvcc": str(machine.nvcc or ""),
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "capability": gpu.arch.capability,
                "total": gpu.total,
                "free": gpu.free,
                "processes": [vars(one) for one in gpu.processes],
            }
            for gpu in machine.driver.gpus
        ],
        "judged_for": [gpu.capability for gpu in case.gpus],
    }


def _environment_json(case: Case) -> dict[str, Any]:
    environment, torch = case.environment, case.environment.torch
    return {
        "path": str(environment.root),
        "python": ".".join(map(str, environment.version or ())),
        "torch": torch.version if torch else "",
        "torch_cuda": torch.cuda if torch else "",
        "packages": [
            {
                "name": package.name,
                "version": package.version,
                "wheel": str(package.wheel or ""),
                "requires": [str(one) for one in package.requires],
                "libraries": [_library_json(case, package, library) for library in package.libraries],
            }
            for package in case.packages
        ],
    }


def _library_json(case: Case, package: Any, library: Any) -> dict[str, Any]:
    found = {
        soname: str(case.loading.find(soname, package.site and package.site / library.name, library.facts) or "")
        for soname in (library.facts.needed if library.facts else ())
    }
    return {
        "name": library.name,
        "architectures": [arch.code for arch in sorted(cubins(library))],
        "needed": found,
        "error": library.error,
    }


def what_is_fine(case: Case, findings: list[Finding]) -> list[str]:
    """Return sentences about what works: the GPUs, torch, and each package without a finding."""
    fine = [
        f"GPU {gpu.index}: {gpu.name}, compute capability {gpu.arch.capability}, "
        f"{gpu.free / 2**30:.0f} of {gpu.total / 2**30:.0f} GiB free"
        for gpu in case.machine.driver.gpus
    ]
    driver, torch = case.machine.driver, case.environment.torch
    if driver.version:
        fine.append(f"driver {driver.version}" + (f", for CUDA up to {driver.cuda}" if driver.cuda else ""))
    faults = [one for one in findings if one.level is Level.FAULT]
    faulty = {one.about for one in faults}
    if torch and "torch" not in faulty and not any(one.code == "D202" for one in faults):
        fine.append(torch.title)
    for package in case.packages:
        # Some faults are of several packages: those name each in their sentence.
        if package.name not in faulty and not any(package.title in one.sentence for one in faults):
            code = listed(package.cubins())
            fine.append(f"{package.title}: " + (f"code for {code}" if code else "no GPU code of its own"))
    return fine
