"""GPU architectures: how people write them, what loads on what, and the spelling each tool wants.

Sources: the architecture lists of `nvcc --list-gpu-code` of CUDA 11.8 to 13.2 (which toolkit knows which
number), NVIDIA's description of architecture- (`a`) and family-specific (`f`) targets, and runs on an H200:
a cubin with suffix `a` loads only on exactly that GPU, `f` on its family from its own minor up, plain code on
the same major from its own minor up.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

from smwheel.errors import ArchError

Suffix = Literal["", "a", "f"]

# Architecture number → the first CUDA release whose nvcc compiles for it.
FIRST_CUDA: dict[int, str] = {
    75: "10.0",
    80: "11.0",
    86: "11.1",
    87: "11.4",
    88: "13.0",
    89: "11.8",
    90: "11.8",
    100: "12.8",
    103: "12.9",
    110: "13.0",
    120: "12.8",
    121: "12.9",
}

# The first CUDA release that takes each suffix on the numbers that have one.
SUFFIX_FIRST_CUDA: dict[Suffix, str] = {"": "10.0", "a": "12.0", "f": "12.9"}
FIRST_NUMBER_WITH_SUFFIX: dict[Suffix, int] = {"": 75, "a": 90, "f": 100}

GPUS: dict[int, str] = {
    75: "Turing: RTX 20, T4",
    80: "Ampere: A100",
    86: "Ampere: RTX 30, A40",
    87: "Orin",
    88: "Ampere family, embedded",
    89: "Ada: RTX 40, L40S",
    90: "Hopper: H100, H200",
    100: "Blackwell: B200, GB200",
    103: "Blackwell Ultra: B300, GB300",
    110: "Blackwell: Thor",
    120: "Blackwell: RTX PRO 6000, RTX 5090",
    121: "Blackwell: DGX Spark (GB10)",
}

_PATTERN = re.compile(r"(?:sm_?|compute_?)?(?:(\d{1,2})\.(\d)|(\d{2,3}))([a-z]?)", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Arch:
    """One architecture that code is made for, e.g. `120a`.

    `major` and `minor` are those of the GPU's compute capability; `suffix` is "" (plain), "a"
    (architecture-specific) or "f" (family-specific).
    """

    major: int
    minor: int
    suffix: Suffix = ""

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Read `120`, `12.0`, `12.0a`, `sm_120a` or `compute_120f`.

        Raises:
            ArchError: the text is no architecture, or none that any supported CUDA knows; names the nearest.

        """
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise ArchError(f"{text!r} is not a GPU architecture", where="--arch", cure=_nearest(text))
        if match[3]:
            major, minor = int(match[3][:-1]), int(match[3][-1])
        else:
            major, minor = int(match[1]), int(match[2])
        number, suffix = major * 10 + minor, match[4].lower()
        if number not in FIRST_CUDA or suffix not in ("", "a", "f"):
            raise ArchError(f"no GPU architecture {text!r} is known", where="--arch", cure=_nearest(text))
        arch = cls(major, minor, suffix)  # type: ignore[arg-type]  # checked above
        if number < FIRST_NUMBER_WITH_SUFFIX[arch.suffix]:
            raise ArchError(
                f"{number} has no {suffix!r} variant ({suffix!r} starts with {FIRST_NUMBER_WITH_SUFFIX[arch.suffix]})",
                where="--arch",
                cure=f"write {number}",
            )
        return arch

    @property
    def number(self) -> int:
        """The architecture number as in `sm_120`."""
        return self.major * 10 + self.minor

    @property
    def code(self) -> str:
        """Number and suffix, e.g. `120a`: how smwheel writes an architecture."""
        return f"{self.number}{self.suffix}"

    @property
    def sm(self) -> str:
        """The name of the machine code, e.g. `sm_120a`."""
        return f"sm_{self.code}"

    @property
    def compute(self) -> str:
        """The name of the virtual architecture, e.g. `compute_120a`."""
        return f"compute_{self.code}"

    @property
    def capability(self) -> str:
        """The GPU's compute capability, e.g. `12.0`."""
        return f"{self.major}.{self.minor}"

    @property
    def dotted(self) -> str:
        """What TORCH_CUDA_ARCH_LIST and FLASHINFER_CUDA_ARCH_LIST take, e.g. `12.0a`."""
        return f"{self.major}.{self.minor}{self.suffix}"

    @property
    def cmake(self) -> str:
        """What CMAKE_CUDA_ARCHITECTURES takes for machine code alone, e.g. `120a-real`."""
        return f"{self.code}-real"

    @property
    def gencode(self) -> str:
        """nvcc's flag for machine code alone, e.g. `-gencode=arch=compute_120a,code=sm_120a`."""
        return f"-gencode=arch={self.compute},code={self.sm}"

    @property
    def first_cuda(self) -> Version:
        """The first CUDA release whose compiler takes this architecture."""
        return max(Version(FIRST_CUDA[self.number]), Version(SUFFIX_FIRST_CUDA[self.suffix]))

    @property
    def plain(self) -> Arch:
        """The same GPU without a suffix."""
        return Arch(self.major, self.minor)

    def require_cuda(self, cuda: Version) -> None:
        """Raise ArchError if the compiler of this CUDA release does not know the architecture."""
        if cuda < self.first_cuda:
            raise ArchError(
                f"{self.sm} needs CUDA {self.first_cuda} or newer, and this stack has CUDA {cuda}",
                where="--arch",
                cure=f"use a stack with CUDA {self.first_cuda} or newer, or --arch {self.number}",
            )

    def loads_on(self, gpu: Arch) -> bool:
        """Return whether machine code for this architecture loads on `gpu` (whose suffix does not matter)."""
        if self.suffix == "a":
            return self.number == gpu.number
        return self.major == gpu.major and self.minor <= gpu.minor

    def ptx_runs_on(self, gpu: Arch) -> bool:
        """Return whether the driver of `gpu` can compile PTX of this virtual architecture."""
        match self.suffix:
            case "a":
                return self.number == gpu.number
            case "f":
                return self.loads_on(gpu)
            case _:
                return (self.major, self.minor) <= (gpu.major, gpu.minor)

    def __str__(self) -> str:
        return self.code


def known() -> list[Arch]:
    """Return every architecture that some supported CUDA release compiles for."""
    return [
        Arch(number // 10, number % 10, suffix)
        for number in FIRST_CUDA
        for suffix, first in FIRST_NUMBER_WITH_SUFFIX.items()
        if number >= first
    ]


def _nearest(text: str) -> str:
    digits = re.sub(r"^(sm|compute)_?|\.", "", text.strip().lower())
    codes = [arch.code for arch in known()]
    close = difflib.get_close_matches(digits, codes, n=3, cutoff=0.5)
    return f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(codes)}"
