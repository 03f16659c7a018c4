"""Stands for `pinrail serve` in a process: `python fake_serve.py MODE --port=N …`, without a model.

| mode   | what it does                                                |
|--------|-------------------------------------------------------------|
| serves | answers at once, as many tokens as are asked for            |
| dies   | says why on stderr, and ends with 3                         |
| breaks | is ready, and ends with 4 when it is asked for a completion |
| stays  | is ready, and does not end by SIGTERM                       |
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = sys.argv[1]
PAGE = b'pinrail_model_manifest_info{engine_version="fake"} 1\n'


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(PAGE)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if MODE == "breaks":
            print("out of memory", flush=True)
            os._exit(4)
        text = {"choices": [{"text": "a", "finish_reason": None}]}
        end = {"choices": [{"text": "", "finish_reason": "length"}]}
        usage = {"choices": [], "usage": {"completion_tokens": asked["max_tokens"]}}
        chunks = [*[text] * asked["max_tokens"], end, usage]
        self._answer(b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Says nothing."""


class Listener(ThreadingHTTPServer):
    request_queue_size = 64


if __name__ == "__main__":
    if MODE == "dies":
        sys.exit(print("model.safetensors: not what was pinned", file=sys.stderr) or 3)
    if MODE == "stays":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    port = next(int(word.removeprefix("--port=")) for word in sys.argv if word.startswith("--port="))
    Listener(("127.0.0.1", port), Handler).serve_forever()
