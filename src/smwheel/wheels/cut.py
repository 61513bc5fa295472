"""Cut the GPU code of other architectures out of one ELF file, so that the file itself gets smaller.

Nothing moves in memory. What follows the fat binary is referred to relative to the code, so every address stays;
the regions that remain are packed to the front of their section, the pages behind them are taken out of the file,
and the segment is split in two around the hole. That takes one more program header, for which a header that the
loader can do without is used: moving the table would be loaded, but `strip` and `objcopy` destroy such files.

Only what is understood is cut. A file with anything else in it (relocatable device code, a pointer into the middle of
a region, …) is *zero-filled*: each region keeps its place, with the entries kept at its front and zeros behind; such
a file is as large as before, and compresses nearly as well. The reason is told.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Literal

from smwheel.errors import MalformedError
from smwheel.wheels import fatbin
from smwheel.wheels.image import (
    ET_DYN,
    PF_W,
    PT_INTERP,
    PT_LOAD,
    PT_NOTE,
    PT_NULL,
    PT_PHDR,
    SHF_WRITE,
    SHT_PROGBITS,
    SHT_REL,
    SHT_RELA,
    Buffer,
    Image,
    Section,
)
from smwheel.wheels.references import CannotCutError, moved_pointers, moved_symbols
from smwheel.wheels.regions import Packed, pack, round_up

if TYPE_CHECKING:
    from pathlib import Path

    from smwheel.arch import Arch
    from smwheel.wheels.fatbin import Kind, Region

Method = Literal["cut", "zero-filled", "unchanged"]

# e_machine → the largest page that the ABI allows, in bytes.
PAGES = {62: 0x1000, 183: 0x10000}


@dataclass(frozen=True)
class Outcome:
    """What became of one file; sizes in bytes, counts by kind and architecture."""

    method: Method
    reason: str
    before: int
    after: int
    kept: Counter[tuple[Kind, Arch]]
    dropped: Counter[tuple[Kind, Arch]]


@dataclass(frozen=True)
class _Cut:
    """The bytes from `start` to `end` of the file go; both in bytes from its start."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def moved(self, offset: int) -> int:
        """Return where a byte of the original is in the result."""
        if self.start < offset < self.end:
            raise CannotCutError(f"something other than GPU code starts at offset {offset:#x}")
        return offset - self.size if offset >= self.end else offset


def thin_file(source: Path, destination: Path, gpu: Arch, *, ptx: bool = False, where: str = "") -> Outcome:
    """Write a copy of an ELF file that holds only the GPU code that `gpu` can use.

    `ptx` keeps PTX also where there are cubins. `where` names the file in errors. The source may be a sparse file
    that lacks the bytes of what is dropped. The destination must not exist.

    Raises:
        MalformedError: the file does not follow its format; nothing is written.

    """
    where = where or str(source)
    with fatbin.mapped(source) as buffer:
        regions = fatbin.read_regions(buffer, where=where)
        total = fatbin.count([entry for region in regions for entry in region.entries])
        kept = fatbin.count([entry for part in pack(regions, gpu, ptx=ptx) for entry in part.kept])
        method: Method = "unchanged"
        reason = ""
        if kept == total:
            plan = _Plan([], [(0, len(buffer), 0)], {}, len(buffer))
        else:
            try:
                plan = _plan_cut(buffer, regions, gpu, ptx=ptx, where=where)
                method = "cut"
            except (CannotCutError, struct.error) as error:
                # struct.error: a table ends within an item; the GPU code itself was read.
                plan = _plan_zeros(buffer, regions, gpu, ptx=ptx, where=where)
                method, reason = "zero-filled", str(error)
        _write(source, destination, plan)
        before = len(buffer)
    if fatbin.code_of(destination) != kept:
        raise MalformedError(
            "the thinned file does not hold what was kept", where=where, cure="report it: it is a fault in smwheel"
        )
    return Outcome(method, reason, before, destination.stat().st_size, kept, total - kept)


