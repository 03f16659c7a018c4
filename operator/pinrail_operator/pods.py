"""The pod that runs one replica of the engine. Pure.

Restricted by Pod Security's rules, with a read-only root and no service-account token. Model files come from a claim
that is mounted read-only, or over the network through an init container, which alone is given what `spec.model` says
of reaching them, into a volume of the pod's own or a cache that pods share. The engine verifies them in any case; for
one that does not, an init container of ours does before it starts.
"""

import math
from collections.abc import Iterable
from typing import Any

from pinrail_contract import endpoints, termination
from pinrail_contract.pins import ModelManifest

from . import environment, model_cache, names, startup_protection, vllm
from .engine_fields import EngineType
from .model_cache import ModelCache
from .types import InferenceService

TEMPLATE_VERSION = 2
"""Part of every revision. Raise it whenever a pod is rendered differently from the same input: all services roll."""

MODEL_DIR = "/models"
MANIFEST_DIR = "/etc/pinrail"
MANIFEST_FILE = "manifest.json"
API_KEYS_DIR = "/etc/pinrail-api-keys"
ENGINE = "engine"

PRE_STOP = 10  # seconds between leaving the endpoints and SIGTERM, while proxies everywhere hear of it
STOP_MARGIN = 10  # seconds for the engine to leave after the last request
STARTUP_PERIOD = 5  # seconds
_LEAST_STARTUP = 3600  # seconds
_SLOWEST_SOURCE = 50e6  # bytes per second at which a model is still read, hashed and loaded in time
_USER = 65532  # "nonroot" of the distroless images
_SHARED_MEMORY = "2Gi"  # at most, of what the container may take
_SOURCE_MARGIN = 1.05  # room for the file system's own blocks


def revision(service: InferenceService, manifest: ModelManifest, image: str) -> str:
    """The hash of what the user asked for and the template's version; never of a rendered object.

    A new operator that renders the same version does not restart pods of an unchanged service.
    """
    pod, cache = service.pod, service.model.cache_of(manifest.source)
    return names.digest_of(
        {
            "template": TEMPLATE_VERSION,
            "image": image,
            "source": manifest.source.version,
            "engine": service.launch(model_dir="", manifest="").args(),
            "env": [v.identity() for v in service.engine.env],
            "resources": pod.resources,
            "nodeSelector": pod.node_selector,
            "tolerations": pod.tolerations,
            "affinity": pod.affinity,
            "priorityClassName": pod.priority_class_name,
            "runtimeClassName": pod.runtime_class_name,
            "imagePullSecrets": pod.image_pull_secrets,
            **_younger(service),
            **service.model.access.used_by(manifest.source).identity(),
            **(cache.identity() if cache is not None else {}),
        }
    )


def _younger(service: InferenceService) -> dict[str, Any]:
    """Fields that came after the first release: named in a revision only where they are used."""
    pod, parallel = service.pod, service.parallelism
    given = {
        "apiKeySecret": service.api_key_secret,
        "parallelism": (parallel.tensor, parallel.pipeline) if parallel.devices > 1 else (),
        "engineArgs": service.engine.args,
        "verifier": service.verifier,
        "topologySpreadConstraints": pod.topology_spread,
        "podLabels": pod.labels,
        "podAnnotations": pod.annotations,
        "resourceClaims": pod.resource_claims,
        "protectStartup": service.protects_startup,
    }
    return {key: value for key, value in given.items() if value}


def startup_seconds(manifest: ModelManifest) -> int:
    """How long a pod may take to load: an hour, and more for a model that is larger than 180 GB."""
    return max(_LEAST_STARTUP, math.ceil(manifest.total_size / _SLOWEST_SOURCE))


def template(service: InferenceService, manifest: ModelManifest, image: str) -> dict[str, Any]:
    """The Deployment's `spec.template`."""
    pod, ours = service.pod, {**names.labels(service), names.REVISION: revision(service, manifest, image)}
    marks = {**pod.annotations, **startup_protection.annotations(service)}
    annotations = {"annotations": marks} if marks else {}
    return {"metadata": {"labels": {**pod.labels, **ours}, **annotations}, "spec": _spec(service, manifest, image)}


def _spec(service: InferenceService, manifest: ModelManifest, image: str) -> dict[str, Any]:
    init = _init(service, manifest, image)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRE_STOP + service.drain_timeout + STOP_MARGIN,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"initContainers": init} if init else {}),
        "containers": [_engine(service, manifest, image)],
        "volumes": [
            _manifest_volume(service, manifest),
            _model_volume(service, manifest),
            {"name": "tmp", "emptyDir": {}},
            *_api_keys_volume(service),
            *_shared_memory(service),
            *service.model.access.used_by(manifest.source).volumes(),
        ],
        **_passed_through(service),
    }


