"""Which of a region's entries a GPU can use, and where they lie once the others are gone."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smwheel.wheels.fatbin import REGION_HEADER_SIZE, REGION_MAGIC, Entry, Kind, Region

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smwheel.arch import Arch


@dataclass(frozen=True, slots=True)
class Packed:
    """A region with only the entries kept; `offset` is its new place in the file, in bytes."""

    region: Region
    kept: tuple[Entry, ...]
    offset: int

    @property
    def content_size(self) -> int:
        """Bytes of the entries kept."""
        return sum(entry.size for entry in self.kept)

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.offset + REGION_HEADER_SIZE + self.content_size

    def header(self) -> bytes:
        """Return the region's header with its new total."""
        return REGION_MAGIC + struct.pack("<Q", self.content_size)


def usable(region: Region, gpu: Arch, *, ptx: bool = False) -> tuple[Entry, ...]:
    """Return the entries of a region that a GPU of this architecture could use, in the file's order.

    These are all cubins that load on it. PTX and LTO-IR that its driver could compile count only where there is
    no such cubin, or, with `ptx`, always.
    """
    cubins = [entry for entry in region.entries if entry.kind is Kind.CUBIN and entry.arch.loads_on(gpu)]
    if cubins and not ptx:
        return tuple(cubins)
    return tuple(
        entry
        for entry in region.entries
        if entry in cubins or (entry.kind is not Kind.CUBIN and entry.arch.ptx_runs_on(gpu))
    )


def pack(regions: Iterable[Region], gpu: Arch, *, ptx: bool = False, align: int = 0) -> list[Packed]:
    """Return the regions with only what `usable` says.

    With `align` (bytes) they follow each other from the first one's start, each aligned; without, each stays where
    it is.
    """
    packed: list[Packed] = []
    for region in regions:
        offset = region.offset
        if align and packed:
            offset = round_up(packed[-1].end, align)
        packed.append(Packed(region, usable(region, gpu, ptx=ptx), offset))
    return packed


def round_up(value: int, unit: int) -> int:
    """Return the next multiple of `unit`."""
    return -(-value // unit) * unit
