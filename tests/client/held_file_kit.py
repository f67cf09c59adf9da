"""A file on an HTTP server that is not given out before a test says so."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kits.this_host_kit import this_host_listed

_WAIT_S = 120


class HeldFile(http.server.ThreadingHTTPServer):
    """Serves one file at every path, but keeps who reads it waiting until it may go on."""

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.content = content
        self.asked = threading.Event()
        self.may_go_on = threading.Event()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Answer(http.server.BaseHTTPRequestHandler):
    server: HeldFile

    def do_HEAD(self) -> None:
        self._begin()

    def do_GET(self) -> None:
        self.server.asked.set()
        self.server.may_go_on.wait(_WAIT_S)
        self._begin()
        self.wfile.write(self.server.content)

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()

    def log_message(self, *_said: object) -> None:
        """Say nothing."""


@contextmanager
def held_file(content: bytes) -> Iterator[HeldFile]:
    """Serve it until the end of the block, where everybody may go on."""
    with this_host_listed(), HeldFile(content) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        try:
            yield made
        finally:
            made.may_go_on.set()
            made.shutdown()
