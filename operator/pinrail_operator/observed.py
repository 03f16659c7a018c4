"""What the cluster holds for one service, parsed once at the edge. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from pinrail_contract.launch import Verification
from pinrail_contract.metrics import FILES_DIFFER
from pinrail_contract.pins import ModelManifest
from pinrail_contract.termination import Reason, Termination

from . import names, network_policy

Body = Mapping[str, Any]

_DIGEST_FLAG, _SLOTS_FLAG, _VERIFICATION_FLAG = "--digest=", "--max-num-seqs=", "--verification="

OVERDUE = "ProgressDeadlineExceeded"
"""Reason of the Deployment's condition Progressing."""


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
    is_stamped: bool  # it was applied whole, and the scaler owns its replicas
    failure: str  # why the controller cannot make progress; empty where it can
    is_overdue: bool = False  # no progress during progressDeadlineSeconds
    mark: str = ""  # what was begun for a roll-out that found no node, as `rollout.Mark` writes it

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
            is_stamped=names.APPLIED in body["metadata"].get("annotations", {}),
            failure=_workload_failure(status.get("conditions", [])),
            is_overdue=any(c.get("reason") == OVERDUE for c in status.get("conditions", [])),
            mark=body["metadata"].get("annotations", {}).get(names.ROLLOUT, ""),
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
    created: datetime | None = None
    unschedulable_since: datetime | None = None
    deletion_cost: int = 0  # as Kubernetes reads the annotation
    uid: str = ""
    pin: str = ""  # the digest that its engine is told to serve; empty where it is told none
    verified: str = ""  # the digest that its init container found, FILES_DIFFER, or empty where none verifies
    slots: int = 0  # requests that its engine is told to run at once; 0 where it is not told
    is_fetching: bool = False  # the container that fetches its model runs
    tolerates: bool = False  # its engine is told to serve what differs
    mark: str = ""  # whether it may serve, where the Service selects by that
    is_quarantined: bool = False
    quarantine: str = ""  # what it reported, where it is
    is_protected: bool = False  # autoscalers of nodes are told to leave it where it is

    @classmethod
    def from_body(cls, body: Body) -> Self:
        metadata, status = body["metadata"], body.get("status", {})
        labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        scheduled = conditions.get("PodScheduled", {})
        return cls(
            name=metadata["name"],
            ip=status.get("podIP", ""),
            revision=labels.get(names.REVISION, ""),
            is_ready=conditions.get("Ready", {}).get("status") == "True",
            is_ending="deletionTimestamp" in metadata or status.get("phase") in ("Succeeded", "Failed"),
            unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
            faults=tuple(_faults(status)),
            created=_moment(metadata.get("creationTimestamp")),
            unschedulable_since=_moment(scheduled.get("lastTransitionTime") or metadata.get("creationTimestamp")),
            deletion_cost=_cost(annotations.get(names.DELETION_COST, "0")),
            uid=metadata.get("uid", ""),
            pin=_told(body, _DIGEST_FLAG),
            verified=_verified(status),
            slots=int(told) if (told := _told(body, _SLOTS_FLAG)).isdecimal() else 0,
            is_fetching=_is_fetching(status),
            tolerates=_told(body, _VERIFICATION_FLAG) == Verification.WARN,
            mark=labels.get(names.SERVING, ""),
            is_quarantined=labels.get(names.SERVICE, "").endswith(names.QUARANTINED),
            quarantine=annotations.get(names.QUARANTINE, ""),
            is_protected=names.STARTING in annotations,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything that a reconcile decides from, but the service itself."""

    manifest: ModelManifest | None
    manifest_problem: str  # why `manifest` is None, where one of that name exists
    live: Mapping[Ref, Body]  # our objects' names, and whatever carries them
    pods: tuple[Pod, ...]  # not those that are ending
    ending: int = 0  # pods that are
    history: tuple[Body, ...] = ()  # ControllerRevisions that bear the service's label
    quarantined: tuple[Pod, ...] = ()  # not among `pods`: no ReplicaSet counts them
    templates: Mapping[str, Body] = field(default_factory=dict)  # revision -> its pods; read where they may be needed

    @property
    def workload(self) -> Workload | None:
        found = [body for ref, body in self.live.items() if ref.kind == "Deployment"]
        return Workload.from_body(found[0]) if found else None

    @property
    def operator_namespace(self) -> str:
        """Where the operator runs that the live NetworkPolicy lets in; empty where there is none."""
        policies = [body for ref, body in self.live.items() if ref.kind == "NetworkPolicy"]
        return network_policy.operator_namespace(policies[0]) if policies else ""

    @property
    def told_to_fetch(self) -> tuple[Mapping[str, str], ...]:
        """What containers that fetch are told in plain values: of the Deployment, and of older revisions with pods.

        Those in quarantine have fetched.
        """
        revisions = {p.revision for p in self.pods}
        templates = [o["spec"]["template"] for ref, o in self.live.items() if ref.kind == "Deployment"]
        templates += [t for revision, t in sorted(self.templates.items()) if revision in revisions]
        return tuple(variables for t in templates for variables in _told_to_fetch(t))

    @property
    def ready_pods(self) -> tuple[Pod, ...]:
        return tuple(p for p in self.pods if p.is_ready)


def is_owned_by(body: Body, uid: str) -> bool:
    """Whether an object names that owner."""
    return uid in [o["uid"] for o in body["metadata"].get("ownerReferences", [])]


def template_of(replica_set: Body) -> Body:
    """The pod template that a Deployment made a ReplicaSet from: without the label that its controller added."""
    template = replica_set["spec"]["template"]
    labels = {k: v for k, v in template["metadata"].get("labels", {}).items() if k != "pod-template-hash"}
    metadata = {k: v for k, v in template["metadata"].items() if k == "annotations"}
    return {**template, "metadata": {**metadata, "labels": labels}}


def templates_by_revision(replica_sets: list[Body]) -> dict[str, Body]:
    """The newest ReplicaSet's pod template of each revision."""
    found: dict[str, Body] = {}
    for replica_set in sorted(replica_sets, key=_number):
        template = template_of(replica_set)
        found[template["metadata"]["labels"].get(names.REVISION, "")] = template
    return found


def _number(replica_set: Body) -> int:
    """The Deployment's own count of its ReplicaSets."""
    text = str(replica_set["metadata"].get("annotations", {}).get("deployment.kubernetes.io/revision", ""))
    return int(text) if text.isdecimal() else 0


def _told(body: Body, flag: str) -> str:
    """What a container was told by a flag, or nothing: nobody can change that of a pod that runs."""
    spec = body.get("spec", {})
    words = [w for c in (*spec.get("initContainers", []), *spec.get("containers", [])) for w in c.get("args", [])]
    found = [w.removeprefix(flag) for w in words if w.startswith(flag)]
    return found[-1] if found else ""


def _told_to_fetch(template: Body) -> list[dict[str, str]]:
    """Of the container that fetches; empty where there is none."""
    found = [c for c in template["spec"].get("initContainers", []) if c["name"] == names.FETCH]
    return [{v["name"]: v["value"] for v in c.get("env", []) if "value" in v} for c in found]


def _verified(status: Body) -> str:
    for container in status.get("initContainerStatuses", []):
        ended = container.get("state", {}).get("terminated") or {}
        said = Termination.parse(ended.get("message")) if ended.get("exitCode") == 0 else None
        if container["name"] == names.VERIFY and said is not None:
            return said.message if said.reason is Reason.VERIFIED else FILES_DIFFER
    return ""


def _is_fetching(status: Body) -> bool:
    found = [c for c in status.get("initContainerStatuses", []) if c["name"] == names.FETCH]
    return any("running" in c.get("state", {}) for c in found)


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _cost(text: str) -> int:
    """Zero for what is no number, as Kubernetes has it."""
    try:
        return int(text)
    except ValueError:
        return 0


def _workload_failure(conditions: list[Body]) -> str:
    for condition in conditions:
        kind, status, reason = condition["type"], condition["status"], condition.get("reason", "")
        if (kind, status) == ("ReplicaFailure", "True") or reason == OVERDUE:
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
