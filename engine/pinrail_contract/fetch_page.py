"""How far a fetch is, as a metrics page where the engine will answer once it runs. I/O.

Nothing depends on it: where the port is taken, the fetch goes on without a page. A client that is slow, or many of
them, cost a few threads and no byte of the fetch.
"""

import argparse
import contextlib
import os
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from . import endpoints, termination
from .metrics import fetch_page

AT_ONCE = 8  # answers; a connection beyond them is closed
TIMEOUT = 2.0  # seconds that a client may say nothing
_POLL = 0.1  # seconds until the server sees that it is to end


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """HOST:PORT of a command line; raises ArgumentTypeError with what is wanted."""
        host, _, port = text.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise argparse.ArgumentTypeError(f"got {text!r}, want HOST:PORT such as 127.0.0.1:8000")
        return cls(host, int(port))

    @classmethod
    def of_pod(cls) -> Self | None:
        """Where the engine of this pod will answer; None outside a pod, where nobody asks."""
        return cls("0.0.0.0", endpoints.PORT) if os.path.exists(termination.PATH) else None


@contextlib.contextmanager
def showing(address: Address | None, done: Callable[[], int], whole: int) -> Iterator[None]:
    """Serves the page while the block runs.

    Args:
        address: Where; None for nowhere.
        done: How many bytes are there, whenever it is asked.
        whole: Bytes of the whole model.
    """
    server = _bound(address, lambda: fetch_page(done(), whole).encode()) if address is not None else None
    if server is None:
        yield
        return
    threading.Thread(target=server.serve_forever, args=(_POLL,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _bound(address: Address, page: Callable[[], bytes]) -> "_Server | None":
    try:
        return _Server(address, page)
    except OSError as e:
        print(f"progress is not served at {address.host}:{address.port}: {e.strerror or e}", file=sys.stderr)
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that hangs does not keep the fetch from ending

    def __init__(self, address: Address, page: Callable[[], bytes]) -> None:
        self.page, self._free = page, threading.BoundedSemaphore(AT_ONCE)
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """Without the look-up of the host's name, which may wait for a name server."""
        socketserver.TCPServer.server_bind(self)

    def verify_request(self, *_: object) -> bool:
        return self._free.acquire(blocking=False)

    def process_request_thread(self, *given: object) -> None:
        try:
            super().process_request_thread(*given)  # type: ignore[arg-type]
        finally:
            self._free.release()

    def handle_error(self, *_: object) -> None:
        """A client that leaves is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = TIMEOUT

    def do_GET(self) -> None:
        is_page = self.path == endpoints.METRICS
        page = self.server.page() if is_page else b""
        self.send_response(200 if is_page else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """The log is the fetch's own."""
