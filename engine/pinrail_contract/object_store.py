"""Reading a model's files from a bucket over the S3 protocol. I/O, and where an object lies: pure."""

import contextlib
import http.client
import urllib.parse
from datetime import UTC, datetime

from .access import Access
from .pins import Source
from .sigv4 import signed
from .web import Web


class Bucket:
    """The objects below one prefix; each request is signed anew, since a signature ends after minutes."""

    def __init__(self, source: Source, access: Access, web: Web) -> None:
        self._base, self._keys, self._web = base_url(source, access), access.keys, web

    def open(self, name: str, offset: int) -> contextlib.AbstractContextManager[http.client.HTTPResponse]:
        """One file's bytes from `offset` on. Raises SourceError, or what `urllib` raises."""
        url = f"{self._base}/{urllib.parse.quote(name)}"
        parts = urllib.parse.urlsplit(url)
        return self._web.open(url, signed(parts.netloc, parts.path, self._keys, datetime.now(UTC)), offset)


def base_url(source: Source, access: Access) -> str:
    """The address of a prefix, without a slash at its end.

    | endpoint                       | bucket      | address                                      |
    |--------------------------------|-------------|----------------------------------------------|
    | none                           | b           | https://b.s3.REGION.amazonaws.com/PREFIX     |
    | none                           | with a dot  | https://s3.REGION.amazonaws.com/b.c/PREFIX   |
    | https://host                   | b           | https://host/b/PREFIX                        |
    | https://b.host (virtual host)  | b           | https://b.host/PREFIX                        |

    No certificate of the public service's covers a bucket with a dot as a host.
    """
    bucket, _, prefix = source.location.partition("/")
    endpoint = access.store or f"https://s3.{access.keys.region}.amazonaws.com"
    if not access.store and "." not in bucket:
        endpoint = endpoint.replace("https://", f"https://{bucket}.")
    is_host = endpoint.startswith(f"https://{bucket}.")
    path = "/".join(part for part in ("" if is_host else bucket, urllib.parse.quote(prefix.strip("/"))) if part)
    return f"{endpoint}/{path}".rstrip("/")
