"""Inside a process of a compiler-free server: note who asks for a compiler, before anything is started.

Names are in SMWHEEL_COMPILERS (separated by colons). Every process writes its own file below
SMWHEEL_INJECT_LOG, one JSON document a line: command, process, and the Python frames that asked, innermost last.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

EVENTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system")
FRAMES = 12


def _words(arguments: tuple[Any, ...]) -> list[str]:
    """Return a command as words, from the arguments of an audit event: a program and its list, or one text."""
    command = arguments[1] if len(arguments) > 1 else arguments[0]
    if isinstance(command, str | bytes | os.PathLike):
        return os.fsdecode(command).split()
    return [os.fsdecode(word) for word in command]


def _watch() -> None:
    names = frozenset(os.environ["SMWHEEL_COMPILERS"].split(":"))
    folder = Path(os.environ["SMWHEEL_INJECT_LOG"])

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS:
            return
        try:
            words = _words(arguments)
            if not any(word.rsplit("/", 1)[-1] in names for word in words[:3]):
                return
            stack = traceback.extract_stack(limit=FRAMES + 1)[:-1]
            frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in stack]
            entry = {"command": words, "pid": os.getpid(), "seen_by": "audit", "frames": frames}
            with (folder / f"attempts-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except Exception:  # noqa: BLE001  # watching must not change what the process does
            return

    sys.addaudithook(hook)


_watch()
