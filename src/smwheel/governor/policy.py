"""What the launchers enforce on nvcc's command lines, as data that they read (`client.rewrite` is the doing)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from smwheel.arch import Arch, known

UnitKind = Literal["compile", "link", "device-link"]


@dataclass(frozen=True)
class Addition:
    """An architecture that the recipe adds to units that name none: `unit` is an fnmatch pattern of their ids.

    Example: nvshmem's device link, `Addition("nvshmem/*", ("link",), "arch=compute_120a,code=sm_120a")`.
    """

    unit: str
    kinds: tuple[UnitKind, ...]
    gencode: str


@dataclass(frozen=True)
class LaunchPolicy:
    """Code for `target` (e.g. `sm_120a`): `codes` may stay on a command line, everything else is dropped."""

    target: str
    codes: tuple[str, ...]
    add: tuple[Addition, ...] = ()

    @classmethod
    def for_arch(cls, arch: Arch, *, ptx: bool = False, add: tuple[Addition, ...] = ()) -> LaunchPolicy:
        """Allow the machine code that loads on every GPU that `arch` is for, and with `ptx` what its driver compiles.

        For a family (`120f`) that is what loads on its first GPU, so a unit that exists for `120a` alone stays.
        """
        codes = [one.sm for one in known() if one.loads_on(arch)]
        if ptx:
            codes += [one.compute for one in known() if one.ptx_runs_on(arch)]
        return cls(arch.sm, tuple(codes), add)

    def as_json(self) -> dict[str, Any]:
        """Return the policy as the launchers read it."""
        return {
            "target": self.target,
            "codes": list(self.codes),
            "add": [{"unit": one.unit, "kinds": list(one.kinds), "gencode": one.gencode} for one in self.add],
        }
