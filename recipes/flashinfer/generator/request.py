"""The request of the generator protocol, read and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class GeneratorError(Exception):
    """Something is wrong with the request, the recipe's data or the source tree; the text is for the user."""


@dataclass(frozen=True)
class Arch:
    """The architecture to generate for: `120f`, `12.0`, `12.0f`, 120, `f`."""

    code: str
    capability: str
    dotted: str
    number: int
    suffix: str

    @property
    def gencode(self) -> str:
        """nvcc's flag for machine code alone."""
        return f"-gencode=arch=compute_{self.code},code=sm_{self.code}"


@dataclass(frozen=True)
class Request:
    """What smwheel asks for; the keys are those of docs/generator-protocol.md."""

    action: str
    version: str
    source: Path
    work: Path
    cuda_home: Path
    cuda: str
    arch: Arch
    profile: dict[str, Any]
    profiles: dict[str, dict[str, Any]]
    exclusions: list[dict[str, Any]]
    modules: list[str] | None
    modules_from: Path | None
    options: dict[str, Any]
    label: str
    built: dict[str, Path]

    @classmethod
    def read(cls, path: Path) -> Request:
        """Read a request file.

        Raises:
            GeneratorError: the protocol is another one, a key is missing, or a path cannot be written in a
                ninja file.

        """
        raw = json.loads(path.read_text())
        if raw.get("protocol") != 1:
            raise GeneratorError(f"{path}: protocol {raw.get('protocol')!r} is not 1")
        try:
            arch = Arch(**{name: raw["arch"][name] for name in Arch.__dataclass_fields__})
            request = cls(
                action=raw["action"],
                version=raw["version"],
                source=Path(raw["source"]),
                work=Path(raw["work"]),
                cuda_home=Path(raw["cuda_home"]),
                cuda=raw["cuda"],
                arch=arch,
                profile=raw.get("profile") or {"modules": ["*"]},
                profiles=raw.get("profiles") or {},
                exclusions=raw.get("exclusions") or [],
                modules=raw.get("modules"),
                modules_from=Path(raw["modules_from"]) if raw.get("modules_from") else None,
                options=raw.get("options") or {},
                label=raw.get("label", ""),
                built={name: Path(library) for name, library in (raw.get("built") or {}).items()},
            )
        except KeyError as error:
            raise GeneratorError(f"{path}: the key {error} is missing") from error
        for path_ in (request.source, request.work, request.cuda_home):
            if any(character in str(path_) for character in " :$|\n"):
                raise GeneratorError(f"{path_}: FlashInfer writes no ninja file for a path with ' ', ':', '$' or '|'")
        return request
