"""D1: the machine: driver, GPUs, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from smwheel.doctor.finding import Found, Level, NotSeen, look_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smwheel.doctor.case import Case
    from smwheel.gpu import Gpu

SMALL_SHARED_MEMORY = 1 << 30
"""Bytes of /dev/shm below which servers with several GPUs fail: containers have 64 MiB by default."""
MOSTLY_HELD = 0.5
"""Share of a GPU's memory that others hold, from which on a server has too little: it takes about 0.85 of it all."""
_GIB = 1 << 30


@look_for("D101", "The driver is too old for torch's CUDA.")
def driver_too_old(case: Case) -> Iterable[Found | NotSeen]:
    """Compare majors: within a major, a newer CUDA runs on an older driver (NVIDIA's minor version compatibility)."""
    driver, torch = case.machine.driver, case.environment.torch
    if not torch or not torch.cuda or not driver.gpus:
        return
    if not driver.cuda:
        yield NotSeen("which CUDA the driver supports: nvidia-smi does not say")
    elif Version(driver.cuda).major < Version(torch.cuda).major:
        yield Found(
            f"The driver is too old: {torch.title} needs a driver for CUDA {Version(torch.cuda).major}, and driver "
            f"{driver.version} supports CUDA up to {driver.cuda}.",
            "Nothing that uses the GPU will start; kernels and their architectures have no part in it.",
            "update the NVIDIA driver (CUDA 13 needs 580 or newer, CUDA 12 needs 525 or newer), or take a torch for "
            f"CUDA {Version(driver.cuda).major}",
        )


@look_for("D102", "There is an NVIDIA GPU, and its driver is not visible.")
def no_driver(case: Case) -> Iterable[Found | NotSeen]:
    """Look for devices that no driver serves; without any device only say what could not be seen."""
    driver = case.machine.driver
    if driver.gpus:
        return
    if not case.machine.devices:
        yield NotSeen(
            f"GPU and driver: {driver.problem}, and no NVIDIA device is here. "
            + (
                f"Code is judged for --arch {case.asked.number}."
                if case.asked
                else "Whether the code fits a GPU was not judged; say which with --arch 120."
            )
        )
    elif case.machine.container:
        yield Found(
            f"This container cannot use the GPU: {case.machine.devices} NVIDIA device(s) are on the machine, and the "
            f"driver's files are not in the container ({driver.problem}).",
            "The driver belongs to the host; the container engine must be asked to bring it in.",
            "start the container with the GPUs: docker run --gpus all … (needs the NVIDIA Container Toolkit)",
        )
    else:
        yield Found(
            f"The NVIDIA driver does not work here: {case.machine.devices} NVIDIA device(s) are on the machine, and "
            f"{driver.problem}.",
            "Nothing that uses the GPU can start before the driver does.",
            "install or repair the NVIDIA driver, then run nvidia-smi",
        )


@look_for("D103", "Another process holds a GPU's memory.", level=Level.WARNING)
def memory_held(case: Case) -> Iterable[Found]:
    """Look at each GPU's free memory."""
    for gpu in case.machine.driver.gpus:
        if gpu.total and gpu.free < gpu.total * (1 - MOSTLY_HELD):
            held = (gpu.total - gpu.free) / _GIB
            yield Found(
                f"GPU {gpu.index} ({gpu.name}) is in use: {held:.0f} of {gpu.total / _GIB:.0f} GiB of its memory are "
                f"held by {_holders(gpu)}.",
                "A server that starts now finds too little memory, and says so in words about its own settings.",
                f"stop that process, or use another GPU: CUDA_VISIBLE_DEVICES={_free_gpu(case, gpu)}",
            )


def _holders(gpu: Gpu) -> str:
    named = [f"{one.name.rpartition('/')[2]} (process {one.pid})" for one in gpu.processes[:3]]
    return ", ".join(named) or "processes that cannot be seen from here (another container or user)"


def _free_gpu(case: Case, held: Gpu) -> str:
    freest = max(case.machine.driver.gpus, key=lambda gpu: gpu.free)
    return str(freest.index) if freest.index != held.index else "N"


@look_for("D104", "Shared memory (/dev/shm) is too small for several GPUs.", level=Level.WARNING)
def small_shared_memory(case: Case) -> Iterable[Found | NotSeen]:
    """Look at the size of the file system."""
    size = case.machine.shared_memory
    if size is None:
        yield NotSeen("shared memory: there is no /dev/shm, or it cannot be read")
    elif len(case.machine.driver.gpus) > 1 and size < SMALL_SHARED_MEMORY:
        yield Found(
            f"Shared memory (/dev/shm) has {size >> 20} MiB, too little for a server on "
            f"{len(case.machine.driver.gpus)} GPUs.",
            "Its processes exchange data there: NCCL ends with 'Error while creating shared memory segment'.",
            "start the container with --shm-size 16g (or --ipc=host)",
        )
