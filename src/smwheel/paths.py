"""Where things lie: the data that comes with smwheel, the cache, and a build's work directory."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent.parent


def data_dir() -> Path:
    """Return the directory that holds `recipes/` and `patches/`: a checkout, or installed data."""
    return _CHECKOUT if (_CHECKOUT / "recipes").is_dir() else _PACKAGE / "_data"


def package_data() -> Path:
    """Return the directory of data files that lie inside the Python package in a checkout too."""
    return _PACKAGE / "_data"


def cache_dir() -> Path:
    """Return the cache: $SMWHEEL_CACHE, else $XDG_CACHE_HOME/smwheel, else ~/.cache/smwheel."""
    if explicit := os.environ.get("SMWHEEL_CACHE"):
        return Path(explicit).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "smwheel"
