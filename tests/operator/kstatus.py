"""kstatus' rules for custom resources: what Flux, kpt and `cli-utils` make of an object.

Source: sigs.k8s.io/cli-utils/pkg/kstatus/status, `checkGenericProperties` and `checkReadyCondition`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    IN_PROGRESS = "InProgress"
    FAILED = "Failed"
    CURRENT = "Current"
    TERMINATING = "Terminating"


def verdict(body: Mapping[str, Any]) -> Verdict:
    """The first row that holds.

    | seen                                              | verdict     |
    |---------------------------------------------------|-------------|
    | metadata.deletionTimestamp                        | Terminating |
    | status.observedGeneration, and of another one     | InProgress  |
    | the first of Reconciling and Stalled that is True | InProgress, Failed |
    | Ready is there, and not True                      | InProgress  |
    | anything else, no status at all among it          | Current     |
    """
    metadata, status = body["metadata"], body.get("status", {})
    if metadata.get("deletionTimestamp"):
        return Verdict.TERMINATING
    generation, observed = metadata.get("generation"), status.get("observedGeneration")
    if generation is not None and observed is not None and observed != generation:
        return Verdict.IN_PROGRESS
    conditions = [(c["type"], c["status"]) for c in status.get("conditions", [])]
    for condition in conditions:
        if condition == ("Reconciling", "True"):
            return Verdict.IN_PROGRESS
        if condition == ("Stalled", "True"):
            return Verdict.FAILED
    is_ready = [value == "True" for kind, value in conditions if kind == "Ready"]
    return Verdict.CURRENT if all(is_ready[:1]) else Verdict.IN_PROGRESS
