"""Which image of ours verifies the files of an engine that does not verify them itself. Pure.

It is part of those pods' revision, so the one that they run with is kept for as long as nothing else of them changes:
a new operator, whose own engine image is a newer one, restarts none. What rolls for another reason takes the newer one.
"""

from . import names, pods
from .observed import Observed
from .types import InferenceService


def with_verifier(service: InferenceService, observed: Observed, default: str) -> InferenceService:
    """The service with the image that verifies for it: the running one, or `default` where that gives other pods."""
    kept = service.verified_by(running_verifier(observed))
    workload, manifest = observed.workload, observed.manifest
    if not kept.verifier or workload is None:
        return service.verified_by(default)
    is_same = manifest is None or pods.revision(kept, manifest, service.engine.image) == workload.revision
    return kept if is_same else service.verified_by(default or kept.verifier)


def running_verifier(observed: Observed) -> str:
    """The image that verifies files before the Deployment's engine starts; empty where none does."""
    deployments = [body for ref, body in observed.live.items() if ref.kind == "Deployment"]
    containers = [c for d in deployments for c in d["spec"]["template"]["spec"].get("initContainers", [])]
    return next((str(c["image"]) for c in containers if c["name"] == names.VERIFY), "")
