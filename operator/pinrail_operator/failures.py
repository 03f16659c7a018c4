"""Why pods do not come up, in words with a next step. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pinrail_contract.termination import Reason

from .observed import Fault, Pod

MISMATCHES = (str(Reason.MODEL_MISMATCH), str(Reason.MANIFEST_MISMATCH), str(Reason.ENGINE_MISMATCH))

_STEPS = {
    Reason.MODEL_MISMATCH: "repair the source (`pinrail verify MANIFEST DIR` names every file), or pin what is there",
    Reason.MANIFEST_MISMATCH: "name the digest of the manifest that you mean in spec.model.digest",
    Reason.ENGINE_MISMATCH: "set image, backend, dtype and quantization of spec.engine to what the manifest pins, and "
    "spec.nodeSelector where it pins instructions; or pin what runs (`pinrail pin --engine-version …`)",
    Reason.API_KEYS_MISSING: "put a key into the Secret that spec.security.apiKeySecretRef names",
    Reason.VERIFIED: "see the container's log",
    Reason.FETCH_FAILED: "check that pods can reach the source, that it holds every file of the manifest, and that "
    "tokenSecretRef, credentialsSecretRef and caConfigMapRef of spec.model open it where it is private",
    Reason.CACHE_FAILED: "where it is full, raise spec.model.cache.maxSize or stop a service that uses the cache; "
    "quarantined pods keep their models in it until they are deleted (`kubectl get pods -l "
    "pinrail.dev/service=NAME.quarantine`); where it cannot be written, give its folder to user 65532",
    Reason.FAILED: "see the container's log",
}
_IMAGE_STEP = "check spec.engine.image and spec.imagePullSecrets"
_KUBELET_STEPS = {
    **dict.fromkeys(("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"), _IMAGE_STEP),
    "CreateContainerConfigError": "create the Secret or ConfigMap with that key, or name another one in spec.model or "
    "spec.engine.env: the pod goes on by itself",
}


@dataclass(frozen=True, slots=True)
class Failure:
    reason: str  # ModelMismatch and the like where the container said it, else the kubelet's
    message: str
    is_mismatch: bool  # model, manifest or engine is not the pinned one
    can_pass: bool  # waiting may help: the pod has no node yet
    since: datetime | None = None  # when the pod was made, or its scheduler first found no node


def first_failure(pods: Sequence[Pod]) -> Failure | None:
    """The gravest failure among pods that are not ready: a wrong model first, a pod without a node last."""
    found = [_of_fault(pod, fault) for pod in pods if not pod.is_ready for fault in pod.faults]
    found += [_unschedulable(pod) for pod in pods if pod.unschedulable]
    return min(found, key=lambda f: (not f.is_mismatch, f.can_pass, f.message), default=None)


def _of_fault(pod: Pod, fault: Fault) -> Failure:
    said, where = fault.termination, f"pod {pod.name}, container {fault.container}"
    if said is not None:
        message = f"{where}: {said.message}; next: {_STEPS[said.reason]}"
        return Failure(str(said.reason), message, str(said.reason) in MISMATCHES, False, pod.created)
    step = _KUBELET_STEPS.get(fault.reason, "see its log")
    return Failure(fault.reason, f"{where}: {fault.reason}: {fault.message}; next: {step}", False, False, pod.created)


def _unschedulable(pod: Pod) -> Failure:
    step = (
        "free or add a node, or change spec.resources, spec.resourceClaims, spec.nodeSelector, spec.affinity or "
        "spec.tolerations"
    )
    message = f"pod {pod.name}: {pod.unschedulable}; next: {step}"
    return Failure("Unschedulable", message, False, True, pod.unschedulable_since)
