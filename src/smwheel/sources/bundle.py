"""One file that carries what was fetched to a machine without network.

A tar archive of a part of the store: `sha256/<digest>/<file name>` for each file, and `git/…` for what is known of
commits and tags. Nothing in it is believed: every file must have the digest that it is filed under.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from smwheel.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smwheel.sources.store import Store

_FILE = re.compile(r"sha256/([0-9a-f]{64})/([^/]+)")
_RECORD = re.compile(r"git/(?:commits|tags)/[0-9a-f]+(?:-[0-9a-f]+)?\.json")
_RECORD_BYTES = 1 << 16


def write_bundle(target: Path, store: Store, digests: Iterable[str], records: Iterable[Path]) -> int:
    """Write the files with these digests, and these records of the store, to one file; return how many files.

    Raises:
        SourceError: the store lacks one of them.
        HashMismatchError: one of them is damaged.
    """
    wanted = sorted(set(digests))
    temporary = target.with_name(target.name + ".new")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as tar:
        for digest in wanted:
            path = store.sound(digest, mend=False)
            if path is None:
                raise SourceError(f"the store lacks {digest}", where=str(target), cure="fetch with a network first")
            tar.add(path, f"sha256/{digest}/{path.name}", recursive=False, filter=_plain)
        for record in sorted(set(records)):
            tar.add(record, str(record.relative_to(store.root)), recursive=False, filter=_plain)
    temporary.replace(target)
    return len(wanted)


def read_bundle(source: Path, store: Store) -> int:
    """Bring everything in a bundle into the store; return how many files it holds.

    Raises:
        SourceError: it is no bundle, or cut.
        HashMismatchError: a file in it has another digest than it says; it was not taken.
    """
    files = 0
    try:
        with tarfile.open(source, "r|") as tar:
            for member in tar:
                _take(tar, member, store, source)
                files += member.name.startswith("sha256/")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SourceError(f"cannot be read: {error}", where=str(source), cure="bring it once more") from error
    return files


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, store: Store, source: Path) -> None:
    content = tar.extractfile(member) if member.isreg() else None
    match = _FILE.fullmatch(member.name)
    if content is None or not (match or _RECORD.fullmatch(member.name)):
        raise SourceError(f"holds {member.name[:200]!r}, which belongs into no bundle", where=str(source))
    if match:

        def fill(part: Path) -> None:
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                shutil.copyfileobj(content, file)

        store.obtain(match[1], match[2], member.size, fill)
        return
    text = content.read(_RECORD_BYTES)
    try:
        known = isinstance(json.loads(text), dict)
    except ValueError:
        known = False
    if not known:
        raise SourceError(f"{member.name} is damaged", where=str(source))
    record = store.root / member.name
    record.parent.mkdir(parents=True, exist_ok=True)
    temporary = record.with_suffix(".new")
    temporary.write_bytes(text)
    temporary.replace(record)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o644
    return info
