"""One examination: the machine, the environment and the packages that findings look at together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from smwheel.arch import GPUS, Arch
from smwheel.doctor.knowledge import recipe_of
from smwheel.doctor.loading import Loading

if TYPE_CHECKING:
    from smwheel.doctor.environment import Environment
    from smwheel.doctor.knowledge import Knowledge
    from smwheel.doctor.machine import Machine
    from smwheel.doctor.packages import Package
    from smwheel.recipe import Target
    from smwheel.wheels.inspect import Library


@dataclass(frozen=True)
class Case:
    """What is known. `wheels` are judged in the place of what is installed; `asked` is a GPU given by hand."""

    machine: Machine
    environment: Environment
    installed: tuple[Package, ...]
    wheels: tuple[Package, ...]
    knowledge: Knowledge
    asked: Arch | None = None

    @cached_property
    def packages(self) -> tuple[Package, ...]:
        """The packages to judge: the wheels, and what is installed beside them."""
        instead = {one.name for one in self.wheels} | {
            name for one in self.wheels if one.known for name in one.known.distributions
        }
        return (*self.wheels, *(one for one in self.installed if one.name not in instead))

    @cached_property
    def gpus(self) -> tuple[Arch, ...]:
        """The architectures to judge for: the one asked for, else those of this machine's GPUs."""
        if self.asked is not None:
            return (self.asked.plain,)
        return tuple(dict.fromkeys(gpu.arch for gpu in self.machine.driver.gpus))

    @cached_property
    def loading(self) -> Loading:
        """Where libraries would be found."""
        return Loading(self.machine, self.environment, self.knowledge)

    def gpu_name(self, arch: Arch) -> str:
        """Return a GPU as people know it, e.g. `your NVIDIA H200 (compute capability 9.0)`."""
        here = next((gpu for gpu in self.machine.driver.gpus if gpu.arch == arch), None)
        if here is not None and self.asked is None:
            return f"your {here.name} (compute capability {arch.capability})"
        kind = GPUS.get(arch.number, "")
        return f"a GPU of compute capability {arch.capability}" + (
            f" ({kind.partition(': ')[2] or kind})" if kind else ""
        )

    def opened(self, package: Package) -> tuple[Library, ...]:
        """Return the libraries that importing a package opens on these GPUs (on none: as without a GPU)."""
        found = {library.name: library for gpu in self.gpus or (None,) for library in package.opened(gpu)}
        return tuple(one for one in found.values() if not one.error)

    @property
    def arch_option(self) -> str:
        """The architecture as `--arch` takes it."""
        return str(self.gpus[0].number) if self.gpus else "120"

    def serves(self, recipe: str) -> bool:
        """Return whether some version of a recipe is made for the GPU that is judged for; True if that is unknown."""
        return not self.gpus or any(self.gpus[0].code in (*one.request, one.code) for one in _targets(recipe))

    def build(self, recipe: str) -> str:
        """Return the command that makes a package for this environment and GPU, or that nothing can make it.

        Of a wheel that is not installed the environment says nothing: the default stack is taken then.
        """
        targets = _targets(recipe)
        for gpu in self.gpus[:1]:
            if self.serves(recipe):
                continue
            runs = next((one.code for one in targets if Arch.parse(one.code).loads_on(gpu)), "")
            if runs:
                return f"install the published {recipe}: its sm_{runs} runs on compute capability {gpu.capability}"
            return f"use another GPU: no version of {recipe} supports compute capability {gpu.capability}"
        given = any(one.known and one.known.recipe == recipe for one in self.wheels)
        stack = "" if given else f" --stack from:{self.environment.root}"
        return f"smwheel build {recipe} --arch {self.arch_option}{stack}"


def _targets(recipe: str) -> list[Target]:
    return [one for data in recipe_of(recipe).versions.values() for one in data.targets]


def listed(archs: set[Arch]) -> str:
    """Return architectures as people read them, e.g. `sm_90a and sm_120a`."""
    return joined([arch.sm for arch in sorted(archs)])


def joined(words: list[str]) -> str:
    """Return words as a list in a sentence."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
