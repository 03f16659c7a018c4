"""Reading one file of a source, from any offset on. I/O.

| source                                  | address of a file                                       |
|-----------------------------------------|---------------------------------------------------------|
| https://base/                           | base/FILE                                               |
| hf://organisation/name, revision COMMIT | HF_ENDPOINT/organisation/name/resolve/COMMIT/FILE       |
| file:///path                            | path/FILE                                               |

HF_ENDPOINT and HF_TOKEN are read from the environment, as the hub's own client does. The token goes to that endpoint
alone: a redirect to another host, which is how hubs hand out large files, goes without it.
"""

import contextlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from .errors import SourceError
from .pins import Source

TIMEOUT = 30.0  # seconds without a byte
HUB = "https://huggingface.co"
_CHUNK = 1 << 20  # bytes

Open = Callable[[str, int], contextlib.AbstractContextManager[IO[bytes]]]
"""(file name, offset in bytes) -> the file's bytes from there on."""


def opener_of(source: Source) -> Open:
    """How to read the files of a source.

    Raises:
        SourceError: It is mounted, not fetched, or HF_ENDPOINT is no https address.
    """
    if source.scheme == "https":
        return lambda name, offset: _open_https(_join(source.uri, name), offset, "")
    if source.scheme == "hf":
        base, token = f"{_hub()}/{source.location}/resolve/{source.revision}", os.environ.get("HF_TOKEN", "")
        return lambda name, offset: _open_https(_join(base, name), offset, token)
    if source.scheme == "file":
        return lambda name, offset: _open_file(Path(source.location) / name, offset)
    raise SourceError(f"source.uri: {source.uri} is mounted, not fetched; want https://, hf:// or file://")


def _hub() -> str:
    hub = os.environ.get("HF_ENDPOINT") or HUB
    if not hub.startswith("https://"):
        raise SourceError(f"HF_ENDPOINT: got {hub!r}, want an address that begins with https://")
    return hub.rstrip("/")


def _join(base: str, name: str) -> str:
    return base.rstrip("/") + "/" + urllib.parse.quote(name)


@contextlib.contextmanager
def _open_https(url: str, offset: int, token: str) -> Iterator[IO[bytes]]:
    request = urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(_HttpsOnly)
    with _answer(opener, request) as response:
        if offset and response.status != 206:  # this server does not resume: skip what we have
            _skip(response, offset)
        yield response


def _answer(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> http.client.HTTPResponse:
    """Raises SourceError for a redirect that is not followed, else what `urllib` raises."""
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as e:
        e.close()
        to = e.headers["Location"]
        if 300 <= e.code < 400 and to:
            raise SourceError(f"{request.full_url}: redirects to {to}, want https://") from None
        raise
    return response


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """A redirect away from https would let the network choose the bytes, and is refused by name."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://"):
            return None  # so that it is an answer like others that are no file
        follows = super().redirect_request(req, fp, code, msg, headers, newurl)
        if follows is not None and follows.host != req.host:
            follows.remove_header("Authorization")
        return follows


@contextlib.contextmanager
def _open_file(path: Path, offset: int) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as f:
            f.seek(offset)
            yield f
    except FileNotFoundError as e:
        raise SourceError(f"{path.name}: the source has no such file") from e


def _skip(source: IO[bytes], n: int) -> None:
    while n > 0 and (chunk := source.read(min(_CHUNK, n))):
        n -= len(chunk)
