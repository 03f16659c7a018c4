"""What a fetch is given besides the manifest: who asks, which hub, whom to trust. Pure.

It comes by environment variables, since what a command line says can be read in a pod's spec and in a process list. The
operator sets them in the container that fetches, and a person on a laptop in a shell.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from .errors import SourceError
from .pins import Source

TOKEN = "PINRAIL_SOURCE_TOKEN"
"""For https:// a bearer token; for oci:// that, `user:password`, or a Docker config.json."""

HUB_TOKEN = "HF_TOKEN"
"""For hf://, as the hub's own client reads it."""

HUB_ENDPOINT = "HF_ENDPOINT"
"""The hub of hf://, where it is not HUB."""

CA_FILE = "PINRAIL_SOURCE_CA_FILE"
"""A file of certificates in PEM that are trusted besides the usual ones."""

HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """All of it for one source; what is not given is empty."""

    token: str = field(default="", repr=False)
    hub: str = HUB
    ca_file: str = ""

    @classmethod
    def of(cls, source: Source, environment: Mapping[str, str]) -> Self:
        """Raises SourceError that names the variable; the value of a secret one is never shown."""
        hub = environment.get(HUB_ENDPOINT) or HUB
        if source.scheme == "hf" and not hub.startswith("https://"):
            raise SourceError(f"{HUB_ENDPOINT}: got {hub!r}, want an address that begins with https://")
        token = environment.get(token_variable(source), "").strip()  # without the line end that files and `echo` leave
        is_config = source.scheme == "oci" and token.startswith("{")  # of it only base64 goes into a header
        if not is_config and not (token.isascii() and token.isprintable()):
            wanted = "want one line of printable ASCII"
            raise SourceError(f"{token_variable(source)}: holds characters that no header may hold, {wanted}")
        return cls(token=token, hub=hub.rstrip("/"), ca_file=environment.get(CA_FILE, ""))


def token_variable(source: Source) -> str:
    """The variable that holds the token for a source."""
    return HUB_TOKEN if source.scheme == "hf" else TOKEN
