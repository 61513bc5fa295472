"""The GPUs of this machine, as far as the driver's own tool tells."""

from __future__ import annotations

import shutil
import subprocess

from smwheel.arch import Arch
from smwheel.errors import UsageError


def architectures() -> list[Arch]:
    """Return the architecture of every GPU here, in the driver's order; empty without a driver or a GPU."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    return [Arch.parse(line) for line in done.stdout.split()]


def the_architecture() -> Arch:
    """Return the one architecture of this machine's GPUs.

    Raises:
        UsageError: there is no GPU, or there are several kinds: one must be named.
    """
    found = sorted(set(architectures()))
    if len(found) == 1:
        return found[0]
    problem = (
        f"this machine has GPUs of several architectures: {', '.join(arch.code for arch in found)}"
        if found
        else "no GPU is visible here, so the architecture must be named"
    )
    raise UsageError(
        problem, where="--arch", cure="name one, e.g. make wheels ARCH=120 (RTX PRO 6000 Blackwell, RTX 5090)"
    )
