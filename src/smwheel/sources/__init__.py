"""Sources: files pinned by sha256, found by package name, kept in a content-addressed store, unpacked safely.

`registry.fetch` brings a file into a `store.Store`; `unpack.unpack` makes a tree of it.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as (file name, bytes done, bytes in all) while a file is brought; the last call has done == all."""
