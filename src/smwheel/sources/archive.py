"""An archive at a URL, pinned by sha256, brought into the content-addressed store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from smwheel.errors import HashMismatchError, NetworkError, SourceError
from smwheel.sources.git import rewritten
from smwheel.sources.settings import pip_settings
from smwheel.sources.transport import Client

if TYPE_CHECKING:
    from smwheel.recipe import ArchiveSource
    from smwheel.sources import Progress
    from smwheel.sources.store import Store


def fetch_archive(
    source: ArchiveSource, store: Store, *, offline: bool = False, progress: Progress | None = None
) -> Path:
    """Return the stored file; when the store lacks it, bring it from its URL or a mirror.

    Beginnings of URLs are rewritten as for repositories.

    Raises:
        NetworkError: `offline` and not in the store; or no host could be reached.
        SourceError: the file came truncated, or is not there.
        HashMismatchError: what is stored is damaged, and `offline`; or what is offered has other bytes.
    """
    if (stored := store.sound(source.sha256, mend=not offline)) is not None:
        return stored
    if offline:
        raise NetworkError(
            "not in the store, and --offline forbids bringing it",
            where=source.file,
            cure="run `smwheel fetch` for the same recipe once with a network, then --offline works",
        )
    failures: list[NetworkError | SourceError] = []
    with Client(pip_settings()) as client:
        for url in map(rewritten, (source.url, *source.mirrors)):

            def fill(part: Path, url: str = url) -> None:
                _bring(url, part, source, client, progress)

            try:
                return store.obtain(source.sha256, source.file, source.size or None, fill)
            except (NetworkError, SourceError) as error:
                failures.append(error)
    raise next((one for one in failures if isinstance(one, HashMismatchError)), failures[0])


def _bring(url: str, part: Path, source: ArchiveSource, client: Client, progress: Progress | None) -> None:
    part.parent.mkdir(parents=True, exist_ok=True)

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(source.file, done, total)

    if not url.startswith("file:"):
        client.download(url, part, source.size or None, report)
        return
    try:
        shutil.copyfile(url2pathname(urlsplit(url).path), part)
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", where=url) from error
