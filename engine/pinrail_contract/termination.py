"""What a container says when it ends: exit codes, and the message that the kubelet keeps for the operator.

The engine writes the message to the termination log; the operator reads it from the pod's status.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

PATH = "/dev/termination-log"
LIMIT = 4096  # bytes that the kubelet keeps


class ExitCode:
    OK = 0
    FAILED = 1
    USAGE = 2
    MODEL_MISMATCH = 64  # the files are not those of the manifest
    MANIFEST_MISMATCH = 65  # the manifest is not the one that was pinned
    ENGINE_MISMATCH = 66  # the engine, or what it computes in, is not what the manifest pins
    HUNG = 70  # work exists and no step was made


class Reason(StrEnum):
    VERIFIED = "Verified"  # the message is the digest
    MODEL_MISMATCH = "ModelMismatch"
    MANIFEST_MISMATCH = "ManifestMismatch"
    ENGINE_MISMATCH = "EngineMismatch"
    FETCH_FAILED = "FetchFailed"
    CACHE_FAILED = "CacheFailed"
    API_KEYS_MISSING = "ApiKeysMissing"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Termination:
    reason: Reason
    message: str

    def render(self) -> str:
        """At most LIMIT bytes; a longer message is cut."""
        room = LIMIT - 200
        message = self.message
        while len(json.dumps(message)) > room:
            message = message[: int(len(message) * 0.9)] + "…"
        return json.dumps({"reason": str(self.reason), "message": message})

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """None where the text is not one of ours, as when a container was killed."""
        try:
            value = json.loads(text or "")
            return cls(Reason(value["reason"]), str(value["message"]))
        except (ValueError, KeyError, TypeError):
            return None


def write(termination: Termination, path: str = PATH) -> None:
    """Leave the message where the kubelet looks for it; outside a pod there is no such file, and nothing to do."""
    try:
        with open(path, "r+", encoding="utf-8") as f:
            f.write(termination.render())
    except OSError:
        return
