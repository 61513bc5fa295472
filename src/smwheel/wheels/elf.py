"""What a shared object asks of the machine and the process that load it, read from its dynamic segment.

Only what the dynamic loader itself uses is read: the program headers, the dynamic tags, and the symbol and
version tables that these point to. So a file of a gigabyte costs a few milliseconds through a memory map, and
a member of a wheel can be judged while it streams by (`ElfStream`), without ever lying on a disk.

Headers and tags are read with pyelftools. Its objects for symbols cost 20 µs each, and libtorch_cpu.so has
76,000, so the symbol and version tables are unpacked here. Source of the layouts: the System V ABI, and the
symbol versioning section of the Linux Standard Base.
"""

from __future__ import annotations

import io
import mmap
import struct
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, cast

from elftools.common.exceptions import ELFError
from elftools.construct.core import ConstructError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

from smwheel.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAGIC = b"\x7fELF"
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_READ = "give a shared library for x86_64 or aarch64: others are not read"

# What comes first in a file is what `ElfStream` keeps of it: symbol and version tables lie there, ahead of
# the code, in what every linker writes; kernel libraries need about 1 MB of it.
STREAM_HEAD = 8 << 20

# Bounds on what a file may claim, far above every real one: bytes of a table, dynamic tags, sections.
MAX_TABLE = 256 << 20
MAX_TAGS = 10_000
MAX_SECTIONS = 65_536

_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section index, value, size
_VERNEED = struct.Struct("<HHIII")  # version, count, file, first auxiliary, next
_VERNAUX = struct.Struct("<IHHII")  # hash, flags, index, name, next
_WEAK, _LOCAL = 2, 0
_VERSION_MASK = 0x7FFF  # the highest bit hides a version, it is no part of the number
_VERSION_SPACES = ("GLIBC", "GLIBCXX", "CXXABI", "GCC")

# The lowest manylinux policy, as the minor of glibc 2, whose systems have the version named: what the GNU C++
# library of the oldest distribution with that glibc provides. manylinux2014 (2.17) is the lowest given here.
# Source: the policy tables of PEP 600's implementation in auditwheel 6.8, checked against its verdicts.
_LOWEST_POLICY = 17
_POLICY_FLOORS: Mapping[str, tuple[tuple[tuple[int, ...], int], ...]] = {
    "GLIBCXX": (
        ((3, 4, 19), 17),
        ((3, 4, 22), 24),
        ((3, 4, 24), 27),
        ((3, 4, 28), 31),
        ((3, 4, 29), 34),
        ((3, 4, 30), 35),
        ((3, 4, 33), 39),
    ),
    "CXXABI": (
        ((1, 3, 7), 17),
        ((1, 3, 10), 24),
        ((1, 3, 11), 27),
        ((1, 3, 12), 31),
        ((1, 3, 13), 34),
        ((1, 3, 15), 39),
    ),
    "GCC": (((4, 8, 0), 17), ((7, 0, 0), 27), ((12, 0, 0), 35), ((14, 0, 0), 39)),
}


class Seekable(Protocol):
    """The part of a binary file that is used: what files, `io.BytesIO` and memory maps share."""

    def seek(self, offset: int, whence: int = 0, /) -> object:
        """Move to an offset in bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes from there."""

    def tell(self) -> int:
        """Return the offset in bytes."""


