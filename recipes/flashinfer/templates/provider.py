"""FlashInfer's modules compiled for @ARCH@; what they are is in `manifest.json` beside this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__version__ = "@LABEL@"


def provider() -> dict[str, Any]:
    """Return what FlashInfer's loader wants to know about this package."""
    here = Path(__file__).resolve().parent
    manifest: dict[str, Any] = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
    return manifest | {"jit_cache_dir": here / "jit_cache"}
