"""Looking at a library as soon as it is linked: it must hold exactly the code that was planned."""

from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from smwheel.arch import Arch
from smwheel.errors import VerifyError
from smwheel.recipe import Expect
from smwheel.wheels.fatbin import Kind, code_of


@dataclass(frozen=True)
class Finding:
    """What GPU code a library holds: architecture → number of cubins."""

    code: Counter[str]
    ptx: Counter[str]

    @property
    def sentence(self) -> str:
        """What the library holds, as people are told it."""
        parts = [f"{count} sm_{code}" for code, count in sorted(self.code.items())]
        parts += [f"{count} PTX {code}" for code, count in sorted(self.ptx.items())]
        return ", ".join(parts) or "no GPU code"


def check_library(path: Path, arch: Arch, expect: Expect) -> Finding:
    """Return what a library holds, if that is what was planned.

    Raises:
        VerifyError: it is missing, holds none of the planned code, or holds code that nothing allows.
        MalformedError: its GPU code cannot be read.
    """
    if not path.is_file():
        raise VerifyError("the library was not made", where=str(path))
    code: Counter[str] = Counter()
    ptx: Counter[str] = Counter()
    for (kind, made_for), count in code_of(path).items():
        (code if kind is Kind.CUBIN else ptx)[made_for.code] += count
    finding = Finding(code, ptx)
    if any(fnmatch.fnmatch(path.name, pattern) for pattern in expect.no_device_code):
        return finding
    allowed = {
        allow for rule in expect.foreign for allow in rule.allow
        if any(fnmatch.fnmatch(path.name, pattern) for pattern in rule.files)
    }  # fmt: skip
    if not code[arch.code] and not allowed & set(code):
        raise VerifyError(f"holds {finding.sentence}, and {arch.sm} was planned", where=path.name)
    foreign = set(code) - {arch.code} - allowed
    if foreign:
        raise VerifyError(f"holds {finding.sentence}: {', '.join(sorted(foreign))} was not planned", where=path.name)
    if ptx and not expect.ptx:
        raise VerifyError(f"holds {finding.sentence}: PTX was not planned", where=path.name)
    return finding
