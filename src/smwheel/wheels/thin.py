"""One architecture out of a published wheel: the same machine code, without that of other GPUs.

Every shared object is cut (`cut.py`); everything else is carried as it is, but for what the recipe says: a library
left without code may be replaced by a small stub, and files that nothing opens on the target are left out. The
new wheel says in its metadata and in `thin.json` what it was made from and what was done; `compare.py` proves it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from smwheel import __version__
from smwheel.errors import ArchError, LicenceError, MalformedError
from smwheel.wheels import cut, skeleton
from smwheel.wheels.elf import is_elf, policy_floor, read_elf
from smwheel.wheels.fatbin import Kind
from smwheel.wheels.wheelfile import Wheel, rewrite_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from smwheel.arch import Arch
    from smwheel.wheels.elf import ElfFacts
    from smwheel.wheels.wheelfile import Content

Code = Counter[tuple[Kind, "Arch"]]

REPORT = "thin.json"
NOTICE = "licenses/NOTICE.thinned.txt"
STREAM_CHUNK = 128 << 10

_LIBRARY = re.compile(r"\.so(\.\d+)*$")
# NVIDIA's own libraries: their licence forbids to alter them (CUDA Toolkit EULA 1.2, cuDNN and NCCL builds alike).
_NVIDIA_LIBRARY = re.compile(
    r"lib(cuda|cudart|cublas(Lt)?|cudnn(_\w+)?|cufft(w)?|cufile(_rdma)?|cupti|curand|cusolver(Mg)?|cusparse(Lt)?"
    r"|nccl|nppc|nppi\w*|npps|nvblas|nvfatbin|nvinfer(_\w+)?|nvJitLink|nvjpeg(2k)?|nvrtc(-builtins)?"
    r"|nvshmem(_\w+)?|nvToolsExt)[-.]",
)
_PROPRIETARY = "License :: Other/Proprietary License"


@dataclass(frozen=True)
class Stub:
    """A file of ours for the place of a library left without code; `replaces` is a pattern of member names."""

    replaces: str
    path: str
    content: bytes
    reason: str


@dataclass(frozen=True)
class Rules:
    """What a package's recipe says about thinning it; empty for a wheel of which nothing is known.

    `drop` maps patterns of member names to reasons; `licences` file names to texts; `requires` are requirements
    added if METADATA says nothing of their distributions; `compiled` says how to get a wheel by compiling.
    """

    stubs: tuple[Stub, ...] = ()
    drop: Mapping[str, str] = field(default_factory=dict)
    licences: Mapping[str, bytes] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    compiled: str = "compile it from source for this architecture"


@dataclass(frozen=True)
class File:
    """What became of one member; sizes in bytes.

    `action` is `cut`, `zero-filled`, `unchanged`, `stub` (replaced by `reason`'s stub) or `left out`.
    """

    name: str
    action: str
    reason: str
    before: int
    after: int
    kept: Code
    dropped: Code

    def as_json(self) -> dict[str, Any]:
        """Return it as `thin.json` and `--json` hold it."""
        return {
            "name": self.name,
            "action": self.action,
            "reason": self.reason,
            "before": self.before,
            "after": self.after,
            "kept": code_json(self.kept),
            "dropped": code_json(self.dropped),
        }


@dataclass(frozen=True)
class Report:
    """A thinned wheel and how it was made; sizes in bytes."""

    wheel: Path
    original: str
    original_size: int
    original_sha256: str
    gpu: Arch
    files: tuple[File, ...]
    requires: tuple[str, ...]

    @property
    def kept(self) -> Code:
        """All GPU code that is in the new wheel."""
        return sum((file.kept for file in self.files), start=Counter())

    def as_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        installed = sum(file.before - file.after for file in self.files)
        return {
            "wheel": str(self.wheel),
            "size": self.wheel.stat().st_size,
            "installed_less": installed,
            **_report_json(self),
        }


def code_json(code: Code) -> dict[str, int]:
    """Return counts under names such as `120a` for machine code, `ptx 90` and `ltoir 90` for the rest."""
    names = {Kind.CUBIN: "", Kind.PTX: "ptx ", Kind.LTOIR: "ltoir "}
    ordered = sorted(code.items(), key=lambda item: (-item[0][0], item[0][1]))
    return {f"{names[kind]}{arch}": number for (kind, arch), number in ordered}


def thin_wheel(
    source: Path,
    destination: Path,
    gpu: Arch,
    *,
    version: str | None = None,
    cuda_tag: str = "",
    rules: Rules | None = None,
    ptx: bool = False,
    extra_dist_info: Mapping[str, Content] | None = None,
) -> Report:
    """Write a wheel that holds only what `gpu` can use into the directory `destination`.

    `version` is the whole version of the new wheel; without it, one is made: the original's, `cuda_tag` (or what the
    libraries link, e.g. `cu13`), the architecture and `thin`. `ptx` keeps PTX also where there is machine code.

    Raises:
        ArchError: the wheel holds nothing for this GPU; lists what it holds.
        LicenceError: the package, or a library in it, is NVIDIA's own.
        MalformedError: the wheel or a library in it is damaged.

    """
    rules = rules or Rules()
    destination.mkdir(parents=True, exist_ok=True)
    with Wheel(source) as wheel, tempfile.TemporaryDirectory(dir=destination, prefix=".thin-") as work:
        _refuse_by_licence(wheel)
        _refuse_what_is_not_whole(wheel)
        files = list(_thin_members(wheel, Path(work), gpu, rules, ptx=ptx))
        if not any(file.kept for file, _ in files):
            raise _nothing_for(gpu, wheel, [file for file, _ in files], rules)
        report = Report(
            wheel=source,
            original=source.name,
            original_size=source.stat().st_size,
            original_sha256=_sha256(source),
            gpu=gpu,
            files=tuple(file for file, _ in files),
            requires=_missing(wheel, rules.requires),
        )
        facts = [read_elf(path, where=file.name) for file, path in files if path is not None]
        if version is None:
            version = _label(wheel.name.version, cuda_tag or _linked_cuda(facts), report, ptx=ptx)
        replace: dict[str, Content] = {file.name: path for file, path in files if path is not None}
        replace |= {stub.path: stub.content for stub in rules.stubs if _used(stub, report)}
        replace[f"{wheel.dist_info}/METADATA"] = _metadata(wheel, report)
        target = rewrite_wheel(
            source,
            destination,
            version=version,
            tags=_tags(wheel, facts),
            replace=replace,
            remove=[file.name for file in report.files if file.action in ("stub", "left out")],
            extra_dist_info={
                NOTICE: _notice(report).encode(),
                REPORT: (json.dumps(_report_json(report), indent=1) + "\n").encode(),
                **{f"licenses/{name}": text for name, text in rules.licences.items()},
                **(extra_dist_info or {}),
            },
        )
    return Report(**{**vars(report), "wheel": target})


def _thin_members(
    wheel: Wheel, work: Path, gpu: Arch, rules: Rules, *, ptx: bool
) -> Iterator[tuple[File, Path | None]]:
    """Yield what became of each library and each file left out, with the new content of those that have one."""
    for number, (name, info) in enumerate(wheel.members.items()):
        reason = next((why for pattern, why in rules.drop.items() if fnmatch.fnmatchcase(name, pattern)), None)
        if reason is not None:
            yield File(name, "left out", reason, info.file_size, 0, Counter(), Counter()), None
            continue
        if not _LIBRARY.search(name):
            continue
        path = work / f"{number}.whole"
        skeleton.unpack(
            lambda name=name: wheel.stream(name, chunk=STREAM_CHUNK),  # type: ignore[misc]
            path,
            lambda entry: entry.kind is Kind.CUBIN and not entry.arch.loads_on(gpu),
            where=f"{wheel.path.name}:{name}",
        )
        with path.open("rb") as file:
            if not is_elf(file.read(4)):
                path.unlink()
                continue
        path.chmod(0o755 if info.external_attr >> 16 & 0o111 else 0o644)
        yield _thin_library(name, path, path.with_suffix(".thin"), gpu, rules, ptx=ptx)
        path.unlink()


def _thin_library(
    name: str, source: Path, target: Path, gpu: Arch, rules: Rules, *, ptx: bool
) -> tuple[File, Path | None]:
    outcome = cut.thin_file(source, target, gpu, ptx=ptx, where=name)
    if outcome.dropped and _NVIDIA_LIBRARY.match(name.rsplit("/", 1)[-1]):
        raise _not_allowed(name)
    stub = next((stub for stub in rules.stubs if fnmatch.fnmatchcase(name, stub.replaces)), None)
    if stub is not None and outcome.dropped and not outcome.kept:
        target.unlink()
        file = File(name, "stub", stub.reason, outcome.before, len(stub.content), Counter(), outcome.dropped)
        return file, None
    file = File(name, outcome.method, outcome.reason, outcome.before, outcome.after, outcome.kept, outcome.dropped)
    return file, target


def _used(stub: Stub, report: Report) -> bool:
    return any(file.action == "stub" and fnmatch.fnmatchcase(file.name, stub.replaces) for file in report.files)


def _refuse_by_licence(wheel: Wheel) -> None:
    if wheel.name.distribution.startswith("nvidia-") or _PROPRIETARY in (wheel.metadata.get_all("Classifier") or []):
        raise _not_allowed(wheel.path.name)


def _refuse_what_is_not_whole(wheel: Wheel) -> None:
    """Refuse a wheel that is not what it says: a new RECORD would hide it."""
    said = (canonicalize_name(str(wheel.metadata["Name"])), str(wheel.metadata["Version"]))
    if said != (wheel.name.distribution, str(wheel.name.version)):
        raise MalformedError(
            f"METADATA says {said[0]} {said[1]}",
            where=wheel.path.name,
            cure="smwheel verify says what is wrong with it",
        )
    own = {f"{wheel.dist_info}/{name}" for name in ("RECORD", "RECORD.jws", "RECORD.p7s")}
    listed = {row.path for row in wheel.record}
    unlisted = [name for name in wheel.members if name not in listed and name not in own and not name.endswith("/")]
    if unlisted:
        raise MalformedError(
            f"RECORD does not list {unlisted[0]}",
            where=wheel.path.name,
            cure="smwheel verify says what is wrong with it",
        )


def _not_allowed(what: str) -> LicenceError:
    return LicenceError(
        "is NVIDIA's own, or under a proprietary licence that does not allow to alter it",
        where=what,
        cure="use it as it is published",
    )


def _nothing_for(gpu: Arch, wheel: Wheel, files: Iterable[File], rules: Rules) -> ArchError:
    held: Code = sum((file.dropped for file in files), start=Counter())
    text = ", ".join(code_json(held)) or "no GPU code at all"
    return ArchError(
        f"holds nothing that a GPU of architecture {gpu.plain} can use; it holds {text}",
        where=wheel.path.name,
        cure=f"choose another --arch, or {rules.compiled}",
    )


def _missing(wheel: Wheel, requires: Iterable[str]) -> tuple[str, ...]:
    """Return those requirements of whose distributions METADATA says nothing."""
    try:
        stated = {Requirement(str(text)).name.lower() for text in wheel.metadata.get_all("Requires-Dist") or []}
    except InvalidRequirement as error:
        raise MalformedError(f"Requires-Dist is no requirement: {error}", where=wheel.path.name) from error
    return tuple(text for text in requires if Requirement(text).name.lower() not in stated)


def _linked_cuda(facts: Iterable[ElfFacts]) -> str:
    """Return e.g. `cu13` from the CUDA runtime that the libraries link; "" if none or several."""
    found = {match[1] for one in facts for name in one.needed if (match := re.match(r"libcudart\.so\.(\d+)", name))}
    return f"cu{found.pop()}" if len(found) == 1 else ""


def _label(version: Version, cuda: str, report: Report, *, ptx: bool) -> str:
    """Return e.g. `0.4.10+cu130.sm120a.thin`; the suffix only if all machine code has it."""
    archs = {arch for kind, arch in report.kept if kind is Kind.CUBIN}
    code = archs.pop().code if len(archs) == 1 else report.gpu.plain.code
    parts = [version.local or "", cuda, f"sm{code}", "thinptx" if ptx else "thin"]
    return f"{version.public}+{'.'.join(part for part in parts if part)}"


def _tags(wheel: Wheel, facts: list[ElfFacts]) -> list[str]:
    """Return the original's tags with the platform that the remaining libraries earn by their symbols."""
    platform = policy_floor(facts)
    return sorted({f"{tag.interpreter}-{tag.abi}-{platform}" for tag in wheel.tags})


