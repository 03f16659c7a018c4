"""Reading a model's files from an OCI registry: the manifest by its digest, then each layer as a file. I/O.

A registry that asks who one is answers 401 with a challenge first. A bearer token ends after minutes, so each 401 gets
a new one, once. A blob that lies in a store on another host is asked for without any of it.
"""

import contextlib
import http.client
import json
import tarfile
import threading
import urllib.error
import urllib.parse
from collections.abc import Iterator
from typing import IO

from . import oci_layout
from .access import Access
from .errors import SourceError
from .oci_layout import Challenge, Credentials, Layer
from .pins import Source
from .web import Web, skip

_LARGEST_TOKEN = 1 << 20  # bytes of a token server's answer


class Registry:
    """One repository, asked by several threads."""

    def __init__(self, source: Source, access: Access, web: Web) -> None:
        """Raises SourceError where the credentials cannot be read."""
        name, _, self._digest = source.location.partition("@")
        host, _, self._repository = name.partition("/")
        self._where, self._web = source.uri, web
        self._base = f"https://{host}/v2/{self._repository}"
        self._credentials = Credentials.parse(access.token, host)
        self._authorization = f"Bearer {self._credentials.bearer}" if self._credentials.bearer else ""
        self._lock = threading.Lock()
        self._layers: dict[str, Layer] = {}

    @contextlib.contextmanager
    def open(self, name: str, offset: int) -> Iterator[IO[bytes] | http.client.HTTPResponse]:
        """One file's bytes from `offset` on. Raises SourceError, or what `urllib` raises."""
        layer = self._layer(name)
        with self._get(f"blobs/{layer.digest}", offset=0 if layer.is_tar else offset) as blob:
            if not layer.is_tar:
                yield blob
                return
            with _member(blob, name) as packed:
                skip(packed, offset)
                yield packed

    def _layer(self, name: str) -> Layer:
        with self._lock:
            if not self._layers:
                with self._get(f"manifests/{self._digest}", accept=oci_layout.MANIFEST_TYPE) as answer:
                    document = answer.read(oci_layout.LARGEST_MANIFEST + 1)
                self._layers = oci_layout.layers(document, self._digest, self._where)
        if name not in self._layers:
            raise SourceError(f"{name}: {self._where} has no such file, only {', '.join(sorted(self._layers)[:10])}")
        return self._layers[name]

    @contextlib.contextmanager
    def _get(self, path: str, *, accept: str = "", offset: int = 0) -> Iterator[http.client.HTTPResponse]:
        url = f"{self._base}/{path}"
        with contextlib.ExitStack() as stack:
            try:
                headers = {"Accept": accept, "Authorization": self._authorization}
                answer = stack.enter_context(self._web.open(url, headers, offset))
            except urllib.error.HTTPError as e:
                if e.code != 401 or e.url != url:  # a store's 401 is none of the registry's
                    raise
                self._authorization = self._answer(Challenge.parse(e.headers.get("WWW-Authenticate", "")), e)
                headers = {"Accept": accept, "Authorization": self._authorization}
                answer = stack.enter_context(self._web.open(url, headers, offset))
            yield answer

    def _answer(self, challenge: Challenge, refused: urllib.error.HTTPError) -> str:
        """The Authorization header that a challenge asks for; raises `refused` where there is none to give."""
        if challenge.scheme == "basic" and self._credentials.user:
            return self._credentials.basic
        if challenge.scheme != "bearer" or self._credentials.bearer:
            raise refused
        if not challenge.realm.startswith("https://"):
            raise SourceError(f"{self._where}: tokens come from {challenge.realm!r}, want https://") from None
        return f"Bearer {self._token(challenge)}"

    def _token(self, challenge: Challenge) -> str:
        scope = challenge.scope or f"repository:{self._repository}:pull"
        query = urllib.parse.urlencode({"service": challenge.service, "scope": scope})
        with self._web.open(f"{challenge.realm}?{query}", {"Authorization": self._credentials.basic}) as answer:
            document = answer.read(_LARGEST_TOKEN)
        try:
            said = json.loads(document)
            return str(said.get("token") or said["access_token"])
        except (ValueError, KeyError, AttributeError):
            raise SourceError(f"{self._where}: {challenge.realm} answers without a token") from None


@contextlib.contextmanager
def _member(blob: http.client.HTTPResponse, name: str) -> Iterator[IO[bytes]]:
    """The one file of that name in a tar, read as it comes."""
    try:
        with tarfile.open(fileobj=blob, mode="r|*") as archive:
            for member in archive:
                packed = archive.extractfile(member) if member.name.removeprefix("./") == name else None
                if packed is not None:
                    yield packed
                    return
    except tarfile.TarError as e:
        raise OSError(f"the layer's tar is not whole: {e}") from e
    raise SourceError(f"{name}: its layer is a tar without it")
