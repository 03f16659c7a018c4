"""What the cluster holds for one service, parsed once at the edge. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pinrail_contract.pins import ModelManifest
from pinrail_contract.termination import Termination

from . import names

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One object of ours in the service's namespace."""

    kind: str
    name: str

    @classmethod
    def of(cls, body: Body) -> Self:
        return cls(body["kind"], body["metadata"]["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The Deployment."""

    replicas: int  # asked for
    revision: str  # of its pod template
    is_current: bool  # its controller has seen the newest spec
    total: int  # pods of all revisions
    updated: int  # pods of the newest revision
    config_maps: frozenset[str]  # names that its pods mount
    failure: str  # why the controller cannot make progress; empty where it can

    @classmethod
    def from_body(cls, body: Body) -> Self:
        spec, status = body["spec"], body.get("status", {})
        return cls(
            replicas=spec.get("replicas", 1),
            revision=spec["template"]["metadata"].get("labels", {}).get(names.REVISION, ""),
            is_current=status.get("observedGeneration", 0) >= body["metadata"].get("generation", 0),
            total=status.get("replicas", 0),
            updated=status.get("updatedReplicas", 0),
            config_maps=frozenset(
                v["configMap"]["name"] for v in spec["template"]["spec"].get("volumes", []) if "configMap" in v
            ),
            failure=_workload_failure(status.get("conditions", [])),
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a container of a pod does not run."""

    container: str
    reason: str  # the kubelet's, such as ImagePullBackOff; empty where `termination` says it
    message: str
    termination: Termination | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    name: str
    ip: str  # empty until it has one
    revision: str
    is_ready: bool
    is_ending: bool
    unschedulable: str  # the scheduler's words; empty where it has found a node
    faults: tuple[Fault, ...]

    @classmethod
    def from_body(cls, body: Body) -> Self:
        metadata, status = body["metadata"], body.get("status", {})
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        scheduled = conditions.get("PodScheduled", {})
        return cls(
            name=metadata["name"],
            ip=status.get("podIP", ""),
            revision=metadata.get("labels", {}).get(names.REVISION, ""),
            is_ready=conditions.get("Ready", {}).get("status") == "True",
            is_ending="deletionTimestamp" in metadata or status.get("phase") in ("Succeeded", "Failed"),
            unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
            faults=tuple(_faults(status)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything that a reconcile decides from, but the service itself."""

    manifest: ModelManifest | None
    manifest_problem: str  # why `manifest` is None, where one of that name exists
    live: Mapping[Ref, Body]  # our objects' names, and whatever carries them
    pods: tuple[Pod, ...]  # not those that are ending

    @property
    def workload(self) -> Workload | None:
        found = [body for ref, body in self.live.items() if ref.kind == "Deployment"]
        return Workload.from_body(found[0]) if found else None

    @property
    def ready_pods(self) -> tuple[Pod, ...]:
        return tuple(p for p in self.pods if p.is_ready)


def _workload_failure(conditions: list[Body]) -> str:
    for condition in conditions:
        kind, status, reason = condition["type"], condition["status"], condition.get("reason", "")
        if (kind, status) == ("ReplicaFailure", "True") or reason == "ProgressDeadlineExceeded":
            return f"{reason}: {condition.get('message', '')}"
    return ""


def _faults(status: Body) -> Iterator[Fault]:
    """One for each container that waits for a reason other than its turn, or has ended with an error."""
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        state, last = container.get("state", {}), container.get("lastState", {})
        if container.get("ready") and "running" in state:
            continue
        ended = state.get("terminated") or last.get("terminated") or {}
        waiting = state.get("waiting", {})
        if ended.get("exitCode", 0) != 0:
            said = Termination.parse(ended.get("message"))
            reason = ended.get("reason", "Error")
            yield Fault(container["name"], reason, f"exit code {ended['exitCode']}", said)
        elif waiting.get("reason", "") not in ("", "ContainerCreating", "PodInitializing"):
            yield Fault(container["name"], waiting["reason"], waiting.get("message", ""), None)
