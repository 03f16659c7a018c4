"""What the API server itself says was written, when, and by whom: its audit log."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Request", "resources": [{"group": "apps", "resources": ["deployments"]},
                                           {"group": "coordination.k8s.io", "resources": ["leases"]}]},
        {"level": "Metadata"},
    ],
}  # fmt: skip

_CREDENTIAL = "authentication.kubernetes.io/credential-id"


@dataclass(frozen=True, slots=True)
class Write:
    """One request that asked for a change."""

    at: float  # seconds since the epoch, when it came
    credential: str  # of which token; empty for a certificate
    verb: str  # create, update, patch or delete
    resource: str  # such as deployments or inferenceservices/status
    namespace: str
    name: str
    code: int
    manager: str  # field manager; empty where none was named
    body: Any  # of Deployments and Leases; else None

    @property
    def is_done(self) -> bool:
        return self.code < 300

    @classmethod
    def parse(cls, event: dict[str, Any]) -> "Write":
        ref, credentials = event.get("objectRef", {}), event["user"].get("extra", {})
        sub = ref.get("subresource")
        query = event["requestURI"].partition("?")[2]
        return cls(
            at=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
            credential=next((c for c in credentials.get(_CREDENTIAL, ()) if c.startswith("JTI=")), ""),
            verb=event["verb"],
            resource=ref.get("resource", "") + (f"/{sub}" if sub else ""),
            namespace=ref.get("namespace", ""),
            name=ref.get("name", ""),
            code=event.get("responseStatus", {}).get("code", 0),
            manager=next((w.partition("=")[2] for w in query.split("&") if w.startswith("fieldManager=")), ""),
            body=event.get("requestObject"),
        )


@dataclass(frozen=True, slots=True)
class Audit:
    """The log of one API server."""

    folder: Path

    def flags(self) -> Sequence[str]:
        """What the API server is told, so that it writes the log."""
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(POLICY))
        return (f"--audit-policy-file={policy}", f"--audit-log-path={self.folder / 'audit.log'}")

    def writes(self, namespace: str, since: float = 0.0) -> list[Write]:
        """Those of service accounts' tokens, in the order in which they came."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        found = [Write.parse(json.loads(line)) for line in lines if f'"{namespace}"' in line]
        ours = [w for w in found if w.namespace == namespace and w.at >= since and w.credential]
        return sorted(ours, key=lambda w: w.at)


def credential(token: str) -> str:
    """What the log calls a service account's token."""
    claims = token.split(".")[1]
    return "JTI=" + str(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["jti"])
