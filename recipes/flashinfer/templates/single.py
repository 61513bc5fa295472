"""FlashInfer's modules compiled for @ARCH@, where FlashInfer 0.6 looks for them."""

from __future__ import annotations

from pathlib import Path

__version__ = "@LABEL@"


def get_jit_cache_dir() -> str:
    """Return the directory that holds `<module>/<module>.so`."""
    return str(Path(__file__).resolve().parent / "jit_cache")