@dataclass(frozen=True)
class _Plan:
    """What the result consists of.

    Regions, copies of the original (from, to, moved towards the front by), single values by their offset in the
    result, zeros for all else, and its size in bytes.
    """

    packed: list[Packed]
    copies: list[tuple[int, int, int]]
    changes: dict[int, bytes]
    size: int


def _plan_cut(buffer: Buffer, regions: list[Region], gpu: Arch, *, ptx: bool, where: str) -> _Plan:
    image = Image.read(buffer, where=where)
    section = _the_section(image, buffer, where)
    page = PAGES[image.machine]
    packed = pack(regions, gpu, ptx=ptx, align=max(section.align, 8))
    moves = {
        section.address + part.region.offset - section.offset: section.address + part.offset - section.offset
        for part in packed
    }
    changes = moved_pointers(image, buffer, section, moves) | moved_symbols(image, buffer, section, moves)
    kept_end = packed[-1].end
    cut = _split(image, section, kept_end, page)
    if any(buffer[section.end : cut.end]):
        raise CannotCutError("there is something unnamed behind the GPU code")
    for other in image.sections:
        if other is not section:
            other.offset = cut.moved(other.offset)
    code_end, section.size = section.end, kept_end - section.offset
    image.section_table = cut.moved(image.section_table)
    copies = [(0, section.offset, 0), (max(code_end, cut.end), len(buffer), cut.size)]
    changes = {cut.moved(offset): data for offset, data in changes.items()} | dict(image.tables())
    return _Plan(packed, copies, changes, len(buffer) - cut.size)


def _plan_zeros(buffer: Buffer, regions: list[Region], gpu: Arch, *, ptx: bool, where: str) -> _Plan:
    copies = []
    position = 0
    for section in sorted(fatbin.find_sections(buffer, where=where), key=lambda section: section.offset):
        copies.append((position, section.offset, 0))
        position = section.end
    copies.append((position, len(buffer), 0))
    return _Plan(pack(regions, gpu, ptx=ptx), copies, {}, len(buffer))


def _the_section(image: Image, buffer: Buffer, where: str) -> Section:
    """Return the one section of GPU code, after making sure that the file is of the kind that is understood."""
    if image.kind != ET_DYN or any(segment.kind == PT_INTERP for segment in image.segments):
        raise CannotCutError("not a shared object")
    if image.machine not in PAGES:
        raise CannotCutError(f"machine {image.machine} is neither x86-64 nor aarch64")
    found = fatbin.find_sections(buffer, where=where)
    if len(found) != 1 or found[0].name != ".nv_fatbin":
        raise CannotCutError("relocatable device code: not shown to launch after a cut")
    section = next(section for section in image.sections if section.name == found[0].name)
    if section.kind != SHT_PROGBITS or not section.loaded or section.flags & SHF_WRITE:
        raise CannotCutError("the section of GPU code is not plain read-only data")
    for other in image.sections:
        if other is not section and other.offset < section.end and other.end > section.offset:
            raise CannotCutError(f"section {other.name} overlaps the GPU code")
        if other.kind in (SHT_RELA, SHT_REL) and not other.loaded:
            raise CannotCutError("it was linked with --emit-relocs")
    return section