@dataclass(frozen=True)
class ElfFacts:
    """The dynamic facts of one shared object.

    `needed` keeps the file's order. `undefined` are names that some other library must bring when this one is
    loaded, `weak_undefined` those that may stay absent; `exported` are those it brings. `versions` maps each
    namespace (GLIBC, GLIBCXX, CXXABI, GCC) to the highest version asked for; `private` are version names that
    no release promises (`GLIBC_PRIVATE`). `asked_of` gives, for undefined names with a version, the library that the
    version is asked of.
    """

    machine: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    private: tuple[str, ...] = ()
    undefined: frozenset[str] = frozenset()
    weak_undefined: frozenset[str] = frozenset()
    exported: frozenset[str] = frozenset()
    asked_of: Mapping[str, str] = field(default_factory=dict)

    def version(self, space: str) -> str:
        """Return the highest version asked for in a namespace, e.g. `2.27` for `GLIBC`; "" if none."""
        return ".".join(map(str, self.versions.get(space, ())))

    @cached_property
    def python_symbols(self) -> frozenset[str]:
        """The names of CPython's C API that it asks the interpreter for."""
        return frozenset(name for name in self.undefined if name.startswith(("Py", "_Py")))

    @property
    def policy_minor(self) -> int:
        """The lowest X for which `manylinux_2_X` is true of the symbols asked for.

        Raises:
            MalformedError: it asks for a release of the GNU C++ library that no policy here holds yet.

        """
        floors = [_LOWEST_POLICY]
        for space, version in self.versions.items():
            if space == "GLIBC":
                floors.append(version[1] if len(version) > 1 else 0)
                continue
            fits = [minor for limit, minor in _POLICY_FLOORS[space] if version <= limit]
            if not fits:
                raise MalformedError(
                    f"asks for {space}_{self.version(space)}, newer than every manylinux policy known here",
                    where=self.soname,
                    cure="build with an older compiler (its C++ library sets this), or update smwheel",
                )
            floors.append(fits[0])
        return max(floors)


def is_elf(head: bytes | bytearray) -> bool:
    """Return whether a file that begins with these bytes is an ELF file."""
    return head[:4] == MAGIC


def read_elf(source: Path | bytes | Seekable, *, where: str = "", symbols: bool = True) -> ElfFacts:
    """Read the facts of a shared object from a path (memory-mapped), its bytes, or a seekable file.

    Without `symbols` the symbol table is left out (of libtorch_cpu.so, 75,000 names and nearly all of the time).

    Raises:
        MalformedError: no ELF file, not 64-bit little-endian, of a machine not known here, or damaged.

    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            try:
                view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:  # an empty file cannot be mapped
                raise MalformedError("is empty", where=where or str(source)) from error
            with view:
                return _read(cast("Seekable", view), where or str(source), symbols=symbols)
    return _read(io.BytesIO(source) if isinstance(source, bytes) else source, where, symbols=symbols)


class ElfStream:
    """Collects, from a file that goes by once from front to back, what its facts need.

    Memory is bounded by `STREAM_HEAD` and the tables' own sizes. `facts()` raises `Unseen` when a table lies
    elsewhere (files changed by patchelf): then write the file out and use `read_elf`.
    """

    def __init__(self, *, where: str = "") -> None:
        self._where = where
        self._offset = 0
        self._head = bytearray()
        self._wanted: list[tuple[int, int]] = []
        self._kept = _Windows()

    def feed(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes of the file."""
        if len(self._head) < STREAM_HEAD:
            self._head += chunk[: STREAM_HEAD - len(self._head)]
        if not self._wanted:
            self._plan()
        start, end = self._offset, self._offset + len(chunk)
        for first, last in self._wanted:
            if first < end and start < last:
                self._kept.add(max(first, start), bytes(chunk[max(first - start, 0) : last - start]))
        self._offset = end

    def _plan(self) -> None:
        # A header is 64 bytes, a program header 56.
        if len(self._head) < 64 or not is_elf(self._head):
            return
        phoff, shoff = struct.unpack_from("<QQ", self._head, 32)
        phnum, shentsize, shnum = struct.unpack_from("<HHH", self._head, 56)
        if phoff + phnum * 56 > len(self._head):
            return
        # The names of sections lie just ahead of the section headers.
        self._wanted = [(max(shoff - (64 << 10), 0), shoff + shentsize * shnum)]
        for index in range(phnum):
            kind, _, offset, _, _, filesz = struct.unpack_from("<IIQQQQ", self._head, phoff + 56 * index)
            if kind == 2:  # PT_DYNAMIC
                self._wanted.append((offset, offset + min(filesz, 1 << 20)))

    def facts(self) -> ElfFacts:
        """Return the facts, once the whole file went by.

        Raises:
            Unseen: a table lies where nothing was kept.
            MalformedError: as `read_elf`.

        """
        self._kept.add(0, bytes(self._head))
        self._kept.size = self._offset
        return _read(self._kept, self._where)