def _init(service: InferenceService, manifest: ModelManifest, image: str) -> list[dict[str, Any]]:
    """What runs before the engine, of our own image in any case."""
    ours, cache = service.verifier or image, service.model.cache_of(manifest.source)
    fetch = [_fetch(service, manifest, ours)] if manifest.source.is_fetched else []
    fetch = [_hold(service, cache, ours), *fetch] if cache is not None else fetch
    return [*fetch, _verify(service, manifest)] if service.engine.type is EngineType.VLLM else fetch


def _engine(service: InferenceService, manifest: ModelManifest, image: str) -> dict[str, Any]:
    """Ready when it answers: ours says so itself, another by its health, which it has only once it has loaded."""
    is_ours = service.engine.type is EngineType.PINRAIL
    startup_tries = math.ceil(startup_seconds(manifest) / STARTUP_PERIOD)
    ready = endpoints.READY if is_ours else endpoints.HEALTH
    return {
        **(_container(ENGINE, service, image) if is_ours else _foreign(service, image)),
        "args": _serve(service) if is_ours else _vllm(service),
        "ports": [{"name": endpoints.PORT_NAME, "containerPort": endpoints.PORT, "protocol": "TCP"}],
        "volumeMounts": [
            _MANIFEST_MOUNT,
            _model_mount(service, manifest),
            _TMP_MOUNT,
            *([_API_KEYS_MOUNT] if service.api_key_secret else []),
            *({"name": v["name"], "mountPath": "/dev/shm"} for v in _shared_memory(service)),
        ],
        "startupProbe": _probe(ready, period=STARTUP_PERIOD, failures=startup_tries),
        "readinessProbe": _probe(ready, period=2, failures=2),
        "livenessProbe": _probe(endpoints.HEALTH, period=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP if is_ours else PRE_STOP + service.drain_timeout}}},
    }


def _serve(service: InferenceService) -> list[str]:
    keys = API_KEYS_DIR if service.api_key_secret else ""
    launch = service.launch(model_dir=MODEL_DIR, manifest=_MANIFEST_PATH, host="0.0.0.0", api_keys_dir=keys)
    return ["serve", *launch.args()]


def _vllm(service: InferenceService) -> list[str]:
    return vllm.command_line(service, model_dir=MODEL_DIR, host="0.0.0.0", port=endpoints.PORT)


def _foreign(service: InferenceService, image: str) -> dict[str, Any]:
    """The container of an engine that is not ours: with the entry point of its image."""
    container = _container(ENGINE, service, image)
    offline = [{"name": key, "value": value} for key, value in vllm.OFFLINE]
    given = {v.name for v in service.engine.env}
    env = [*(v for v in offline if v["name"] not in given), *container["env"]]
    return {**{key: value for key, value in container.items() if key != "command"}, "env": env}


def _verify(service: InferenceService, manifest: ModelManifest) -> dict[str, Any]:
    """Says by its termination message what it found, and lets the engine start on nothing else."""
    flags = [f"--digest={service.model.digest}", f"--verification={service.verification}"]
    return {
        **_container(names.VERIFY, service, service.verifier),
        "env": [{"name": "HOME", "value": "/tmp"}],
        "args": ["verify", *flags, _MANIFEST_PATH, MODEL_DIR],
        "volumeMounts": [_MANIFEST_MOUNT, _model_mount(service, manifest), _TMP_MOUNT],
    }


def _fetch(service: InferenceService, manifest: ModelManifest, image: str) -> dict[str, Any]:
    access, container = service.model.access.used_by(manifest.source), _container(names.FETCH, service, image)
    given, env = access.variables(manifest.source), _env(environment.of_fetch(service.engine.env))
    names_given = {v["name"] for v in given}  # they stand above those of spec.engine.env: a pod may have each but once
    cache = service.model.cache_of(manifest.source)
    return {
        **container,
        "env": [*(v for v in env if v["name"] not in names_given), *given],
        "args": ["fetch", "--manifest", _MANIFEST_PATH, *(cache.fetch_args() if cache else ["--output", MODEL_DIR])],
        "volumeMounts": [
            _MANIFEST_MOUNT,
            _CACHE_MOUNT if cache else {"name": "model", "mountPath": MODEL_DIR},
            _TMP_MOUNT,
            *access.mounts(),
        ],
    }


