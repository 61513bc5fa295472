"""Which names each torch release brings, so that a wheel's need of them is checked without torch.

A table is one file `_data/torch-symbols/torch-VERSION-cuMAJOR.zst`: a zstd frame (zstd because tables load in 4 ms
and xz is only 7 % smaller) of one line of JSON, then one exported name a line, library by library:

    {"torch": "2.14.1", "cuda": "13", "wheel": "torch-….whl", "sha256": "…",
     "libraries": [{"name": "libc10.so", "needed": ["libc.so.6", …], "count": 1294}, …]}

Whole names and not hashes of them: at 0.4 MB a release they are small enough, and a missing one can be compared
with what is there. `ci/make-torch-symbols` makes them from published wheels.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import zstandard
from packaging.version import Version

from smwheel.errors import MalformedError
from smwheel.paths import package_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from smwheel.wheels.elf import ElfFacts

MAX_TABLE = 64 << 20

# Mangled names of torch's namespaces: at, c10, torch, caffe2; with the prefixes of tables, guards and const members.
_TORCH_NAME = re.compile(r"_Z(?:T[VIST]|G[VR])?N?[KVrRO]*(?:2at|3c10|5torch|6caffe2)")
_LITERAL = re.compile(r"L[a-z]n?\d+E")
_LENGTH = re.compile(r"\d+")
_NESTED = re.compile(r"_Z(?:T[VIST])?(?:N[KVrRO]*)?(?=\d)")
_NEW_STRING = ("7__cxx11", "B5cxx11")


@dataclass(frozen=True)
class TorchSymbols:
    """What the shared libraries of one torch release export and need.

    `torch` is its version, `cuda` the CUDA major it was built for, `wheel` and `sha256` the file the table was
    made from.
    """

    torch: str
    cuda: str
    wheel: str
    sha256: str
    exported: Mapping[str, frozenset[str]]
    needed: Mapping[str, tuple[str, ...]]

    def reachable(self, needed: Iterable[str]) -> frozenset[str]:
        """Return every name that a file finds which needs these libraries: theirs, and of what they need."""
        seen: set[str] = set()
        left = list(needed)
        while left:
            library = left.pop()
            if library in self.exported and library not in seen:
                seen.add(library)
                left += self.needed[library]
        return frozenset().union(*(self.exported[library] for library in seen))

    def missing(self, facts: ElfFacts) -> tuple[str, ...]:
        """Return the names of torch's namespaces that a shared object asks for and would not find, sorted."""
        asked = {name for name in facts.undefined if is_torch_name(name)}
        return tuple(sorted(asked - self.reachable(facts.needed))) if asked else ()

    @cached_property
    def new_strings(self) -> bool:
        """Whether it was built with the C++11 string type (_GLIBCXX_USE_CXX11_ABI=1)."""
        return any(uses_new_strings(name) for name in self.exported.get("libc10.so", ()))


def is_torch_name(name: str) -> bool:
    """Return whether a mangled name lies in one of torch's namespaces."""
    return _TORCH_NAME.match(name) is not None


def uses_new_strings(name: str) -> bool:
    """Return whether a mangled name mentions a type of the C++11 ABI of the GNU library."""
    return any(mark in name for mark in _NEW_STRING)


def uses_old_strings(name: str) -> bool:
    """Return whether a mangled name mentions `std::string` of the old ABI: the abbreviation `Ss`.

    Identifiers are skipped by their lengths, since any may contain those two letters.
    """
    text, at = _LITERAL.sub("", name), 0
    while at < len(text):
        length = _LENGTH.match(text, at)
        if length:
            at = length.end() + int(length[0])
        elif text.startswith("Ss", at):
            return True
        else:
            at += 1
    return False


def readable(name: str) -> str:
    """Return the qualified name in a mangled one, without its parameters, e.g. `c10::cuda::check`; else the name."""
    match = _NESTED.match(name)
    parts, at = [], match.end() if match else 0
    while match and (length := _LENGTH.match(name, at)):
        at = length.end() + int(length[0])
        parts.append(name[length.end() : at])
    return "::".join(parts) or name


def pack(table: TorchSymbols) -> bytes:
    """Return a table as its file holds it; the same bytes for the same table and zstd."""
    libraries = sorted(table.exported)
    head = {
        "torch": table.torch,
        "cuda": table.cuda,
        "wheel": table.wheel,
        "sha256": table.sha256,
        "libraries": [
            {"name": name, "needed": list(table.needed[name]), "count": len(table.exported[name])} for name in libraries
        ],
    }
    lines = [json.dumps(head), *(name for library in libraries for name in sorted(table.exported[library]))]
    return zstandard.ZstdCompressor(level=22).compress(("\n".join(lines) + "\n").encode())


def unpack(data: bytes, *, where: str = "") -> TorchSymbols:
    """Read a table.

    Raises:
        MalformedError: the file is damaged.

    """
    try:
        text = zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_TABLE).decode()
        first, *names = text.splitlines()
        head = json.loads(first)
        exported, at = {}, 0
        for library in head["libraries"]:
            exported[library["name"]] = frozenset(names[at : at + library["count"]])
            at += library["count"]
        return TorchSymbols(
            torch=head["torch"],
            cuda=head["cuda"],
            wheel=head["wheel"],
            sha256=head["sha256"],
            exported=exported,
            needed={library["name"]: tuple(library["needed"]) for library in head["libraries"]},
        )
    except (zstandard.ZstdError, ValueError, KeyError, TypeError) as error:
        raise MalformedError(
            f"is no table of torch symbols ({error})", where=where, cure="install smwheel again"
        ) from error


def tables_dir() -> Path:
    """Return the directory of the tables that come with smwheel."""
    return package_data() / "torch-symbols"


@cache
def available() -> tuple[tuple[str, str], ...]:
    """Return (torch version, CUDA major) of every table there is, oldest torch first."""
    found = [path.stem.split("-")[1:] for path in tables_dir().glob("torch-*-cu*.zst")]
    return tuple(
        sorted(((version, cuda[2:]) for version, cuda in found), key=lambda one: (Version(one[0]), int(one[1])))
    )


@cache
def load(torch: str, cuda: str) -> TorchSymbols | None:
    """Return the table of a torch version for a CUDA major (`13`), or None if there is none."""
    path = tables_dir() / f"torch-{Version(torch).public}-cu{cuda}.zst"
    return unpack(path.read_bytes(), where=path.name) if path.is_file() else None


def matching(facts: Iterable[ElfFacts]) -> tuple[tuple[str, str], ...]:
    """Return (torch version, CUDA major) of the tables that bring every torch name these files ask for."""
    files = list(facts)
    found = []
    for torch, cuda in available():
        table = load(torch, cuda)
        if table is not None and not any(table.missing(one) for one in files):
            found.append((torch, cuda))
    return tuple(found)
