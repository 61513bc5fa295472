"""An HTTP server for tests: serves bytes by path, honours Range, and misbehaves on request."""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Files:
    """What is served, how it misbehaves, and what was asked (method, path, Range header)."""

    content: dict[str, bytes] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    cut_after: dict[str, list[int]] = field(default_factory=dict)
    """Bytes after which the connection breaks: one entry is used up by each request of that path."""
    ignore_range: bool = False
    status: dict[str, int] = field(default_factory=dict)
    authorization: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    files: Files

    def do_GET(self) -> None:
        files, path = self.files, self.path
        wanted = self.headers.get("Range", "")
        files.asked.append((path, wanted))
        if files.authorization and self.headers.get("Authorization") != files.authorization:
            self._answer(401, b"")
            return
        if path in files.status or path not in files.content:
            self._answer(files.status.get(path, 404), b"")
            return
        content = files.content[path]
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and not files.ignore_range else 0
        if start and start >= len(content):
            self._answer(416, b"")
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", files.types.get(path, "application/octet-stream"))
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        cuts = files.cut_after.get(path)
        body = content[start:]
        self.wfile.write(body[: cuts.pop(0)] if cuts else body)
        self.close_connection = True

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server:
    """Runs the server for the length of a `with` block; gives its `Files`."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.certificate = certificate

    def __enter__(self) -> Files:
        self.files = Files()
        handler = type("Handler", (_Handler,), {"files": self.files})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if self.certificate is None else "https"
        self.files.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self.files

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