class Unseen(Exception):  # noqa: N818  # a signal to read the file in another way, not a failure
    """Something outside what an `ElfStream` kept is needed."""


class _Windows:
    """A read-only file of which only some ranges are there."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, bytes]] = []
        self._at = 0
        self.size = 0

    def add(self, offset: int, data: bytes) -> None:
        if self._parts and self._parts[-1][0] + len(self._parts[-1][1]) == offset:
            begin, before = self._parts[-1]
            self._parts[-1] = (begin, before + data)
        else:
            self._parts.append((offset, data))

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = offset + {0: 0, 1: self._at, 2: self.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        end = self.size if size < 0 else min(self._at + size, self.size)
        at, self._at = self._at, end
        if at >= end:
            return b""
        for offset, data in self._parts:
            if offset <= at and end <= offset + len(data):
                return data[at - offset : end - offset]
        raise Unseen


def _read(file: Seekable, where: str, *, symbols: bool = True) -> ElfFacts:
    try:
        return _facts(file, where, symbols=symbols)
    except (ELFError, ConstructError, struct.error, UnicodeDecodeError, AttributeError, TypeError) as error:
        # pyelftools meets damaged files with any of these.
        raise MalformedError(f"is a damaged ELF file ({error})", where=where) from error
    except (
        ValueError,
        KeyError,
        IndexError,
        AssertionError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        raise MalformedError(f"is a damaged ELF file ({error!r})", where=where) from error


def _facts(file: Seekable, where: str, *, symbols: bool) -> ElfFacts:
    file.seek(0)
    if not is_elf(file.read(4)):
        raise MalformedError("is no ELF file", where=where)
    elf = ELFFile(cast("IO[bytes]", file))
    if elf.elfclass != 64 or not elf.little_endian:
        raise MalformedError("is not a 64-bit little-endian ELF file", where=where, cure=_READ)
    machine = MACHINES.get(elf["e_machine"])
    if machine is None:
        raise MalformedError(f"is made for machine {elf['e_machine']}, not x86_64 or aarch64", where=where, cure=_READ)
    if elf.num_sections() > MAX_SECTIONS:
        raise MalformedError(f"claims {elf.num_sections()} sections", where=where)
    dynamic = next((part for part in elf.iter_segments() if isinstance(part, DynamicSegment)), None)
    if dynamic is None:
        raise MalformedError("has no dynamic segment: it is no shared object", where=where, cure=_READ)
    tags: dict[str, list[int]] = {}
    for number, tag in enumerate(dynamic.iter_tags()):
        if number > MAX_TAGS:
            raise MalformedError(f"has more than {MAX_TAGS} dynamic tags", where=where)
        tags.setdefault(str(tag.entry.d_tag), []).append(tag.entry.d_val)
    tables = _Tables(file, elf, tags, where)
    names = tables.strings
    needs = dict(tables.version_needs())
    versions, private = _highest(version for version, _ in needs.values())
    names_of = tables.symbols(needs) if symbols else _Names()
    return ElfFacts(
        machine=machine,
        soname=next((names(at) for at in tags.get("DT_SONAME", [])), ""),
        needed=tuple(names(at) for at in tags.get("DT_NEEDED", [])),
        rpath=_paths(names, tags.get("DT_RPATH", [])),
        runpath=_paths(names, tags.get("DT_RUNPATH", [])),
        versions=versions,
        private=private,
        undefined=frozenset(names_of.undefined),
        weak_undefined=frozenset(names_of.weak),
        exported=frozenset(names_of.exported),
        asked_of=names_of.asked_of,
    )


def _paths(names: _Strings, offsets: list[int]) -> tuple[str, ...]:
    return tuple(path for at in offsets for path in names(at).split(":") if path)


class _Strings:
    """A string table; a call gives the name at an offset."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self._where = where

    def __call__(self, offset: int) -> str:
        end = self.data.find(b"\0", offset)
        if end < 0 or offset < 0:
            raise MalformedError(f"names a string at {offset}, outside its string table", where=self._where)
        return self.data[offset:end].decode("utf-8", "surrogateescape")


