"""Prove that a thinned wheel is its original minus GPU code, by looking at both: nothing of how it was made is used.

Every byte of the new wheel is one of: a kept entry of a fat binary, bit for bit the original's; a byte outside the fat
binaries, equal to the original's at its place; a header, pointer or symbol that a cut must change, at exactly the
places where such fields are, with a value that means the same; a line of the metadata that names version, tags or
notice; or a file that `thin.json` declares as added.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smwheel.arch import Arch
from smwheel.errors import MalformedError
from smwheel.wheels import fatbin, skeleton
from smwheel.wheels.elf import is_elf
from smwheel.wheels.fatbin import Kind
from smwheel.wheels.image import PF_W, PT_LOAD, SHT_NOBITS, SHT_SYMTAB, Buffer, Image
from smwheel.wheels.references import RECORD_SECTION, CannotCutError, pointers
from smwheel.wheels.thin import NOTICE, REPORT, STREAM_CHUNK, read_report
from smwheel.wheels.wheelfile import Wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smwheel.wheels.image import Section

_BLOCK = 1 << 16
_SECTION_TABLE_FIELD = (0x28, 0x30)
_SEGMENT_COUNT = 56
# What may be in the metadata directory of a thinned wheel beside the original's files.
_ADDED_METADATA = ("licenses/", "sboms/")
_ADDED_FILES = (REPORT, NOTICE, "plan.json")


@dataclass(frozen=True)
class Difference:
    """Something in the thinned wheel that is not the original's and is not explained by thinning."""

    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


def compare(original: Path, thinned: Path) -> list[Difference]:
    """Return what in a thinned wheel is neither the original's nor explained by thinning; empty: it is proven.

    That `original` is the published file is not looked at here: compare its sha256 with the pinned one. That the
    report in the thinned wheel names the same sha256 is.

    Raises:
        MalformedError: one of the wheels is damaged, or the second was not made by `thin`.

    """
    with Wheel(original) as old, Wheel(thinned) as new:
        report = read_report(new)
        found = list(_members(old, new, report))
        found += _metadata(old, new, report)
        gpu = Arch.parse(str(report["gpu"]))
        for name in old.members:
            if name in new.members and not name.startswith(f"{old.dist_info}/"):
                found += _member(old, new, name, gpu)
    return found


def _members(old: Wheel, new: Wheel, report: dict[str, Any]) -> Iterator[Difference]:
    """Compare which members there are."""
    if report["original"]["sha256"] != _sha256(old.path):
        yield Difference(REPORT, "names another original than the one given")
    gone = {file["name"] for file in report["files"] if file["action"] in ("stub", "left out")}
    stubs = {file["name"] for file in report["files"] if file["action"] == "stub"}
    for name in old.members:
        if not name.startswith(f"{old.dist_info}/") and name not in new.members and name not in gone:
            yield Difference(name, "is missing, and the report does not say why")
    added = [name for name in new.members if name not in old.members and not name.startswith(f"{new.dist_info}/")]
    for name in added:
        stem = name.rpartition(".")[0]
        if not any(stub.startswith(f"{stem}.") for stub in stubs) or name.endswith(".so"):
            yield Difference(name, "is not in the original, and stands for no library left out")


def _metadata(old: Wheel, new: Wheel, report: dict[str, Any]) -> Iterator[Difference]:
    """Compare the metadata directories, METADATA line by line."""
    for name in new.members:
        top, _, rest = name.partition("/")
        if top != new.dist_info or rest in ("METADATA", "WHEEL", "RECORD", *_ADDED_FILES):
            continue
        source = f"{old.dist_info}/{rest}"
        if source in old.members:
            if old.read(source) != new.read(name):
                yield Difference(name, "differs from the original's")
        elif not rest.startswith(_ADDED_METADATA):
            yield Difference(name, "is not in the original")
    before, after = (wheel.read(f"{wheel.dist_info}/METADATA").replace(b"\r\n", b"\n").decode() for wheel in (old, new))
    old_head, _, old_body = before.partition("\n\n")
    new_head, _, new_body = after.partition("\n\n")
    allowed = {f"Requires-Dist: {text}" for text in report["requires_added"]} | {f"Version: {new.name.version}"}
    for line in new_head.split("\n"):
        if line not in old_head.split("\n") and line not in allowed:
            yield Difference("METADATA", f"has a line that is not the original's: {line}")
    if not new_body.endswith(old_body):
        yield Difference("METADATA", "does not end with the original's description")


