"""D3: GPU code: whether what a package's import opens runs on the GPUs here."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from smwheel.doctor.case import joined, listed
from smwheel.doctor.finding import Found, NotSeen, look_for
from smwheel.doctor.packages import cubins
from smwheel.wheels import fatbin
from smwheel.wheels.fatbin import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from smwheel.arch import Arch
    from smwheel.doctor.case import Case
    from smwheel.doctor.packages import Package
    from smwheel.wheels.inspect import Library

# The PTX version that each CUDA release's compiler writes. Source: release notes of the PTX ISA.
_PTX_CUDA = {
    (7, 8): "11.8",
    (8, 0): "12.0",
    (8, 1): "12.1",
    (8, 2): "12.2",
    (8, 3): "12.3",
    (8, 4): "12.4",
    (8, 5): "12.5",
    (8, 6): "12.7",
    (8, 7): "12.8",
    (8, 8): "12.9",
    (9, 0): "13.0",
    (9, 1): "13.1",
    (9, 2): "13.2",
}


def _serving(libraries: Iterable[Library], gpu: Arch) -> list[Library]:
    return [one for one in libraries if one.serves(gpu)]


def _judged(case: Case) -> Iterable[tuple[Package, Arch]]:
    """Yield packages that hold readable GPU code, with each GPU."""
    for package in case.packages:
        if any(library.code for library in package.libraries):
            for gpu in case.gpus:
                yield package, gpu


def _lacking(case: Case, package: Package) -> list[Arch]:
    """Return the GPUs that nothing in the package can run on, wherever it lies."""
    return [gpu for gpu in case.gpus if not _serving(package.choices or package.libraries, gpu)]


def _chosen_by_gpu(case: Case, package: Package) -> bool:
    """Return whether another package picks this one's modules by their architecture, and leaves them if none fits."""
    rules = [rule for rule in case.knowledge.providers if package.known and rule.module == package.known.module]
    return any(
        rule.group
        and (consumer := case.environment.distributions.get(rule.consumer))
        and SpecifierSet(rule.versions).contains(consumer.public)
        for rule in rules
    )


@look_for("D301", "The package holds code for other GPUs only.")
def code_for_another_gpu(case: Case) -> Iterable[Found | NotSeen]:
    """Look for packages without any code for any GPU here; of unknown ones nobody can say whether they are used."""
    for package in case.packages:
        lacking = _lacking(case, package)
        if not case.gpus or len(lacking) < len(case.gpus) or not any(one.code for one in package.libraries):
            continue
        if _chosen_by_gpu(case, package):
            continue  # its modules are passed over, and D602 says so
        if package.known is None:
            yield NotSeen(
                f"whether anything uses {package.title} here: it holds code for {listed(package.cubins())}, and none "
                f"for "
                f"{joined([case.gpu_name(gpu) for gpu in lacking])}"
            )
            continue
        yield Found(
            f"{package.title} is made for other GPUs: it holds code for {listed(package.cubins()) or 'none'}, and "
            f"{joined([case.gpu_name(gpu) for gpu in lacking])} cannot run that.",
            "The first kernel would end with 'no kernel image is available for execution on the device'.",
            case.build(package.known.recipe),
            package.name,
        )


@look_for("D302", "The right code lies in a directory that the package's loader never opens.")
def code_never_opened(case: Case) -> Iterable[Found]:
    """Follow the loader's rule: which file it opens on each GPU."""
    for package, gpu in _judged(case):
        opened, able = package.opened(gpu), _serving(package.choices, gpu)
        if not able or _serving(opened, gpu) or any(library.error for library in opened):
            continue
        within = package.directory(gpu)
        there = f"holds only {listed(set().union(*(cubins(one) for one in opened)))}" if opened else "is not there"
        yield Found(
            f"{package.title} holds code for {case.gpu_name(gpu)}, in a file that is never opened there: "
            f"{able[0].name}.",
            f"On compute capability {gpu.capability} its loader opens {within}/, and that file {there}. It never looks "
            f"into {able[0].name.rpartition('/')[0]}/.",
            case.build(package.known.recipe) if package.known else f"install another build of {package.name}",
            package.name,
        )


@look_for("D303", "The GPUs here are of several kinds, and the package serves only some.")
def not_for_all_gpus(case: Case) -> Iterable[Found]:
    """Look for packages that serve one GPU of the machine and not another."""
    for package in case.packages:
        lacking = _lacking(case, package)
        if not lacking or len(lacking) == len(case.gpus) or not any(one.code for one in package.libraries):
            continue
        if package.known is None:
            continue  # whether it is used on both, nobody can say
        fitting = [gpu for gpu in case.gpus if gpu not in lacking]
        indices = [str(one.index) for one in case.machine.driver.gpus if one.arch in fitting]
        yield Found(
            f"{package.title} runs on {joined([case.gpu_name(gpu) for gpu in fitting])} and not on "
            f"{joined([case.gpu_name(gpu) for gpu in lacking])}, which is in this machine too.",
            f"It holds code for {listed(package.cubins())} only. A server that spans both ends with 'no kernel image "
            f"is "
            "available for execution on the device'.",
            f"CUDA_VISIBLE_DEVICES={','.join(indices)}  # serve on the GPUs that it is made for",
            package.name,
        )


@look_for("D304", "Only PTX serves the GPU, and the driver is too old to compile it.")
def ptx_too_new(case: Case) -> Iterable[Found]:
    """Compare the PTX version of what would be compiled at start with the driver's CUDA."""
    supported = case.machine.driver.cuda
    for package, gpu in _judged(case) if supported else ():
        for library in package.opened(gpu):
            if not library.serves(gpu) or any(arch.loads_on(gpu) for arch in cubins(library)) or package.site is None:
                continue
            made_by = _ptx_release(package.site / library.name, gpu)
            if made_by and Version(made_by) > Version(supported):
                yield Found(
                    f"{package.title} has no machine code for {case.gpu_name(gpu)}, only PTX of CUDA {made_by}, which "
                    f"driver {case.machine.driver.version} (CUDA {supported}) cannot compile.",
                    "Machine code of a newer CUDA runs on this driver; PTX does not: 'the provided PTX was compiled "
                    "with an unsupported toolchain'.",
                    case.build(package.known.recipe)
                    if package.known
                    else f"update the driver to one for CUDA {made_by}",
                    package.name,
                )
                break


def _ptx_release(path: Path, gpu: Arch) -> str:
    """Return the newest CUDA release among a file's PTX for a GPU; empty if it holds none that is known."""
    with fatbin.mapped(path) as buffer:
        entries = [entry for region in fatbin.read_regions(buffer, where=str(path)) for entry in region.entries]
        versions = [
            # Bytes 18 and 1a of an entry's header: the PTX version's minor and major.
            struct.unpack_from("<HH", buffer, entry.offset + 0x18)[::-1]
            for entry in entries
            if entry.kind is Kind.PTX and entry.arch.ptx_runs_on(gpu)
        ]
    return max((_PTX_CUDA[one] for one in versions if one in _PTX_CUDA), key=Version, default="")
