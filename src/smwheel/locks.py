"""A lock between processes that dies with its holder.

The kernel drops a `flock` when the process that holds it ends, however it ends; so the file that a killed build
left behind is no obstacle to the next one, and nothing has to guess whether a process id is still the same process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from smwheel.errors import LockedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_POLL_SECONDS = 0.1
_SILENT_SECONDS = 2.0
_log = logging.getLogger(__name__)


@contextmanager
def locked(path: Path, *, timeout: float = 3600.0) -> Iterator[None]:
    """Hold the lock file `path` (made with its folder when missing) for the length of the block.

    Waits up to `timeout` seconds for a live holder, and says so after the first two.

    Raises:
        LockedError: it is still held then; names the holder's process id.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _acquire(descriptor, path, timeout)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, timeout: float) -> None:
    begun = time.monotonic()
    said = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - begun
            if waited >= timeout:
                raise LockedError(
                    f"held by process {_holder(descriptor)} for more than {timeout:.0f} s",
                    where=str(path),
                    cure="wait until that process has finished, or end it, and run the same command again",
                ) from None
            if waited >= _SILENT_SECONDS and not said:
                _log.warning("waiting for process %s, which holds %s", _holder(descriptor), path)
                said = True
            time.sleep(_POLL_SECONDS)
        else:
            return


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
