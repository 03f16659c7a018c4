"""How a GET of an object store is signed: AWS Signature Version 4, in headers. Pure.

Source: "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)" of the Amazon S3 API
reference, whose examples are the tests.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

_NO_BODY = hashlib.sha256().hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Who asks, and where; nobody where the key is empty."""

    key: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    session: str = field(default="", repr=False)  # of temporary keys
    region: str = "us-east-1"


def signed(host: str, path: str, keys: Keys, now: datetime, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers of a GET.

    Args:
        host: With its port, where that is not 443.
        path: In per cent encoding, from its first slash on; there is no query.
        keys: Nobody's give no headers but `extra`: a public bucket takes them.
        now: The store refuses what is signed more than 15 minutes from its own time.
        extra: Further headers to sign.
    """
    if not keys.key:
        return dict(extra or {})
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    own = {
        "x-amz-content-sha256": _NO_BODY,
        "x-amz-date": stamp,
        **({"x-amz-security-token": keys.session} if keys.session else {}),
    }
    sent = {**(extra or {}), **own}
    lines = {"host": host, **{name.lower(): value.strip() for name, value in sent.items()}}
    names = ";".join(sorted(lines))
    headers = "".join(f"{name}:{lines[name]}\n" for name in sorted(lines))
    request = "\n".join(("GET", path, "", headers, names, _NO_BODY))
    scope = f"{stamp[:8]}/{keys.region}/s3/aws4_request"
    text = "\n".join((_ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    signature = hmac.new(_signing_key(keys.secret, scope), text.encode(), hashlib.sha256).hexdigest()
    authorization = f"{_ALGORITHM} Credential={keys.key}/{scope},SignedHeaders={names},Signature={signature}"
    return {**sent, "Authorization": authorization}


def _signing_key(secret: str, scope: str) -> bytes:
    """Good for one day, region and service."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
