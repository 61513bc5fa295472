"""Find a pinned file by its package's name in the places that pip looks in, and bring it into the store.

Index pages are read as PEP 691 JSON or PEP 503 HTML. Local places are asked first. A local place that does not exist
on this machine is skipped without a word: what counts is whether the pinned bytes are found.
"""

from __future__ import annotations

import html.parser
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import url2pathname

from packaging.utils import canonicalize_name

from smwheel.errors import HashMismatchError, NetworkError, SmwheelError, SourceError
from smwheel.sources.settings import pip_settings
from smwheel.sources.transport import Client, Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smwheel.sources import Progress
    from smwheel.sources.settings import IndexSettings
    from smwheel.sources.store import Store


@dataclass(frozen=True)
class Link:
    """One file that a place offers; `sha256` and `size` (bytes) as far as the place says them."""

    filename: str
    url: str
    sha256: str = ""
    size: int | None = None


@dataclass(frozen=True)
class Place:
    """Where files of one project may be offered: an index's page of it, or a find-links location."""

    location: str
    is_index: bool

    @property
    def path(self) -> Path | None:
        """The local path, or None when the place is on a host."""
        if self.location.startswith("file:"):
            return Path(url2pathname(urlsplit(self.location).path))
        return None if "://" in self.location else Path(self.location).expanduser()


def fetch(
    project: str,
    filename: str,
    sha256: str,
    size: int,
    store: Store,
    *,
    offline: bool = False,
    progress: Progress | None = None,
    settings: IndexSettings | None = None,
) -> Path:
    """Return the stored file (`size` bytes); when the store lacks it, bring it from where pip's settings lead.

    `settings` default to those of pip on this machine.

    Raises:
        NetworkError: `offline` and not in the store; or no place that may have it could be asked.
        SourceError: every place was asked and none has a file of that name; or it came truncated.
        HashMismatchError: what is stored is damaged, and `offline`; or what is offered under that name has other
            bytes; both digests are named.
    """
    if (stored := store.sound(sha256, mend=not offline)) is not None:
        return stored
    if offline:
        raise NetworkError(
            f"not in the store, and --offline forbids bringing it ({size / 1e6:,.1f} MB)",
            where=filename,
            cure="run `smwheel fetch` for the same recipe once with a network, then --offline works",
        )
    settings = settings if settings is not None else pip_settings()
    failures: list[SmwheelError] = []
    with Client(settings) as client:
        for link in _offers(project, filename, client, settings, failures):
            if link.sha256 and link.sha256 != sha256:
                failures.append(_other_hash(link, sha256))
                continue
            try:
                return store.obtain(sha256, filename, size, _filler(link, client, size, progress))
            except (SourceError, NetworkError) as error:
                failures.append(error)
    raise _verdict(project, filename, failures)


def places(project: str, settings: IndexSettings) -> list[Place]:
    """Return where a project's files may be, the local places first, else in pip's order."""
    name = canonicalize_name(project)
    found = [Place(location, is_index=False) for location in settings.find_links]
    found += [Place(f"{index.rstrip('/')}/{name}/", is_index=True) for index in settings.indexes]
    return sorted(found, key=lambda place: place.path is None)


def links(place: Place, client: Client) -> Iterator[Link]:
    """Yield the files that a place offers; none for a place that does not exist.

    Raises:
        NetworkError: the place's host does not answer, or answers with an error.
    """
    path = place.path
    if path is None:
        page = client.page(place.location)
        if page is not None:
            yield from parse_page(page)
    elif path.is_dir() and not place.is_index:
        yield from (Link(child.name, child.as_uri()) for child in sorted(path.iterdir()) if child.is_file())
    else:
        document = path / "index.html" if path.is_dir() else path
        if document.is_file():
            text = document.read_text(encoding="utf-8", errors="replace")
            yield from parse_page(Page(document.absolute().as_uri(), "text/html", text))


def parse_page(page: Page) -> Iterator[Link]:
    """Yield the links of an index page: JSON (PEP 691) by its content type, else HTML (PEP 503).

    Raises:
        NetworkError: the host says JSON and sends something else.
    """
    if page.content_type.lower().startswith("application/vnd.pypi.simple.v1+json"):
        try:
            files = json.loads(page.text)["files"]
            found = [_json_link(page.url, file) for file in files]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NetworkError(
                f"answered with an index page that is no PEP 691 JSON ({error})",
                where=urlsplit(page.url).hostname or page.url,
                cure="check pip's index settings: pip config list",
            ) from error
        yield from found
        return
    parser = _Anchors()
    parser.feed(page.text)
    for href in parser.hrefs:
        url, fragment = urldefrag(urljoin(urljoin(page.url, parser.base), href))
        digest = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
        yield Link(_basename(url), url, digest.lower())


class _Anchors(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if href and tag == "a":
            self.hrefs.append(href)
        elif href and tag == "base" and not self.base:
            self.base = href


def _json_link(base: str, file: dict[str, object]) -> Link:
    hashes = file.get("hashes")
    digest = hashes.get("sha256", "") if isinstance(hashes, dict) else ""
    size = file.get("size")
    url = urljoin(base, str(file["url"]))
    return Link(str(file["filename"]), url, str(digest).lower(), size if isinstance(size, int) else None)


def _basename(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _offers(
    project: str, filename: str, client: Client, settings: IndexSettings, failures: list[SmwheelError]
) -> Iterator[Link]:
    """Yield the links with the wanted file name; a place that cannot be asked becomes a failure."""
    for place in places(project, settings):
        try:
            found = [link for link in links(place, client) if link.filename == filename]
        except NetworkError as error:
            failures.append(error)
            continue
        yield from found


def _filler(link: Link, client: Client, size: int, progress: Progress | None) -> Callable[[Path], None]:
    local = Place(link.url, is_index=False).path

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(link.filename, done, total)

    def fill(part: Path) -> None:
        part.parent.mkdir(parents=True, exist_ok=True)
        if local is None:
            client.download(link.url, part, size, report)
            return
        try:
            shutil.copyfile(local, part)
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror}", where=str(local)) from error
        report(size, size)

    return fill


def _other_hash(link: Link, pinned: str) -> HashMismatchError:
    return HashMismatchError(
        f"the index lists sha256 {link.sha256}, pinned is {pinned}; nothing was fetched",
        where=link.filename,
        cure="check the pinned hash against the publisher's; if it is right, this index offers another file",
    )


def _verdict(project: str, filename: str, failures: list[SmwheelError]) -> SmwheelError:
    """Return the failure that says most: other bytes, a broken file, a place not asked, then absence."""
    for kind in (HashMismatchError, SourceError, NetworkError):
        for failure in failures:
            if isinstance(failure, kind):
                if kind is not NetworkError:
                    return failure
                return NetworkError(
                    f"cannot be fetched: {failure.where} {failure.message}", where=filename, cure=failure.cure
                )
    return SourceError(
        f"no index or find-links location that pip is set to use offers it for {project}",
        where=filename,
        cure="check `pip config list`, or lay the file in a directory and set PIP_FIND_LINKS to it",
    )
