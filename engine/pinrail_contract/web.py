"""One GET over https, from any offset on. I/O.

What proves who asks goes to the named host alone: a redirect to another host, which is how hubs, registries and stores
hand out large files, goes without it.
"""

import contextlib
import http.client
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from .errors import SourceError

TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 20  # bytes
_FOR_ANYONE = ("range", "accept", "user-agent")  # headers that say nothing of who asks


@dataclass(frozen=True, slots=True)
class Web:
    """Opens addresses with one idea of whom to trust; safe to use from several threads."""

    trust: ssl.SSLContext

    @contextlib.contextmanager
    def open(self, url: str, headers: Mapping[str, str], offset: int = 0) -> Iterator[http.client.HTTPResponse]:
        """The answer's bytes from `offset` on.

        Raises SourceError for a redirect that is not followed, else what `urllib` raises.
        """
        given = {key: value for key, value in headers.items() if value}
        request = urllib.request.Request(url, headers={**given, **({"Range": f"bytes={offset}-"} if offset else {})})
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=self.trust), _HttpsOnly)
        with _answer(opener, request) as response:
            if offset and response.status != 206:  # this server does not resume: skip what we have
                skip(response, offset)
            yield response


def trusting(ca_file: str) -> ssl.SSLContext:
    """The usual certificates, and those of a PEM file where one is named.

    Raises SourceError where that file is not there or holds no certificate.
    """
    context = ssl.create_default_context()
    if not ca_file:
        return context
    try:
        context.load_verify_locations(ca_file)
    except FileNotFoundError as e:
        wanted = "in a pod, the ConfigMap and key that spec.model.caConfigMapRef names"
        raise SourceError(f"certificates: {ca_file} does not exist, want a file in PEM: {wanted}") from e
    except (OSError, ssl.SSLError) as e:
        raise SourceError(f"certificates: {ca_file} cannot be read, want certificates in PEM: {e}") from e
    return context


def skip(source: IO[bytes] | http.client.HTTPResponse, n: int) -> None:
    """Read `n` bytes, or what there is, and forget them."""
    while n > 0 and (chunk := source.read(min(_CHUNK, n))):
        n -= len(chunk)


def _answer(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> http.client.HTTPResponse:
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as e:
        e.close()
        to = e.headers["Location"]
        if 300 <= e.code < 400 and to:
            raise SourceError(f"{_shown(request.full_url)}: redirects to {_shown(to)}, want https://") from None
        raise
    return response


def _shown(url: str) -> str:
    """Without its query: that of a store's address is a signature."""
    return url.partition("?")[0]


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
            for name in [n for n in follows.headers if n.lower() not in _FOR_ANYONE]:
                follows.remove_header(name)
        return follows
