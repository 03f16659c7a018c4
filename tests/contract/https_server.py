"""A web server over TLS on loopback, whose answers a handler of the test gives."""

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost"


def write_certificate(folder: Path) -> Path:
    """cert.pem and key.pem of a server on loopback, in a folder that is there; returns it."""
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    files = ("-keyout", "key.pem", "-out", "cert.pem")
    subprocess.run(["openssl", *words.split(), "-addext", _NAMES, *files], cwd=folder, check=True, capture_output=True)
    return folder


@contextmanager
def https_server(handler: type[BaseHTTPRequestHandler], certificate: Path) -> Iterator[int]:
    """Its port on 127.0.0.1, while the block runs; `certificate` is a folder with cert.pem and key.pem."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.daemon_threads = False  # so that closing it waits for their ends
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    http.socket = context.wrap_socket(http.socket, server_side=True)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield http.server_address[1]
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
