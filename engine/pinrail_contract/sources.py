"""Reading one file of a source, from any offset on. I/O.

| source                                  | address of a file                                | token goes as  |
|-----------------------------------------|--------------------------------------------------|----------------|
| https://base/                           | base/FILE                                        | bearer token   |
| hf://organisation/name, revision COMMIT | HF_ENDPOINT/organisation/name/resolve/COMMIT/FILE | bearer token  |
| oci://registry/repository@DIGEST        | the layer of that name: `registry`, `oci_layout`  | who asks      |
| s3://bucket/prefix                      | the object of that name: `object_store`           | signatures    |
| file:///path                            | path/FILE                                        |                |

`access` says where the token, the hub and the certificates come from; `web` where the token goes.
"""

import contextlib
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from .access import Access
from .errors import SourceError
from .object_store import Bucket
from .pins import Source
from .registry import Registry
from .web import Web, trusting

Open = Callable[[str, int], contextlib.AbstractContextManager[IO[bytes]]]
"""(file name, offset in bytes) -> the file's bytes from there on."""


def opener_of(source: Source, access: Access) -> Open:
    """How to read the files of a source.

    Raises:
        SourceError: It is mounted, not fetched, or the certificates cannot be read.
    """
    if source.scheme == "file":
        return lambda name, offset: _open_file(Path(source.location) / name, offset)
    if not source.is_fetched:
        raise SourceError(f"source.uri: {source.uri} is mounted, not fetched; want {_fetched()} or file://")
    return _FETCHED[source.scheme](source, access, Web(trusting(access.ca_file)))


def _plain(source: Source, access: Access, web: Web) -> Open:
    return _below(source.uri, access, web)


def _hub(source: Source, access: Access, web: Web) -> Open:
    return _below(f"{access.hub}/{source.location}/resolve/{source.revision}", access, web)


def _below(base: str, access: Access, web: Web) -> Open:
    headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
    return lambda name, offset: web.open(_join(base, name), headers, offset)


def _registry(source: Source, access: Access, web: Web) -> Open:
    return Registry(source, access, web).open


def _bucket(source: Source, access: Access, web: Web) -> Open:
    return Bucket(source, access, web).open


_FETCHED: dict[str, Callable[[Source, Access, Web], Open]] = {
    "https": _plain,
    "hf": _hub,
    "oci": _registry,
    "s3": _bucket,
}


def _fetched() -> str:
    return ", ".join(f"{scheme}://" for scheme in _FETCHED)


def _join(base: str, name: str) -> str:
    return base.rstrip("/") + "/" + urllib.parse.quote(name)


@contextlib.contextmanager
def _open_file(path: Path, offset: int) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as f:
            f.seek(offset)
            yield f
    except FileNotFoundError as e:
        raise SourceError(f"{path.name}: the source has no such file") from e
