"""A source over TLS that gives large files piece by piece, when a test says so, and `pinrail fetch` that reads it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from https_server import https_server

from pinrail_contract.fetch import CHUNK
from pinrail_contract.folder import no_progress
from pinrail_contract.pin_command import pin_folder
from pinrail_contract.pins import API_VERSION, KIND, ModelManifest, Source


class Steps:
    """Permission for so many pieces of `CHUNK` bytes."""

    def __init__(self) -> None:
        self._given = threading.Semaphore(0)

    def give(self, pieces: int) -> None:
        self._given.release(pieces)

    def take(self) -> None:
        assert self._given.acquire(timeout=60), "no piece was given for a minute"


@contextmanager
def stepped_source(folder: Path, certificate: Path, steps: Steps) -> Iterator[str]:
    """Its address, while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = (folder / self.path.rsplit("/", 1)[1]).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            for at in range(0, len(data), CHUNK):
                if len(data) > CHUNK:
                    steps.take()
                self.wfile.write(data[at : at + CHUNK])

        def log_message(self, *_: object) -> None:
            pass

    with https_server(Handler, certificate) as port:
        yield f"https://127.0.0.1:{port}/tiny"


def pinned(folder: Path, url: str) -> ModelManifest:
    found = pin_folder(folder, Source("file://" + str(folder)), no_progress)
    return ModelManifest.of(found.files, found.architecture, Source(url))


@contextmanager
def fetching(
    manifest: ModelManifest, place: Path, certificate: Path, host: str, port: int
) -> Iterator["subprocess.Popen[str]"]:
    """`pinrail fetch` into a folder of `place`, with its metrics page at `host`; it is ended with the block."""
    document = place / "manifest.json"
    document.write_text(json.dumps({"apiVersion": API_VERSION, "kind": KIND, "spec": manifest.to_spec()}))
    words = ["--manifest", str(document), "--output", str(place / "out"), "--metrics-address", f"{host}:{port}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pinrail_contract", "fetch", *words],
        env={**os.environ, "SSL_CERT_FILE": str(certificate / "cert.pem")}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)
