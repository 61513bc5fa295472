"""Runs inside the environment that a wheel is tried in: import its packages, and tell what happened.

    ENV/bin/python probe.py REQUEST.json RESPONSE.json

Needs nothing but the standard library, and torch if the request says so. Where the request names a compute
capability, torch answers as a GPU of that capability would, so that the package's loader chooses as it would there;
no kernel can run.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any


class _Properties:
    """What torch.cuda.get_device_properties answers with, as far as loaders ask."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.major, self.minor = capability
        self.name = "stand-in"
        self.multi_processor_count = 1
        self.total_memory = 1 << 34


def _pretend(capability: str) -> None:
    major, _, minor = capability.partition(".")
    answer = (int(major), int(minor))
    cuda = importlib.import_module("torch").cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_, **__: answer
    cuda.get_device_properties = lambda *_, **__: _Properties(answer)
    cuda.get_device_name = lambda *_, **__: "stand-in"


# What the dynamic loader says. Packages that try several files put it into the text of an error of their own.
_LOADER_ERROR = re.compile(
    r"(?:\w+: )?\S+: (?:cannot open shared object file|undefined symbol|version \S+ not found|file too short"
    r"|invalid ELF header).*"
)


def _causes(error: BaseException) -> list[str]:
    """Return the error and what lies under it, innermost last."""
    found: list[str] = []
    quoted: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(found) < 10:
        lines = str(seen).strip().splitlines() or [""]
        found.append(f"{type(seen).__name__}: {lines[0]}")
        quoted += [match[0] for line in lines[1:] if (match := _LOADER_ERROR.search(line))]
        seen = seen.__cause__ or seen.__context__
    # The first file that was tried is the one that should have been loaded.
    return found if not quoted or _LOADER_ERROR.search(found[-1]) else [*found, quoted[0]]


def _opened(site: str) -> list[str]:
    """Return the files below a directory that this process has mapped."""
    fields = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    mapped = {parts[5] for parts in fields if len(parts) == 6}
    return sorted(path.removeprefix(f"{site}/") for path in mapped if path.startswith(f"{site}/"))


def _missing(ops: list[str]) -> list[str]:
    if not ops:
        return []
    torch_ops = importlib.import_module("torch").ops
    missing = []
    for op in ops:
        namespace, _, name = op.partition("::")
        try:
            getattr(getattr(torch_ops, namespace), name)
        except AttributeError:
            missing.append(op)
    return missing


def main(request_path: str, response_path: str) -> None:
    """Do what the request says and write the response."""
    request = json.loads(Path(request_path).read_text())
    response: dict[str, Any] = {"error": [], "opened": [], "missing_ops": []}
    try:
        if request["torch_first"]:
            importlib.import_module("torch")
        if request["capability"]:
            _pretend(request["capability"])
        for module in request["modules"]:
            importlib.import_module(module)
        response["missing_ops"] = _missing(request["ops"])
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is the answer
        response["error"] = _causes(error)
    response["opened"] = _opened(request["site"])
    Path(response_path).write_text(json.dumps(response))


if __name__ == "__main__":
    main(*sys.argv[1:])