def _split(image: Image, section: Section, kept_end: int, page: int) -> _Cut:
    """Split the segment that holds the section around what goes, shift all behind it; return what goes."""
    segment = next(
        (
            part
            for part in image.segments
            if part.kind == PT_LOAD and part.offset <= section.offset and section.end <= part.end
        ),
        None,
    )
    if segment is None or section.address - section.offset != segment.address - segment.offset:
        raise CannotCutError("the GPU code does not lie in one loaded segment")
    if any((part.address - part.offset) % page for part in image.segments if part.kind == PT_LOAD):
        raise CannotCutError("a segment is not aligned to pages")
    following = [
        other.offset
        for other in image.sections
        if other.loaded and other.size and section.end <= other.offset < segment.end
    ]
    start = round_up(kept_end, page)
    if following:
        cut = _Cut(start, min(following) // page * page)
    else:
        cut = _Cut(start, start + max(segment.end - start, 0) // page * page)
    if cut.size < page:
        raise CannotCutError("less than a page would go")
    rest = replace(segment)
    segment.size = segment.memory = (start if following else kept_end) - segment.offset
    for part in image.segments:
        if part is segment:
            continue
        if part.size and part.offset < cut.end and part.end > cut.start:
            raise CannotCutError(f"a second program header, of type {part.kind}, covers GPU code")
        part.offset = cut.moved(part.offset)
    if following:
        delta = cut.end - rest.offset
        rest.offset = cut.start
        rest.address, rest.physical = rest.address + delta, rest.physical + delta
        rest.size, rest.memory = rest.size - delta, rest.memory - delta
        _make_room(image)
        behind = [part for part in image.segments if part.kind == PT_LOAD and part.address > rest.address]
        image.segments.insert(image.segments.index(behind[0]) if behind else len(image.segments), rest)
    _lower_alignment(image, page)
    return cut


def _make_room(image: Image) -> None:
    """Give up one program header that the loader can do without, the least missed first.

    Merging two neighbours maps the earlier with the later's rights too; PT_NOTE is last, as debuggers find the
    build-id through it.
    """
    for kind in (PT_NULL, PT_PHDR):
        for segment in image.segments:
            if segment.kind == kind:
                image.segments.remove(segment)
                return
    loads = [segment for segment in image.segments if segment.kind == PT_LOAD]
    for first, second in itertools.pairwise(loads):
        level = first.address - first.offset == second.address - second.offset
        if level and first.size == first.memory and not (first.flags | second.flags) & PF_W:
            first.flags |= second.flags
            first.size = second.end - first.offset
            first.memory = second.address + second.memory - first.address
            first.align = max(first.align, second.align)
            image.segments.remove(second)
            return
    for segment in image.segments:
        if segment.kind == PT_NOTE:
            image.segments.remove(segment)
            return
    raise CannotCutError("no program header can be spared for the split")


def _lower_alignment(image: Image, page: int) -> None:
    """Lower the alignment of segments that the cut shifted by less than that alignment."""
    for segment in image.segments:
        if segment.kind == PT_LOAD and (segment.address - segment.offset) % max(segment.align, 1):
            if any(other.loaded and other.align > page for other in image.sections):
                raise CannotCutError("its alignment is larger than a page")
            segment.align = page


def _write(source: Path, destination: Path, plan: _Plan) -> None:
    with source.open("rb") as old, destination.open("xb") as new:
        for start, end, shift in plan.copies:
            _copy(old, start, end - start, new, start - shift)
        for part in plan.packed:
            _put(new, part.offset, part.header())
            offset = part.offset + fatbin.REGION_HEADER_SIZE
            for entry in part.kept:
                _copy(old, entry.offset, entry.size, new, offset)
                offset += entry.size
        for offset, data in plan.changes.items():
            _put(new, offset, data)
        new.truncate(plan.size)
    destination.chmod(source.stat().st_mode & 0o777)


def _put(file: BinaryIO, offset: int, data: bytes) -> None:
    file.seek(offset)
    file.write(data)
    file.flush()


def _copy(source: BinaryIO, start: int, size: int, target: BinaryIO, offset: int) -> None:
    """Copy bytes between files without reading them into the process."""
    target.seek(offset)
    while size > 0:
        copied = os.sendfile(target.fileno(), source.fileno(), start, size)
        if copied == 0:
            raise MalformedError(
                "became shorter while it was read", where=source.name, cure="leave it alone meanwhile, and run again"
            )
        start, size = start + copied, size - copied
