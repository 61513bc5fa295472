"""Tells FlashInfer which packages of ahead-of-time compiled modules are installed.

FlashInfer imports this module by name and asks it for its providers. Whatever a provider does wrong is reported
and the provider left out, because an exception here would break `import flashinfer`.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

__version__ = "@LABEL@"

_GROUP = "flashinfer.jit_cache.providers"
_SCHEMA = 1


@dataclass(frozen=True)
class Provider:
    """A package that holds compiled modules for some architectures."""

    provider_id: str
    distribution: str
    version: str
    jit_cache_dir: Path
    cuda_architectures: frozenset[str]
    modules: frozenset[str]


def _load(entry: EntryPoint) -> Provider:
    answer = entry.load()()
    if answer["schema_version"] != _SCHEMA:
        raise ValueError(f"schema {answer['schema_version']!r} is not {_SCHEMA}")
    architectures = frozenset(answer["cuda_architectures"])
    if not all(re.fullmatch(r"sm\d{2,3}[af]?", name) for name in architectures):
        raise ValueError(f"{sorted(architectures)} are no CUDA architectures")
    return Provider(
        provider_id=entry.name,
        distribution=str(answer["distribution"]),
        version=str(answer["version"]),
        jit_cache_dir=Path(answer["jit_cache_dir"]),
        cuda_architectures=architectures,
        modules=frozenset(answer["modules"]),
    )


def get_jit_cache_providers() -> tuple[Provider, ...]:
    """Return the installed providers, ordered by their names."""
    found = {}
    for entry in entry_points(group=_GROUP):
        try:
            found[entry.name] = _load(entry)
        except Exception as error:  # noqa: BLE001  # see above
            warnings.warn(f"flashinfer-jit-cache: {entry.value} is left out: {error!r}", stacklevel=2)
    return tuple(found[name] for name in sorted(found))
