"""The operator's settings, each from one environment variable; this table is their reference."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from .errors import SpecError

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")  # in every pod that has a token
_URL = re.compile(r"(https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?)?")


def _setting(env: str, default: Any, least: float = 0.0) -> Any:
    """A field that is read from `env`; numbers below `least` are refused."""
    return field(default=default, metadata={"env": env, "least": least})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    engine_image: str = _setting("PINRAIL_ENGINE_IMAGE", "")
    """Image of services that name none; by digest, or services that enforce verification refuse it."""

    host_path_caches: str = _setting("PINRAIL_HOST_PATH_CACHES", "")
    """Comma-separated absolute paths: folders of nodes that services may name in spec.model.cache.hostPath."""

    namespaces: str = _setting("PINRAIL_NAMESPACES", "")
    """Comma-separated; empty watches all. RBAC has to match."""

    lease_namespace: str = _setting("PINRAIL_LEASE_NAMESPACE", "default")
    """Where the leader's Lease is kept; the chart sets the operator's own namespace."""

    api_server: str = _setting("KUBERNETES_SERVICE_HOST", "")
    """Set by Kubernetes in every pod; empty where the operator runs outside of any."""

    lease_name: str = _setting("PINRAIL_LEASE_NAME", "pinrail-operator")
    identity: str = _setting("PINRAIL_IDENTITY", "")
    """What this process calls itself in the Lease; empty takes the host's name, which is the pod's, and its pid."""

    tick: float = _setting("PINRAIL_TICK_SECONDS", 5.0, 0.1)
    """Seconds between two scaling decisions. Far below staleAfterSeconds, or each tick would miss the one before."""

    resync: float = _setting("PINRAIL_RESYNC_SECONDS", 300.0, 1.0)
    """Seconds between two looks at a service of which nothing was heard: what a lost watch event costs at most."""

    concurrency: int = _setting("PINRAIL_CONCURRENCY", 8, 1)
    """Services that are reconciled at once."""

    health_port: int = _setting("PINRAIL_HEALTH_PORT", 8080, 0)
    """Port of /livez, /readyz and /metrics; 0 listens nowhere."""

    prometheus_url: str = _setting("PINRAIL_PROMETHEUS_URL", "")
    """Where services whose spec.scaling.metrics.source is Prometheus have their loads from; empty: such are held."""

    prometheus_token_file: str = _setting("PINRAIL_PROMETHEUS_TOKEN_FILE", "")
    """Of the bearer token for it, which may change at any time; empty: none."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Raises SpecError that names the variable."""
        given: dict[str, Any] = {}
        for f in cls.__dataclass_fields__.values():
            name, text = f.metadata["env"], env.get(f.metadata["env"], "")
            if text:
                given[f.name] = _parse(name, text, type(f.default), f.metadata["least"])
        if not _URL.fullmatch(given.get("prometheus_url", "")):
            wanted = "want http(s)://HOST[:PORT][/PATH], without a user, a query or a fragment"
            raise SpecError("PINRAIL_PROMETHEUS_URL", f"got {_without_user(given['prometheus_url'])!r}, {wanted}")
        return cls(**given)

    @property
    def watched(self) -> tuple[str, ...]:
        """Namespaces; empty for all."""
        return _listed(self.namespaces)

    @property
    def allowed_host_caches(self) -> frozenset[str]:
        """Paths; empty: none."""
        return frozenset(_listed(self.host_path_caches))

    def own_namespace(self, told: Path = _NAMESPACE_FILE) -> str:
        """Of the operator's pods; empty where it runs in none, so that no NetworkPolicy can let it in by its labels.

        Where the file that Kubernetes tells it by cannot be read, it is taken to be the Lease's.
        """
        if not self.api_server:
            return ""
        try:
            return told.read_text(encoding="ascii").strip() or self.lease_namespace
        except (OSError, ValueError):
            return self.lease_namespace

    @property
    def lease_identity(self) -> str:
        return self.identity or f"{socket.gethostname()}-{os.getpid()}"


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _without_user(url: str) -> str:
    """What may be shown of an address: it may hold a password."""
    return re.sub(r"//[^/]*@", "//…@", url)


def _parse(name: str, text: str, kind: type, least: float) -> Any:
    if kind is str:
        return text
    try:
        value = kind(text)
    except ValueError:
        raise SpecError(name, f"got {text!r}, want a number") from None
    if not value >= least:
        raise SpecError(name, f"got {text!r}, want {least:g} or above")
    return value
