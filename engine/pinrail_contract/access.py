"""What a fetch is given besides the manifest: who asks, which hub, whom to trust. Pure.

It comes by environment variables, since what a command line says can be read in a pod's spec and in a process list. The
operator sets them in the container that fetches, and a person on a laptop in a shell.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from .errors import SourceError
from .pins import Source
from .sigv4 import Keys

TOKEN = "PINRAIL_SOURCE_TOKEN"
"""For https:// a bearer token; for oci:// that, `user:password`, or a Docker config.json."""

HUB_TOKEN = "HF_TOKEN"
"""For hf://, as the hub's own client reads it."""

HUB_ENDPOINT = "HF_ENDPOINT"
"""The hub of hf://, where it is not HUB."""

STORE_ENDPOINT = "AWS_ENDPOINT_URL"
"""The store of s3://, where it is not Amazon's."""

STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""For s3://, as every client of such stores reads them; without them one asks as anyone."""

STORE_OPTIONS = ("AWS_SESSION_TOKEN", "AWS_REGION")
"""What may be beside them."""

CA_FILE = "PINRAIL_SOURCE_CA_FILE"
"""A file of certificates in PEM that are trusted besides the usual ones."""

HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """All of it for one source; what is not given is empty."""

    token: str = field(default="", repr=False)
    keys: Keys = field(default_factory=Keys)
    hub: str = HUB
    store: str = ""  # empty: Amazon's
    ca_file: str = ""

    @classmethod
    def of(cls, source: Source, environment: Mapping[str, str]) -> Self:
        """Raises SourceError that names the variable; the value of a secret one is never shown."""
        endpoint = environment.get(endpoint_variable(source), "").rstrip("/") if source.scheme in ("hf", "s3") else ""
        if endpoint and not endpoint.startswith("https://"):
            wanted = "want an address that begins with https://"
            raise SourceError(f"{endpoint_variable(source)}: got {endpoint!r}, {wanted}")
        token = _secret(environment, token_variable(source), may_be_json=source.scheme == "oci")
        keys = _keys(environment) if source.scheme == "s3" else Keys()
        ca_file = environment.get(CA_FILE, "")
        return cls(token=token, keys=keys, hub=endpoint or HUB, store=endpoint, ca_file=ca_file)


def token_variable(source: Source) -> str:
    """The variable that holds the token for a source."""
    return HUB_TOKEN if source.scheme == "hf" else TOKEN


def endpoint_variable(source: Source) -> str:
    """The variable that holds the address of a source's hub or store."""
    return STORE_ENDPOINT if source.scheme == "s3" else HUB_ENDPOINT


def _keys(environment: Mapping[str, str]) -> Keys:
    key, secret, session, region = (_secret(environment, name) for name in (*STORE_KEYS, *STORE_OPTIONS))
    if bool(key) != bool(secret):
        given, missing = STORE_KEYS if key else STORE_KEYS[::-1]
        raise SourceError(f"{missing}: got none beside {given}, want both or neither")
    return Keys(key=key, secret=secret, session=session, region=region or Keys().region)


def _secret(environment: Mapping[str, str], name: str, *, may_be_json: bool = False) -> str:
    """Without the line end that files and `echo` leave; of JSON only base64 ever goes into a header."""
    value = environment.get(name, "").strip()
    if not (may_be_json and value.startswith("{")) and not (value.isascii() and value.isprintable()):
        raise SourceError(f"{name}: holds characters that no header may hold, want one line of printable ASCII")
    return value