def _metadata(wheel: Wheel, report: Report) -> bytes:
    """Return METADATA with the added requirements, and the notice ahead of the description."""
    text = wheel.read(f"{wheel.dist_info}/METADATA").replace(b"\r\n", b"\n")
    head, blank, body = text.partition(b"\n\n")
    if not blank:
        head, blank = head.rstrip(b"\n"), b"\n\n"
    for requirement in report.requires:
        head += f"\nRequires-Dist: {requirement}".encode()
    return head + blank + _notice(report).encode() + b"\n---\n\n" + body


def _notice(report: Report) -> str:
    """Return what METADATA and the notice file say; names nothing but the wheel it was made from."""
    lines = [
        f"This is {report.original}, cut down to GPU architecture {report.gpu.plain} by smwheel {__version__}.",
        "It is not the publisher's file: machine code for other GPUs was taken out, files were changed.",
        "What remains is bit for bit the published machine code. That mends size, not faults: what fails with the",
        "published wheel fails with this one. Report faults of the code to its authors, of the cut to smwheel.",
        f"sha256 of the original: {report.original_sha256}",
        "",
        "Changed or left out:",
        "",
    ]
    groups: dict[tuple[str, str], list[str]] = {}
    for file in report.files:
        if file.action != "unchanged":
            groups.setdefault((file.action, file.reason), []).append(file.name)
    for (action, reason), names in groups.items():
        what = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        lines.append(f"- {', '.join(names) if len(names) < 4 else what}: {action}{f' ({reason})' if reason else ''}")
    lines += [f"- METADATA: requires {requirement}, which was not stated" for requirement in report.requires]
    return "\n".join(lines) + "\n"


def _report_json(report: Report) -> dict[str, Any]:
    return {
        "format": 1,
        "tool": f"smwheel {__version__}",
        "gpu": report.gpu.plain.code,
        "original": {
            "file": report.original,
            "size": report.original_size,
            "sha256": report.original_sha256,
        },
        "files": [file.as_json() for file in report.files],
        "requires_added": list(report.requires),
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_report(wheel: Wheel) -> dict[str, Any]:
    """Return `thin.json` of a thinned wheel.

    Raises:
        MalformedError: it has none, or it is not readable: the wheel was not made by `thin`.

    """
    name = f"{wheel.dist_info}/{REPORT}"
    where = f"{wheel.path}:{name}"
    if name not in wheel.members:
        raise MalformedError(
            "is not there: this wheel was not made by smwheel thin", where=where, cure="give a wheel that was"
        )
    try:
        data = json.loads(wheel.read(name))
    except ValueError as error:
        raise MalformedError(f"is not JSON: {error}", where=where) from error
    if not isinstance(data, dict) or data.get("format") != 1:
        raise MalformedError(
            "has a format that is not known here", where=where, cure="use the smwheel that made it, or a newer"
        )
    return data
