"""The GPUs of this machine, as far as the driver's own tool tells. Sizes in bytes."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from smwheel.arch import Arch
from smwheel.errors import UsageError

TIMEOUT = 20
"""Seconds that nvidia-smi may take: without the persistence daemon it wakes every GPU first."""

_CUDA = re.compile(r"CUDA (?:\w+ )?Version\s*:\s*(\d+\.\d+)")
_MIB = 1 << 20


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a GPU; `memory` is 0 where the driver does not say (inside containers)."""

    pid: int
    name: str
    memory: int


@dataclass(frozen=True)
class Gpu:
    """One GPU. `arch` is plain: its compute capability."""

    index: int
    name: str
    arch: Arch
    total: int = 0
    free: int = 0
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Driver:
    """The driver and its GPUs. `cuda` is the newest CUDA that it supports; `problem` says why nothing is known."""

    version: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def read() -> Driver:
    """Ask nvidia-smi for driver, GPUs, and who holds their memory; never fails."""
    if shutil.which("nvidia-smi") is None:
        return Driver(problem="there is no nvidia-smi on PATH")
    queries: tuple[list[str], ...] = (
        ["--query-gpu=index,uuid,name,compute_cap,memory.total,memory.free,driver_version"],
        ["--query-compute-apps=gpu_uuid,pid,process_name,used_memory"],
        [],
    )
    with ThreadPoolExecutor(len(queries)) as pool:
        gpus, apps, banner = pool.map(_ask, queries)
    if isinstance(gpus, str):
        return Driver(problem=gpus)
    held: dict[str, list[Process]] = {}
    for row in apps if isinstance(apps, list) else []:
        if len(row) == 4:
            held.setdefault(row[0], []).append(Process(int(row[1]), row[2], _mib(row[3])))
    found = tuple(
        Gpu(int(row[0]), row[2], _arch(row[3]), _mib(row[4]), _mib(row[5]), tuple(held.get(row[1], ())))
        for row in gpus
        if len(row) == 7 and "." in row[3]
    )
    text = "\n".join(", ".join(row) for row in banner) if isinstance(banner, list) else ""
    cuda = _CUDA.search(text)
    return Driver(
        version=gpus[0][-1] if gpus else "",
        cuda=cuda[1] if cuda else "",
        gpus=found,
        problem="" if found else "nvidia-smi lists no GPU",
    )


def _ask(query: list[str]) -> list[list[str]] | str:
    """Return the rows that nvidia-smi prints, or why there are none."""
    options = ["--format=csv,noheader,nounits"] if query else []
    try:
        done = subprocess.run(
            ["nvidia-smi", *query, *options], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer ({error})"
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
        return f"nvidia-smi ends with status {done.returncode}: {said[0]}"
    return [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if row]


def _arch(capability: str) -> Arch:
    major, _, minor = capability.partition(".")
    return Arch(int(major), int(minor))


def _mib(text: str) -> int:
    return int(text) * _MIB if text.isdigit() else 0


def architectures() -> list[Arch]:
    """Return the architecture of every GPU here, in the driver's order; empty without a driver or a GPU."""
    return [gpu.arch for gpu in read().gpus]


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