def _member(old: Wheel, new: Wheel, name: str, gpu: Arch) -> Iterator[Difference]:
    """Compare one member: as a library if it is one, else byte by byte."""
    head = next(iter(old.stream(name, chunk=STREAM_CHUNK)), b"")
    if not is_elf(head) or not fatbin_possible(name):
        if _digest(old, name) != _digest(new, name):
            yield Difference(name, "differs from the original's")
        return
    with tempfile.TemporaryDirectory(prefix="smwheel-") as work:
        paths = Path(work) / "original", Path(work) / "thinned"
        skeleton.unpack(
            lambda: old.stream(name, chunk=STREAM_CHUNK),
            paths[0],
            lambda entry: entry.kind is Kind.CUBIN and not entry.arch.loads_on(gpu),
            where=name,
        )
        with paths[1].open("wb") as file:
            file.writelines(new.stream(name, chunk=STREAM_CHUNK))
        for what in compare_files(*paths):
            yield Difference(name, what)


def fatbin_possible(name: str) -> bool:
    """Return whether a member of this name is one that thinning looks into."""
    return ".so" in name.rpartition("/")[2]


def compare_files(original: Path, thinned: Path) -> Iterator[str]:
    """Yield how a thinned library differs from its original, beyond what thinning changes.

    Of the original, payloads that were dropped may be missing (a sparse file).

    Raises:
        MalformedError: one of them does not follow its format.

    """
    with fatbin.mapped(original) as old, fatbin.mapped(thinned) as new:
        sections = fatbin.find_sections(old, where=str(original))
        if not sections:
            if bytes(old[:]) != bytes(new[:]):
                yield "differs from the original's"
            return
        yield from _code(old, new, str(thinned))
        if len(old) == len(new):
            yield from _outside(old, new, [(section.offset, section.end) for section in sections])
        else:
            try:
                yield from _compare_cut(old, new, sections[0])
            except (CannotCutError, struct.error) as error:
                yield f"has tables that no cut makes: {error}"


def _code(old: Buffer, new: Buffer, where: str) -> Iterator[str]:
    """Compare the regions: each must be the original's with some entries left out."""
    before, after = fatbin.read_regions(old, where=where), fatbin.read_regions(new, where=where)
    if [region.section for region in before] != [region.section for region in after]:
        yield f"has {len(after)} regions of GPU code, and the original {len(before)}"
        return
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        candidates = iter(one.entries)
        for entry in other.entries:
            data = new[entry.offset : entry.end]
            if not any(old[candidate.offset : candidate.end] == data for candidate in candidates):
                yield f"region {number}: the {entry.arch.sm} code is not the original's"
                break


def _outside(old: Buffer, new: Buffer, spans: list[tuple[int, int]]) -> Iterator[str]:
    """Compare two files of one size outside some spans (offsets from, to)."""
    position = 0
    for start, end in [*sorted(spans), (len(old), len(old))]:
        for offset in _differing(old, position, new, position, start - position):
            yield f"differs from the original at offset {offset:#x}, outside the GPU code"
            break
        position = end


def _compare_cut(old: Buffer, new: Buffer, code: Section) -> Iterator[str]:
    """Compare a file that was cut with its original."""
    before, after = Image.read(old, where="original"), Image.read(new, where="thinned")
    yield from _tables(before, after, code, removed=len(old) - len(new))
    changed = _changeable(before, old, code)
    behind = [s.offset for s in before.sections if s.offset >= code.end and s.kind != SHT_NOBITS and s.size]
    tail = min([*behind, before.section_table])
    removed = len(old) - len(new)
    for start, end, shift in ((0, code.offset, 0), (tail, len(old), removed)):
        for offset in _differing(old, start, new, start - shift, end - start):
            if not any(first <= offset < last for first, last in changed):
                yield f"differs from the original at offset {offset:#x}, outside the GPU code"
                return
    kept_end = next(s.end for s in after.sections if s.name == code.name)
    if any(new[kept_end : tail - removed]):
        yield "has something in the place of the GPU code that was cut out"
    yield from _targets(before, old, after, new)


