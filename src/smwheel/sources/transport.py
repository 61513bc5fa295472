"""Bytes over HTTP(S) with pip's certificates, proxies and credentials: pages, and files that resume."""

from __future__ import annotations

import netrc
import os
import re
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import httpx

from smwheel.errors import NetworkError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from smwheel.sources.settings import IndexSettings

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 30.0
_CONNECT_TRIES = 2
_STALLED_TRIES = 3
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True)
class Page:
    """One page of an index, after redirects."""

    url: str
    content_type: str
    text: str


class Client:
    """An HTTP client for the hosts that `settings` name; a context manager."""

    def __init__(self, settings: IndexSettings) -> None:
        context = _ssl_context(settings.cert)
        self._credentials = _credentials(settings)
        mounts = {
            f"all://{host}": httpx.HTTPTransport(
                verify=False, proxy=settings.proxy or None
            )  # pip's own `trusted-host` setting
            for host in settings.trusted_hosts
        }
        self._http = httpx.Client(
            verify=context,
            timeout=httpx.Timeout(max(settings.timeout, _SILENCE_SECONDS), connect=_CONNECT_SECONDS),
            follow_redirects=True,
            mounts=mounts,
            proxy=settings.proxy or None,
            headers={"User-Agent": "smwheel"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def page(self, url: str) -> Page | None:
        """Return a page, or None when the host says that there is none (404, 410).

        Raises:
            NetworkError: the host does not answer, refuses, or answers with an error.
        """
        for attempt in range(_CONNECT_TRIES):
            try:
                response = self._http.get(url, headers={"Accept": _ACCEPT}, auth=self._auth(url))
            except httpx.HTTPError as error:
                if attempt + 1 == _CONNECT_TRIES or isinstance(error, httpx.TimeoutException):
                    raise _unreachable(url, error) from error
                time.sleep(0.5)
                continue
            if response.status_code in (404, 410):
                return None
            _check_status(url, response)
            return Page(str(response.url), response.headers.get("Content-Type", ""), response.text)
        raise AssertionError

    def download(self, url: str, part: Path, size: int | None, progress: Callable[[int, int], None]) -> None:
        """Bring a file into `part`, going on from what is there; a broken connection is taken up again.

        Raises:
            NetworkError: the host does not answer, or the connection breaks again and again without a byte more.
            SourceError: the file that the host offers has another size than `size` bytes.
        """
        stalled = 0
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                self._download_once(url, part, size, progress)
            except httpx.HTTPError as error:
                now = part.stat().st_size if part.exists() else 0
                stalled = 0 if now > before else stalled + 1
                if stalled >= (_CONNECT_TRIES if isinstance(error, httpx.ConnectError) else _STALLED_TRIES):
                    raise _unreachable(url, error) from error
                time.sleep(0.5 * stalled)
            else:
                return

    def _download_once(self, url: str, part: Path, size: int | None, progress: Callable[[int, int], None]) -> None:
        have = part.stat().st_size if part.exists() else 0
        if size is not None and have == size:
            return
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        with self._http.stream("GET", url, headers=headers, auth=self._auth(url)) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                part.unlink()  # not the beginning of this file: from the start
                raise httpx.ReadError("the range asked for is not there")
            _check_status(url, response)
            start, total = _span(response)
            if start not in (0, have):
                raise httpx.ReadError("the host answered with another range")
            if size is not None and total is not None and total != size:
                part.unlink(missing_ok=True)
                raise SourceError(
                    f"the host offers {total} bytes, pinned are {size}; nothing was kept",
                    where=urlsplit(url).path.rpartition("/")[2],
                    cure="check the size that the recipe pins",
                )
            with part.open("ab" if start else "wb") as file:
                done = start
                for chunk in response.iter_raw():  # as it comes: what a broken connection brought is kept
                    file.write(chunk)
                    done += len(chunk)
                    if size is not None and done > size:
                        return  # the store refuses it: too long
                    progress(done, size or total or 0)
            if total is not None and done < total:
                raise httpx.ReadError("the connection ended early")

    def _auth(self, url: str) -> httpx.BasicAuth | None:
        user_password = self._credentials.get(urlsplit(url).hostname or "") or _from_netrc(url)
        return httpx.BasicAuth(*user_password) if user_password else None


def _span(response: httpx.Response) -> tuple[int, int | None]:
    """Return where in the file the answer begins, and the file's whole size if the host says it."""
    if response.status_code == httpx.codes.PARTIAL_CONTENT:
        match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        if match is None:
            raise httpx.ReadError("a partial answer without its range")
        return int(match[1]), None if match[2] == "*" else int(match[2])
    length = response.headers.get("Content-Length")
    return 0, int(length) if length and length.isdigit() else None


def _check_status(url: str, response: httpx.Response) -> None:
    if response.is_success:
        return
    raise NetworkError(
        f"the host answered {response.status_code} {response.reason_phrase}".rstrip(),
        where=_host(url),
        cure="check pip's index settings and credentials: pip config list"
        if response.status_code in (401, 403, 407)
        else "run the same command again; if it stays, check pip's index settings: pip config list",
    )


def _unreachable(url: str, error: Exception) -> NetworkError:
    reason = str(error) or type(error).__name__
    return NetworkError(
        f"cannot be reached: {reason}",
        where=_host(url),
        cure="check the network, proxy and certificates that pip is set to use: pip config list",
    )


def _host(url: str) -> str:
    """Return host and port only: the rest of a URL may hold a password or a token."""
    parts = urlsplit(url)
    return (parts.hostname or url) + (f":{parts.port}" if parts.port else "")


def _ssl_context(cert: str) -> ssl.SSLContext:
    if cert:
        return ssl.create_default_context(cafile=cert)
    context = httpx.create_ssl_context()  # as pip: its own list, or $SSL_CERT_FILE
    context.load_default_certs()  # and the system's
    return context


def _credentials(settings: IndexSettings) -> dict[str, tuple[str, str]]:
    """Return user and password by host, as the index URLs give them; they serve that host's files too."""
    found: dict[str, tuple[str, str]] = {}
    for url in (*settings.indexes, *settings.find_links):
        parsed = httpx.URL(url) if "://" in url else None
        if parsed is not None and parsed.username:
            found[parsed.host] = (parsed.username, parsed.password)
    return found


def _from_netrc(url: str) -> tuple[str, str] | None:
    try:
        entry = netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(url).hostname or "")
    except (FileNotFoundError, netrc.NetrcParseError, PermissionError):
        return None
    return (entry[0], entry[2] or "") if entry else None
