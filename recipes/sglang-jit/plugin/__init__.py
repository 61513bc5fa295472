"""Kernel modules of SGLang, compiled ahead of time, for one GPU architecture.

SGLang finds this package through its entry-point group `sglang.srt.plugins` and calls `register` in each of its
processes. From then on a module that SGLang's own cache does not hold is looked for here before anything is
compiled. `SGLANG_JIT_FORCE_RECOMPILE=1` and SGLang's own whitelist `SGLANG_PLUGINS` are honoured.
"""

from __future__ import annotations

import logging
from pathlib import Path

from .store import Store

logger = logging.getLogger(__name__)

LOOKUP = "sglang.kernels.jit.utils.compile.loader._find_prebuilt"


def register() -> None:
    """Put this store behind SGLang's own module cache, unless it was made for other versions.

    One warning says which version differs; SGLang then goes on as if this package were not installed.
    """
    store = Store(Path(__file__).parent / "store")
    mismatch = store.mismatch()
    if mismatch:
        logger.warning(
            "%s: the prebuilt kernels are not used: %s. SGLang will compile its kernels. To do: install %s.",
            store.distribution,
            mismatch,
            store.advice(),
        )
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415  # of the right version

    HookRegistry.register(LOOKUP, store.find, HookType.AROUND)