def _tables(before: Image, after: Image, code: Section, *, removed: int) -> Iterator[str]:
    """Compare what section and program headers mean."""
    if len(before.sections) != len(after.sections) or len(before.segments) < len(after.segments):
        yield "has other sections or more program headers than the original"
        return
    for one, other in zip(before.sections, after.sections, strict=True):
        same = list(astuple(one))
        if one.name == code.name:
            same[6] = other.size
        if one.offset >= code.end:
            same[5] = one.offset - removed
        if tuple(same) != astuple(other):
            yield f"the header of section {one.name} is not the original's"
        if one.loaded and one.kind != SHT_NOBITS and one.size and after.offset_of(one.address) != other.offset:
            yield f"section {one.name} is loaded from another place than its header says"
        if one.loaded and not _same_rights(_rights(before, one.address), _rights(after, one.address)):
            yield f"section {one.name} is loaded with other rights than the original's"
    known = {(s.kind, s.flags, s.address, s.size, s.memory) for s in before.segments}
    for segment in after.segments:
        if segment.kind != PT_LOAD and (
            (segment.kind, segment.flags, segment.address, segment.size, segment.memory) not in known
        ):
            yield f"has a program header of type {segment.kind} that is not the original's"


def _rights(image: Image, address: int) -> int:
    return next(
        (s.flags for s in image.segments if s.kind == PT_LOAD and s.address <= address < s.address + s.memory), 0
    )


def _same_rights(before: int, after: int) -> bool:
    """Return whether memory is as writable as before, and not less readable: merged neighbours share the rest."""
    return before & PF_W == after & PF_W and before & after == before


def _changeable(image: Image, buffer: Buffer, code: Section) -> list[tuple[int, int]]:
    """Return the places (offsets from, to, in the original) whose values a cut changes."""
    first, last = code.address, code.address + code.size
    places = [
        _SECTION_TABLE_FIELD,
        (image.segment_table, image.segment_table + _SEGMENT_COUNT * len(image.segments)),
        (image.section_table, image.section_table + 64 * len(image.sections)),
    ]
    for pointer in pointers(image, buffer):
        if first <= pointer.target < last:
            offset = image.offset_of(pointer.place)
            places += [(at, at + 8) for at in (offset, pointer.addend) if at is not None]
    for section in image.sections:
        if section.kind == SHT_SYMTAB:
            for at in range(section.offset, section.end, 24):
                if first <= struct.unpack_from("<Q", buffer, at + 8)[0] < last:
                    places.append((at + 8, at + 16))
    return places


def _targets(before: Image, old: Buffer, after: Image, new: Buffer) -> Iterator[str]:
    """Compare where the records point: each to the region of the same number as before."""
    sides = []
    for image, buffer in ((before, old), (after, new)):
        starts = [region.offset for region in fatbin.read_regions(buffer, where="library")]
        records = {s.address + at for s in image.sections if s.name == RECORD_SECTION for at in range(8, s.size, 24)}
        found = {p.place: image.offset_of(p.target) for p in pointers(image, buffer) if p.place in records}
        sides.append({place: starts.index(at) if at in starts else None for place, at in found.items()})
    if sides[0] != sides[1] or None in sides[1].values():
        yield "a record does not point to the region that it did"


def _differing(old: Buffer, start: int, new: Buffer, other: int, size: int) -> Iterator[int]:
    """Yield the offsets in `old` at which `size` bytes of two files differ."""
    for step in range(0, size, _BLOCK):
        length = min(_BLOCK, size - step)
        one, two = old[start + step : start + step + length], new[other + step : other + step + length]
        if one != two:
            if len(one) != len(two):
                raise MalformedError("a library is shorter than its headers say")
            yield from (start + step + at for at in range(length) if one[at] != two[at])


def _digest(wheel: Wheel, name: str) -> str:
    total = hashlib.sha256()
    for piece in wheel.stream(name):
        total.update(piece)
    return total.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
