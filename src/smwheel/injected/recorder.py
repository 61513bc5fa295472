"""Inside a server's process: hand the recipe's recorder a place to report requests to.

SMWHEEL_RECORDER is the recipe's `record.py`; its `install(report)` patches what sees each request. Every process
writes its own file below SMWHEEL_INJECT_LOG, one JSON document a line, so that none waits for another.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def _install() -> None:
    recorder = Path(os.environ["SMWHEEL_RECORDER"])
    log = Path(os.environ["SMWHEEL_INJECT_LOG"]) / f"requests-{os.getpid()}.jsonl"
    log.touch()  # an empty file says: this process was watched

    def report(request: dict[str, Any]) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(request) + "\n")

    sys.path.insert(0, str(recorder.parent))
    try:
        importlib.import_module(recorder.stem).install(report)
    finally:
        sys.path.remove(str(recorder.parent))


_install()
