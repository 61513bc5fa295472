"""Run by every Python process that finds this directory first on PYTHONPATH: the scripts of SMWHEEL_INJECT.

The environment's own `sitecustomize` runs first. Nothing that goes wrong here may change what the process does:
it is written to SMWHEEL_INJECT_LOG, a directory, and the process goes on.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def _own_sitecustomize() -> None:
    here = Path(__file__).resolve().parent
    places = [path for path in sys.path if Path(path).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _injected() -> None:
    for script in os.environ.get("SMWHEEL_INJECT", "").split(os.pathsep):
        if script:
            runpy.run_path(script, run_name="smwheel_injected")


def _survive(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:  # noqa: BLE001  # the process is not ours to stop
        problem = Path(os.environ["SMWHEEL_INJECT_LOG"]) / f"problem-{os.getpid()}.txt"
        problem.write_text(traceback.format_exc(), encoding="utf-8")


_own_sitecustomize()
_survive(_injected)
