"""`pinrail chat TEXT`: ask a running service something, and see how quickly it answers."""

import argparse
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import endpoints
from .command import Command
from .errors import SourceError


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    tokens: int  # generated
    first_token: float  # seconds from the request to the first text
    seconds: float  # from the request to the last text

    @property
    def tokens_per_second(self) -> float:
        """Of decoding alone: the first token's wait is not in it."""
        return max(self.tokens - 1, 0) / max(self.seconds - self.first_token, 1e-9)


def ask(
    url: str, model: str, text: str, max_tokens: int, timeout: float = 300.0, key: str = ""
) -> Iterator[str | Answer]:
    """Stream one chat answer: pieces of text, then an Answer.

    Raises SourceError with the server's own words where it refuses, does not answer, or breaks off.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_completion_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started, first, tokens, pieces = time.monotonic(), 0.0, 0, []
    with _spoken(url):
        for chunk in _events(url + endpoints.CHAT_COMPLETIONS, body, timeout, key):
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            piece = "".join(c["delta"].get("content") or "" for c in chunk["choices"])
            if piece:
                first = first or time.monotonic() - started
                pieces.append(piece)
                yield piece
    yield Answer("".join(pieces), tokens, first, time.monotonic() - started)


def served_model(url: str, key: str = "") -> dict[str, Any]:
    """The first entry of /v1/models; raises SourceError where nothing answers."""
    with _spoken(url), _open(urllib.request.Request(url + endpoints.MODELS), 10.0, key) as response:
        entry: dict[str, Any] = json.load(response)["data"][0]
        return entry


def _events(url: str, body: dict[str, Any], timeout: float, key: str) -> Iterator[dict[str, Any]]:
    headers = {"Content-Type": "application/json"}
    with _open(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout, key) as response:
        for line in response:
            if line.strip() == b"data: [DONE]":
                return
            if line.startswith(b"data: "):
                event: dict[str, Any] = json.loads(line[6:])
                if "error" in event:
                    raise SourceError(str(event["error"].get("message")))
                yield event
    raise SourceError(f"{url}: the answer broke off before its end")


@contextmanager
def _spoken(url: str) -> Iterator[None]:
    """An answer that breaks off, or is none of OpenAI's, becomes a SourceError."""
    try:
        yield
    except (OSError, http.client.HTTPException) as e:
        raise SourceError(f"{url}: the answer broke off: {str(e) or type(e).__name__}") from e
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise SourceError(f"{url}: answers what no OpenAI server would ({type(e).__name__}: {e})") from e


def _open(request: urllib.request.Request, timeout: float, key: str) -> Any:
    if key:
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        return opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as e:
        try:
            message = json.load(e)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = e.reason
        raise SourceError(f"{request.full_url} answers {e.code}: {message}") from e
    except (OSError, http.client.HTTPException) as e:
        raise SourceError(f"{request.full_url}: does not answer: {getattr(e, 'reason', e)}") from e


def _key(file: Path | None) -> str:
    """From a file, since command lines are seen by everybody."""
    if file is None:
        return ""
    try:
        key = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as e:
        raise SourceError(f"--api-key-file: {file} cannot be read: {e}") from e
    if not key or not key.isprintable():
        raise SourceError(f"--api-key-file: {file} holds no key, want one line")
    return key


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinrail chat", description="Ask a running service something.")
    parser.add_argument("text")
    parser.add_argument("--url", default=f"http://127.0.0.1:{endpoints.PORT}", help="of the service, without /v1")
    parser.add_argument("--model", help="served model name; the first one offered if absent")
    parser.add_argument(
        "--api-key-file", type=Path, help="a file that holds the API key, where the service asks for one"
    )
    parser.add_argument("--max-tokens", type=int, default=256)
    args = parser.parse_args(argv)
    url = args.url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise SourceError(f"--url: got {url!r}, want http://HOST:PORT")
    key = _key(args.api_key_file)
    for part in ask(url, args.model or served_model(url, key)["id"], args.text, args.max_tokens, key=key):
        if isinstance(part, Answer):
            figures = f"{part.tokens} tokens, first after {part.first_token * 1000:.0f} ms"
            print(f"\n\n[{figures}, then {part.tokens_per_second:.1f} tok/s]", file=sys.stderr)
        else:
            print(part, end="", flush=True)
    return 0


command = Command("ask a running service something", _run)
