"""Let torch answer as if a GPU were there, for asking SGLang what it would compile; nothing can be launched."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

# Multiprocessors of the boards that matter: some grids, and so some template arguments, are chosen by them.
BOARDS = {
    "rtx-pro-6000": ("12.0", 188),
    "rtx-5090": ("12.0", 170),
    "h200": ("9.0", 132),
}
BOARD_OF = {"12.0": "rtx-pro-6000", "9.0": "h200"}


def install(board: str, cuda: str = "13.0") -> None:
    """Make `torch.cuda` describe `board`; to be called before SGLang is imported."""
    import torch  # noqa: PLC0415  # the environment's own, only where one is

    if "sglang" in sys.modules:
        raise RuntimeError("sglang is imported already: it has asked for the GPU")
    capability, multiprocessors = BOARDS[board]
    major, minor = (int(part) for part in capability.split("."))
    properties = SimpleNamespace(
        name=board,
        major=major,
        minor=minor,
        multi_processor_count=multiprocessors,
        total_memory=96 << 30,
        warp_size=32,
        gcnArchName="",
    )
    torch.version.cuda = torch.version.cuda or cuda
    answers: dict[str, Any] = {
        "is_available": True,
        "current_device": 0,
        "device_count": 1,
        "get_device_capability": (major, minor),
        "get_device_name": board,
        "get_device_properties": properties,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)
