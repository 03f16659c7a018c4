"""What keeps a service from being brought to its spec: an ordered list of pure checks.

A blocked service never starts a pod. One that already serves goes on serving its old pin: nothing of it is touched.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

from pinrail_contract.launch import Verification
from pinrail_contract.pins import SOURCES

from . import names, vllm
from .engine_fields import EngineType, is_pinned
from .errors import SpecError
from .observed import Observed, Ref, is_owned_by
from .types import InferenceService


class Blocked(StrEnum):
    """Why; the reason of the conditions Stalled and Ready."""

    MANIFEST_MISSING = "ManifestMissing"
    MANIFEST_INVALID = "ManifestInvalid"
    DIGEST_MISMATCH = "DigestMismatch"
    SOURCE_UNSUPPORTED = "SourceUnsupported"
    CACHE_NOT_ALLOWED = "CacheNotAllowed"
    IMAGE_MISSING = "EngineImageMissing"
    IMAGE_NOT_PINNED = "EngineImageNotPinned"
    NAME_TAKEN = "NameTaken"
    REFUSED = "Refused"
    INVALID_SPEC = "InvalidSpec"


MODEL_REASONS = frozenset({Blocked.MANIFEST_MISSING, Blocked.MANIFEST_INVALID, Blocked.DIGEST_MISMATCH})
"""Those that say that the model is not the one that was pinned."""


@dataclass(frozen=True, slots=True)
class Blocker:
    reason: Blocked
    message: str  # what was seen, and the next step


@dataclass(frozen=True, slots=True)
class _Case:
    service: InferenceService
    observed: Observed
    image: str
    host_caches: Collection[str] | None


def first_blocker(
    service: InferenceService, observed: Observed, image: str, host_caches: Collection[str] | None = None
) -> Blocker | None:
    """The first check that fails, or None.

    | check                                             | reason              |
    |---------------------------------------------------|---------------------|
    | the ModelManifest exists                          | ManifestMissing     |
    | it can be read                                    | ManifestInvalid     |
    | its digest is the pinned one                      | DigestMismatch      |
    | pods can reach its source                         | SourceUnsupported   |
    | its cache can hold the model                      | InvalidSpec         |
    | the operator allows its cache, on a node's disk   | CacheNotAllowed     |
    | the engine can do what the fields ask for         | InvalidSpec         |
    | an engine image is known                          | EngineImageMissing  |
    | the image is named by digest, where that is asked | EngineImageNotPinned |
    | so is ours, where it verifies for another engine  | the two above       |
    | nobody else has objects of our names              | NameTaken           |

    Args:
        service: What is asked for.
        observed: What there is.
        image: The engine's image: the service's own, or the operator's default; empty where neither is set.
        host_caches: Folders of nodes that may be caches; None where what the operator allows is not known.
    """
    case = _Case(service, observed, image, host_caches)
    for check in _CHECKS:
        blocker = check(case)
        if blocker is not None:
            return blocker
    return None


def _manifest_exists(case: _Case) -> Blocker | None:
    if case.observed.manifest is not None or case.observed.manifest_problem:
        return None
    name = case.service.model.manifest
    step = f"apply it: `pinrail pin FOLDER --name {name}` writes it"
    return Blocker(
        Blocked.MANIFEST_MISSING,
        f"ModelManifest {name} does not exist in namespace {case.service.key.namespace}; {step}",
    )


def _manifest_is_valid(case: _Case) -> Blocker | None:
    if not case.observed.manifest_problem:
        return None
    seen = f"ModelManifest {case.service.model.manifest} cannot be read: {case.observed.manifest_problem}"
    return Blocker(Blocked.MANIFEST_INVALID, f"{seen}; create another one with `pinrail pin`, and name it")


def _digest_is_pinned(case: _Case) -> Blocker | None:
    if case.observed.manifest is None or case.observed.manifest.digest == case.service.model.digest:
        return None
    seen = f"spec.model.digest: got {case.service.model.digest}, but ModelManifest {case.service.model.manifest} has"
    step = "set it to that if this is the model you mean, or name another manifest"
    return Blocker(Blocked.DIGEST_MISMATCH, f"{seen} {case.observed.manifest.digest}; {step}")


def _source_is_servable(case: _Case) -> Blocker | None:
    if case.observed.manifest is None or case.observed.manifest.source.scheme != "file":
        return None
    seen = f"ModelManifest {case.service.model.manifest}: spec.source.uri: got {case.observed.manifest.source.uri}"
    step = "pods cannot read this machine's files; pin the folder again with --source, the digest stays the same"
    return Blocker(Blocked.SOURCE_UNSUPPORTED, f"{seen}, want {SOURCES}; {step}")


def _cache_can_hold(case: _Case) -> Blocker | None:
    manifest = case.observed.manifest
    cache = case.service.model.cache_of(manifest.source) if manifest is not None else None
    problem = cache.problem(manifest) if cache is not None and manifest is not None else ""
    return Blocker(Blocked.INVALID_SPEC, f"{problem}; mend the field and apply again") if problem else None


def _cache_is_allowed(case: _Case) -> Blocker | None:
    manifest = case.observed.manifest
    cache = case.service.model.cache_of(manifest.source) if manifest is not None else None
    refusal = cache.refusal(case.host_caches) if cache is not None and case.host_caches is not None else ""
    return Blocker(Blocked.CACHE_NOT_ALLOWED, refusal) if refusal else None


def _image_is_known(case: _Case) -> Blocker | None:
    step = "set it, or give the operator a default with PINRAIL_ENGINE_IMAGE (engine.image in the chart)"
    return _missing("spec.engine.image", case.image, step)


def _image_is_pinned(case: _Case) -> Blocker | None:
    return _not_pinned(case, "engine image", case.image, "set spec.engine.image or the operator's default to one")


def _engine_is_able(case: _Case) -> Blocker | None:
    if case.service.engine.type is not EngineType.VLLM:
        return None
    try:
        vllm.require_suitable(case.service)
    except SpecError as e:
        return Blocker(Blocked.INVALID_SPEC, f"{e}; mend the field and apply again")
    return None


def _verifier_is_known(case: _Case) -> Blocker | None:
    """By the same rules as the engine: it says whether the files are those that were pinned."""
    if case.service.engine.type is not EngineType.VLLM:
        return None
    step = "set the operator's default to one with PINRAIL_ENGINE_IMAGE (engine.image in the chart)"
    what = "the operator's engine image, which verifies files while spec.engine.type is vllm"
    image = case.service.verifier
    return _missing(what, image, step) or _not_pinned(case, what, image, step)


def _missing(what: str, image: str, step: str) -> Blocker | None:
    if image:
        return None
    return Blocker(Blocked.IMAGE_MISSING, f"{what}: got none, want an image reference; {step}")


def _not_pinned(case: _Case, what: str, image: str, step: str) -> Blocker | None:
    if case.service.verification is not Verification.ENFORCE or is_pinned(image):
        return None
    wanted = "want a reference that ends in @sha256:<64 hex digits> while spec.verification.mode is Enforce"
    return Blocker(Blocked.IMAGE_NOT_PINNED, f"{what}: got {image}, {wanted}; {step}")


def _names_are_free(case: _Case) -> Blocker | None:
    others = [ref for ref in sorted(case.observed.live) if not is_ours(case.service, case.observed, ref)]
    taken = [str_of(ref) for ref in others if _is_named_by_us(case, ref)]
    if not taken:
        return None
    step = "delete or rename what is there, or give the service another name"
    return Blocker(Blocked.NAME_TAKEN, f"{', '.join(taken)} exists and belongs to something else; {step}")


def _is_named_by_us(case: _Case, ref: Ref) -> bool:
    """ConfigMaps are found by our label, which others may have copied; the rest is found by name.

    A NetworkPolicy of that name is in nobody's way where the service is to have none.
    """
    manifest = case.observed.manifest
    if ref.kind == "NetworkPolicy" and not case.service.network.enabled:
        return False
    return ref.kind != "ConfigMap" or (manifest is not None and ref.name == names.config_map(case.service, manifest))


def is_ours(service: InferenceService, observed: Observed, ref: Ref) -> bool:
    """Whether the live object of that name is owned by this very service."""
    return is_owned_by(observed.live[ref], service.uid)


def str_of(ref: Ref) -> str:
    return f"{ref.kind} {ref.name}"


_CHECKS: tuple[Callable[[_Case], Blocker | None], ...] = (
    _manifest_exists,
    _manifest_is_valid,
    _digest_is_pinned,
    _source_is_servable,
    _cache_can_hold,
    _cache_is_allowed,
    _engine_is_able,
    _image_is_known,
    _image_is_pinned,
    _verifier_is_known,
    _names_are_free,
)
