"""How a registry's answers are read: a manifest's layers as files, what a challenge asks for, who one is. Pure.

| layer of                        | its file's name is in          | its bytes are                              |
|---------------------------------|--------------------------------|--------------------------------------------|
| CNCF ModelPack, media type .raw | org.cncf.model.filepath        | the file                                   |
| CNCF ModelPack, media type .tar | org.cncf.model.filepath        | a tar, or one in gzip, that holds the file |
| ORAS, and any other             | org.opencontainers.image.title | the file, whatever the media type says     |

Sources: the distribution specification 1.1, CNCF's model-spec v0.0.7, ORAS' annotations, and the registry's
documents of token authentication and of config.json.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from .canonical import sha256_of
from .errors import SourceError

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
LARGEST_MANIFEST = 4 << 20  # bytes that every registry takes

_PATH = "org.cncf.model.filepath"
_TITLE = "org.opencontainers.image.title"
_PACKED = "io.deis.oras.content.unpack"  # ORAS' mark of a folder
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Layer:
    digest: str  # sha256:… of the blob, which is the file's own where it is no tar
    is_tar: bool


def layers(document: bytes, digest: str, where: str) -> dict[str, Layer]:
    """The files of a manifest, by name.

    Args:
        document: The manifest's bytes.
        digest: sha256:… that they must have.
        where: Whose manifest it is, for messages.

    Raises SourceError where the bytes are others, or no manifest of files.
    """
    if sha256_of(document) != digest:
        raise SourceError(f"{where}: the registry's manifest has {sha256_of(document)}, want {digest}")
    try:
        found = json.loads(document)
        if "manifests" in found:
            raise SourceError(f"{where}: is an index of manifests, want the digest of one of them")
        named = {_name(layer): _layer(layer, where) for layer in found["layers"] if _name(layer)}
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise SourceError(f"{where}: is no manifest of layers as {MANIFEST_TYPE} has them") from e
    if not named:
        raise SourceError(f"{where}: no layer has a file's name, want the annotation {_TITLE} or {_PATH}")
    return named


def _name(layer: Mapping[str, Any]) -> str:
    notes = layer.get("annotations") or {}
    return "" if notes.get(_PACKED) == "true" else str(notes.get(_PATH) or notes.get(_TITLE) or "").removeprefix("./")


def _layer(layer: Mapping[str, Any], where: str) -> Layer:
    digest, kind = layer["digest"], str(layer.get("mediaType", ""))
    if not _DIGEST.fullmatch(digest):
        raise SourceError(f"{where}: layer {_name(layer)} has digest {digest!r}, want sha256: and 64 hex digits")
    is_tar = kind.startswith("application/vnd.cncf.model.") and ".tar" in kind
    if is_tar and not kind.endswith((".tar", ".tar+gzip")):
        raise SourceError(f"{where}: layer {_name(layer)} is {kind}, want it as .raw, .tar or .tar+gzip")
    return Layer(digest, is_tar)


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a 401 asks for (`WWW-Authenticate`)."""

    scheme: str  # bearer, basic, or another one, in lower case
    realm: str
    service: str
    scope: str

    @classmethod
    def parse(cls, header: str) -> Self:
        scheme, _, rest = header.partition(" ")
        found = dict(_PARAMETER.findall(rest))
        return cls(scheme.lower(), *(found.get(key, "") for key in ("realm", "service", "scope")))


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks; nobody where both are empty."""

    user: str = field(default="", repr=False)  # with a password, as `user:password`
    bearer: str = field(default="", repr=False)

    @classmethod
    def parse(cls, secret: str, host: str) -> Self:
        """From a Docker config.json, whose entry of that host counts, from `user:password`, or from a bearer token.

        Raises SourceError without showing anything of it.
        """
        if secret.startswith("{"):
            return cls(user=_of_config(secret, host))
        return cls(user=secret) if ":" in secret else cls(bearer=secret)

    @property
    def basic(self) -> str:
        """The header's value; empty for nobody."""
        return "Basic " + base64.b64encode(self.user.encode()).decode() if self.user else ""


def _of_config(secret: str, host: str) -> str:
    hub = f"https://index.{host.partition('.')[2]}/v1/"  # as the first registry of all is written in such files
    names = (host, f"https://{host}", f"https://{host}/v1/", hub)
    try:
        entries = json.loads(secret)["auths"]
        entry = next((entries[name] for name in names if name in entries), None)
        if entry is None:
            raise SourceError(f"credentials: config.json has no entry for {host} in auths, want one")
        if entry.get("auth"):
            return base64.b64decode(entry["auth"], validate=True).decode()
        return f"{entry['username']}:{entry['password']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        wanted = '{"auths": {"HOST": {"auth": base64 of user:password}}}'
        raise SourceError(f"credentials: got a config.json that cannot be read, want {wanted}") from None