def _hold(service: InferenceService, cache: ModelCache, image: str) -> dict[str, Any]:
    """A sidecar, which starts before the fetch and ends after the engine: nothing is removed under a pod that lives."""
    return {
        **_container(model_cache.HOLD, service, image),
        "resources": model_cache.HOLD_RESOURCES,
        "env": [{"name": "HOME", "value": "/tmp"}],
        "args": ["hold", "--manifest", _MANIFEST_PATH, *cache.hold_args()],
        "restartPolicy": "Always",
        "volumeMounts": [_MANIFEST_MOUNT, _CACHE_MOUNT, _TMP_MOUNT],
    }


def _container(name: str, service: InferenceService, image: str) -> dict[str, Any]:
    """What all share. Equal resources cost nothing: a pod needs the larger of them. Devices are the engine's."""
    of_init = {key: value for key, value in service.pod.resources.items() if key != "claims"}
    return {
        "name": name,
        "image": image,
        "command": ["pinrail"],
        "resources": dict(service.pod.resources) if name == ENGINE else of_init,
        "env": _env(service.engine.env),
        "terminationMessagePath": termination.PATH,
        "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _env(variables: Iterable[environment.Variable]) -> list[dict[str, Any]]:
    return [{"name": "HOME", "value": "/tmp"}, *(v.to_json() for v in variables)]


_MANIFEST_PATH = f"{MANIFEST_DIR}/{MANIFEST_FILE}"
_API_KEYS_MOUNT = {"name": "api-keys", "mountPath": API_KEYS_DIR, "readOnly": True}
_MANIFEST_MOUNT = {"name": "manifest", "mountPath": MANIFEST_DIR, "readOnly": True}
_CACHE_MOUNT = {"name": "model", "mountPath": model_cache.DIR}
_TMP_MOUNT = {"name": "tmp", "mountPath": "/tmp"}


def _manifest_volume(service: InferenceService, manifest: ModelManifest) -> dict[str, Any]:
    return {"name": "manifest", "configMap": {"name": names.config_map(service, manifest)}}


def _api_keys_volume(service: InferenceService) -> list[dict[str, Any]]:
    """Mounted even where the Secret is missing: the engine then refuses to start and says why; a kubelet only waits."""
    secret = {"secretName": service.api_key_secret, "defaultMode": 0o440, "optional": True}
    return [{"name": "api-keys", "secret": secret}] if service.api_key_secret else []


def _shared_memory(service: InferenceService) -> list[dict[str, Any]]:
    """Processes of one replica hand one another tensors there; the 64 MiB that a container has are too little."""
    memory = {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}
    return [{"name": "shared-memory", "emptyDir": memory}] if service.parallelism.devices > 1 else []


def _model_volume(service: InferenceService, manifest: ModelManifest) -> dict[str, Any]:
    cache = service.model.cache_of(manifest.source)
    if cache is not None:
        return {"name": "model", **cache.volume()}
    if manifest.source.scheme == "pvc":
        claim = manifest.source.location.partition("/")[0]
        return {"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    return {"name": "model", "emptyDir": {"sizeLimit": f"{_mebibytes(manifest.total_size)}Mi"}}


def _model_mount(service: InferenceService, manifest: ModelManifest) -> dict[str, Any]:
    mount = {"name": "model", "mountPath": MODEL_DIR, "readOnly": True}
    folder = manifest.source.location.partition("/")[2].strip("/") if manifest.source.scheme == "pvc" else ""
    folder = model_cache.folder(manifest) if service.model.cache_of(manifest.source) else folder
    return {**mount, "subPath": folder} if folder else mount


def _mebibytes(size: int) -> int:
    return int(size * _SOURCE_MARGIN / 2**20) + 16


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": endpoints.PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _passed_through(service: InferenceService) -> dict[str, Any]:
    """What the user gave in Kubernetes' own form; what is empty is left out."""
    pod = service.pod
    given = {
        "nodeSelector": dict(pod.node_selector),
        "tolerations": list(pod.tolerations),
        "affinity": dict(pod.affinity),
        "topologySpreadConstraints": [{**_own_pods(service), **dict(c)} for c in pod.topology_spread],
        "priorityClassName": pod.priority_class_name,
        "runtimeClassName": pod.runtime_class_name,
        "imagePullSecrets": [{"name": name} for name in pod.image_pull_secrets],
        "resourceClaims": [dict(claim) for claim in pod.resource_claims],
    }
    return {key: value for key, value in given.items() if value}


def _own_pods(service: InferenceService) -> dict[str, Any]:
    """What a spread constraint without a selector counts; Kubernetes would count no pod at all."""
    return {"labelSelector": {"matchLabels": names.selector(service)}}
