"""Bring any kind of source into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smwheel.recipe import ArchiveSource, FileSource, GitSource
from smwheel.sources import git
from smwheel.sources.archive import fetch_archive
from smwheel.sources.registry import fetch

if TYPE_CHECKING:
    from pathlib import Path

    from smwheel.recipe import Source
    from smwheel.sources import Progress
    from smwheel.sources.store import Store


def bring(
    source: Source, store: Store, *, offline: bool = False, ask_tag: bool = False, progress: Progress | None = None
) -> Path:
    """Return the stored file of a source, bringing it when the store lacks it.

    `ask_tag` asks a repository what a tag names even if that is known.

    Raises:
        RecipeError, NetworkError, SourceError, HashMismatchError: see the function of each kind.
    """
    match source:
        case GitSource():
            return git.fetch_git(source, store, offline=offline, ask_tag=ask_tag).archive
        case ArchiveSource():
            return fetch_archive(source, store, offline=offline, progress=progress)
        case FileSource():
            return fetch(
                source.project,
                source.file,
                source.sha256,
                source.size,
                store,
                offline=offline,
                progress=progress,
            )


def stored(source: Source, store: Store) -> Path | None:
    """Return where a source lies in the store; None if it must be brought."""
    sha256 = git.stored_digest(source, store) if isinstance(source, GitSource) else source.sha256
    return store.path(sha256) if sha256 else None


def bytes_to_fetch(source: Source, store: Store) -> int:
    """Return the bytes still to fetch; 0 also for a repository, whose size nobody says beforehand."""
    return 0 if isinstance(source, GitSource) or stored(source, store) else source.size


def told(source: Source, store: Store) -> Source:
    """Return a source with the commit that its tag is known to name."""
    if not isinstance(source, GitSource) or source.commit:
        return source
    return source.model_copy(update={"commit": git.known_commit(source, store)})