@dataclass
class _Names:
    undefined: set[str] = field(default_factory=set)
    weak: set[str] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    asked_of: dict[str, str] = field(default_factory=dict)


class _Tables:
    """The tables that dynamic tags point to."""

    def __init__(self, file: Seekable, elf: ELFFile, tags: Mapping[str, list[int]], where: str) -> None:
        self._file, self._elf, self._tags, self._where = file, elf, tags, where
        self._loads = [
            (part["p_vaddr"], part["p_offset"], part["p_filesz"])
            for part in elf.iter_segments()
            if part["p_type"] == "PT_LOAD"
        ]
        size = self._tag("DT_STRSZ")
        data = self._at("DT_STRTAB", size) if size and self._tag("DT_STRTAB") is not None else b""
        self.strings = _Strings(data, where)

    def _tag(self, name: str) -> int | None:
        return next(iter(self._tags.get(name, [])), None)

    def _offset(self, address: int) -> tuple[int, int]:
        """Return where an address lies in the file, and how many bytes its segment has from there."""
        for start, offset, size in self._loads:
            if start <= address < start + size:
                return offset + address - start, size - (address - start)
        raise MalformedError(f"points to address {address:#x}, which no segment loads", where=self._where)

    def _at(self, name: str, size: int) -> bytes:
        address = self._tag(name)
        offset, room = self._offset(0 if address is None else address)
        if size > MAX_TABLE:
            raise MalformedError(f"claims a {name} table of {size} bytes", where=self._where)
        self._file.seek(offset)
        data = self._file.read(min(size, room))
        if len(data) < size:
            raise MalformedError(f"ends inside its {name} table", where=self._where)
        return data

    def version_needs(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """Yield each version's number in this file, its name (`GLIBC_2.27`) and the library it is asked of."""
        address, count = self._tag("DT_VERNEED"), self._tag("DT_VERNEEDNUM")
        if address is None or not count:
            return
        offset, room = self._offset(address)
        self._file.seek(offset)
        # Each record is 16 bytes; real files have some dozens, in no case more than the string table has bytes.
        budget = len(self.strings.data)
        data = self._file.read(min(room, 32 * budget))
        at = 0
        for _ in range(min(count, budget)):
            _, auxiliaries, library, first, following = _VERNEED.unpack_from(data, at)
            step = at + first
            for _ in range(auxiliaries):
                _, _, number, name, onward = _VERNAUX.unpack_from(data, step)
                budget -= 1
                if budget < 0:
                    raise MalformedError("has more versions than names", where=self._where)
                yield number & _VERSION_MASK, (self.strings(name), self.strings(library))
                if not onward:
                    break
                step += onward
            if not following:
                break
            at += following

    def symbols(self, needs: Mapping[int, tuple[str, str]]) -> _Names:
        """Return the names of the symbol table, sorted out."""
        found = _Names()
        if self._tag("DT_SYMTAB") is None:
            return found
        count = self._symbol_count()
        table, text = self._at("DT_SYMTAB", _SYMBOL.size * count), self.strings.data
        versions = self._at("DT_VERSYM", 2 * count) if self._tag("DT_VERSYM") is not None else bytes(2 * count)
        numbers = struct.unpack(f"<{count}H", versions)
        for (name, info, other, section, _, _), number in zip(_SYMBOL.iter_unpack(table), numbers, strict=True):
            if info >> 4 == _LOCAL or not name:
                continue
            word = text[name : text.index(b"\0", name)].decode("utf-8", "surrogateescape")
            if section == 0:
                (found.weak if info >> 4 == _WEAK else found.undefined).add(word)
                if number & _VERSION_MASK in needs:
                    found.asked_of[word] = needs[number & _VERSION_MASK][1]
            elif other & 3 in (0, 3):  # STV_DEFAULT, STV_PROTECTED
                found.exported.add(word)
        return found

    def _symbol_count(self) -> int:
        """Return the symbol table's length: from its section's size, else from the loader's hash tables."""
        address = self._tag("DT_SYMTAB")
        for section in range(self._elf.num_sections()):
            header = self._elf._get_section_header(section)  # noqa: SLF001  # names of sections are not needed
            if header["sh_type"] == "SHT_DYNSYM" and header["sh_addr"] == address:
                return int(header["sh_size"]) // _SYMBOL.size
        if self._tag("DT_HASH") is not None:
            return int(struct.unpack_from("<II", self._at("DT_HASH", 8))[1])
        if self._tag("DT_GNU_HASH") is not None:
            return self._gnu_hash_count()
        raise MalformedError("has neither section headers nor a hash table: its symbols are unknown", where=self._where)

    def _gnu_hash_count(self) -> int:
        buckets, first, bloom, _ = struct.unpack("<IIII", self._at("DT_GNU_HASH", 16))
        start = 16 + 8 * bloom
        table = self._at("DT_GNU_HASH", start + 4 * buckets)
        last = max(struct.unpack_from(f"<{buckets}I", table, start), default=0)
        if last < first:
            return int(first)
        offset, room = self._offset(self._tags["DT_GNU_HASH"][0])
        self._file.seek(offset)
        chains = self._file.read(min(room, MAX_TABLE))[start + 4 * buckets :]
        while not struct.unpack_from("<I", chains, 4 * (last - first))[0] & 1:
            last += 1
        return int(last) + 1


def _highest(names: Iterable[str]) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Return the highest version of each namespace, and the names that promise nothing."""
    versions: dict[str, tuple[int, ...]] = {}
    private: set[str] = set()
    for name in names:
        if name == "GLIBC_ABI_DT_RELR":  # packed relocations: glibc 2.36 is the first that applies them
            name = "GLIBC_2.36"  # noqa: PLW2901
        space, _, number = name.partition("_")
        if number == "PRIVATE":
            private.add(name)
        elif space in _VERSION_SPACES and all(part.isdigit() for part in number.split(".")):
            versions[space] = max(versions.get(space, ()), tuple(map(int, number.split("."))))
    return versions, tuple(sorted(private))


def policy_floor(facts: Iterable[ElfFacts]) -> str:
    """Return the platform tag that files with these facts earn, e.g. `manylinux_2_27_x86_64`; `any` for none.

    Raises:
        MalformedError: the files are made for different machines, or ask for what no policy holds.

    """
    found = list(facts)
    if not found:
        return "any"
    machines = sorted({one.machine for one in found})
    if len(machines) > 1:
        raise MalformedError(f"made for different machines: {', '.join(machines)}", cure="take those of one machine")
    return f"manylinux_2_{max(one.policy_minor for one in found)}_{machines[0]}"


def platform_tag(paths: Iterable[Path]) -> str:
    """Return the platform tag that these files earn by their symbols; files that are not ELF do not count.

    Raises:
        MalformedError: an ELF file is damaged, the machines differ, or no policy holds what is asked for.

    """
    return policy_floor(read_elf(path) for path in paths if _looks_like_elf(path))


def _looks_like_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return is_elf(file.read(4))
