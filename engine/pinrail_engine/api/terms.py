"""Who asks, and on which terms: from headers and body to what the engine's queue looks at. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from pinrail_engine.core.types import Terms

from .errors import BadRequest
from .schema import Asked

_BEARER = re.compile(r"bearer +(\S.*)", re.IGNORECASE)
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_BY_PRIORITY = "priority"  # the policy that reads priorities


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a request says outside its body."""

    received: float | None = None  # seconds, monotonic: when it came
    client: str = ""  # of the bearer token, never the token itself
    traceparent: str = ""  # '' where there is none, or no valid one (https://www.w3.org/TR/trace-context/)


def caller(headers: Mapping[str, str], received: float) -> Caller:
    bearer = _BEARER.fullmatch(headers.get("authorization", ""))
    trace = headers.get("traceparent", "")
    return Caller(
        received=received,
        client=_pseudonym(bearer[1]) if bearer else "",
        traceparent=trace if _TRACEPARENT.fullmatch(trace) else "",
    )


def terms(asked: Asked, caller: Caller, policy: str) -> Terms:
    """Raises BadRequest for a priority that the engine's policy would not look at."""
    if asked.priority and policy != _BY_PRIORITY:
        said = (
            f"priority: got {asked.priority}, want 0 or nothing: this server's policy is {policy}, not {_BY_PRIORITY}"
        )
        raise BadRequest(said, param="priority")
    return Terms(
        priority=asked.priority or 0,
        deadline=asked.deadline,
        client=caller.client or (_pseudonym(asked.user) if asked.user else ""),
        cache_salt=asked.cache_salt or "",
        traceparent=caller.traceparent,
        received=caller.received,
    )


def _pseudonym(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()[:16]
