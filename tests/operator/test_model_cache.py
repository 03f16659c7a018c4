"""A cache reaches the pods of fetched models alone, keeps them restricted, and is refused where it cannot work."""

from dataclasses import replace
from typing import Any

import pytest
from operator_builders import IMAGE, cached, faulty, live_objects, manifest, observed, service, target
from test_pod_security import violations

from pinrail_contract.model_cache import ModelCache as CacheFolder
from pinrail_contract.runtime import Runtime
from pinrail_contract.termination import Reason, Termination
from pinrail_operator import names, pods
from pinrail_operator.checks import Blocked, first_blocker
from pinrail_operator.failures import first_failure
from pinrail_operator.model_cache import folder
from pinrail_operator.observed import Fault, Pod
from pinrail_operator.plan import Plan, plan_for
from pinrail_operator.types import InferenceService

WEB = manifest("https://models.test/tiny/")
HOST = {"hostPath": {"path": "/var/cache/pinrail"}}
VLLM = {"type": "vllm", "image": "registry.test/vllm@sha256:" + "c" * 64}


def spec_of(asked: InferenceService) -> dict[str, Any]:
    """Of its pods."""
    return dict(pods.template(asked, WEB, IMAGE)["spec"])


@pytest.mark.parametrize("engine", [{}, VLLM], ids=["ours", "vllm"])
def test_the_model_is_held_from_before_the_fetch_until_after_the_engine(engine: dict[str, Any]) -> None:
    """An init container that is always started again is a sidecar: the kubelet ends it last."""
    hold, fetch, *verify = spec_of(cached(engine=engine).verified_by(IMAGE))["initContainers"]
    assert (hold["name"], hold["restartPolicy"], hold["args"][0]) == ("hold", "Always", "hold")
    assert (fetch["name"], [v["name"] for v in verify]) == ("fetch", ["verify"] if engine else [])
    assert "restartPolicy" not in fetch
    holder = hold["args"][hold["args"].index("--holder") + 1]
    assert fetch["args"][fetch["args"].index("--holder") + 1] == holder
    assert {"name": "tmp", "mountPath": "/tmp"} in hold["volumeMounts"]
    assert holder.startswith("/tmp/"), "of the pod, not of the cache"


@pytest.mark.parametrize("engine", [{}, VLLM], ids=["ours", "vllm"])
def test_whoever_reads_the_model_sees_its_folder_alone_and_cannot_write(engine: dict[str, Any]) -> None:
    spec = spec_of(cached(engine=engine).verified_by(IMAGE))
    _, _, *verify = spec["initContainers"]
    mounts = [m for c in (*verify, *spec["containers"]) for m in c["volumeMounts"] if m["name"] == "model"]
    assert len(mounts) == 1 + len(verify)
    for mount in mounts:
        assert mount == {"name": "model", "mountPath": "/models", "readOnly": True, "subPath": folder(WEB)}


def test_the_engine_looks_where_the_fetch_has_put_it(tmp_path: Any) -> None:
    assert CacheFolder(tmp_path).folder(WEB.files_digest) == tmp_path / folder(WEB)


def test_a_newly_pinned_engine_version_is_mounted_from_the_folder_of_the_same_files() -> None:
    assert folder(replace(WEB, runtime=Runtime(engine_version="0.9.0"))) == folder(WEB)


def test_a_cache_takes_the_place_of_the_pods_own_volume() -> None:
    (volume,) = [v for v in spec_of(cached())["volumes"] if v["name"] == "model"]
    assert volume == {"name": "model", "persistentVolumeClaim": {"claimName": "models-cache"}}
    (volume,) = [v for v in spec_of(cached(HOST))["volumes"] if v["name"] == "model"]
    assert volume == {"name": "model", "hostPath": {"path": "/var/cache/pinrail", "type": "DirectoryOrCreate"}}


def test_a_pod_with_a_claim_is_restricted_and_one_with_a_folder_of_the_node_is_not() -> None:
    assert violations(pods.template(cached(), WEB, IMAGE)) == []
    assert violations(pods.template(cached(HOST), WEB, IMAGE)) == ["volume model"]


def test_the_sidecar_leaves_a_pods_class_of_service_as_it_is() -> None:
    """Guaranteed is a pod whose containers all have limits, and requests that are equal to them."""
    resources = {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}}
    spec = spec_of(cached(resources=resources))
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["resources"]["limits"].keys() == {"cpu", "memory"}


def test_a_mounted_source_makes_no_use_of_a_cache() -> None:
    assert pods.template(cached(HOST), manifest(), IMAGE) == pods.template(service(), manifest(), IMAGE)
    assert first_blocker(cached(HOST, size="16Mi"), observed(), IMAGE, ()) is None


@pytest.mark.parametrize(
    "other",
    [service(), cached(size="1Gi"), cached(HOST), cached({"persistentVolumeClaim": {"claimName": "b"}})],
    ids=str,
)
def test_pods_roll_when_their_cache_changes(other: InferenceService) -> None:
    assert target(other, WEB) != target(cached(), WEB)
    assert target(other) == target(cached()), "with a mounted source nothing of it reaches a pod"


def test_a_service_with_a_cache_settles() -> None:
    live = live_objects(cached(), pinned=WEB)
    assert plan_for(cached(), observed(live, manifest=WEB), None, IMAGE, None) == Plan()


def test_a_model_larger_than_its_cache_starts_no_pod() -> None:
    blocker = first_blocker(cached(size="100Mi"), observed(manifest=WEB), IMAGE, ())
    assert blocker is not None
    assert blocker.reason is Blocked.INVALID_SPEC
    wanted = f"want {WEB.total_size} or above, which the files of the manifest take; mend the field and apply again"
    assert blocker.message == f"spec.model.cache.maxSize: got {100 * 2**20} bytes, {wanted}"


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        pytest.param((), "want none: this operator allows none", id="none"),
        pytest.param(("/b", "/a"), "want one of /a, /b", id="others"),
        pytest.param(("/var/cache", "/var/cache/pinrail/x"), "want one of /var/cache, ", id="above and below it"),
    ],
)
def test_a_nodes_folder_is_taken_where_the_operator_names_it_alone(allowed: tuple[str, ...], words: str) -> None:
    blocker = first_blocker(cached(HOST), observed(manifest=WEB), IMAGE, allowed)
    assert blocker is not None
    assert blocker.reason is Blocked.CACHE_NOT_ALLOWED
    assert blocker.message.startswith(f"spec.model.cache.hostPath.path: got /var/cache/pinrail, {words}")
    assert "; name a claim in persistentVolumeClaim, or have the folder added to engine.hostPath" in blocker.message
    assert first_blocker(cached(HOST), observed(manifest=WEB), IMAGE, (*allowed, "/var/cache/pinrail")) is None
    assert first_blocker(cached(), observed(manifest=WEB), IMAGE, allowed) is None


def test_a_full_cache_is_told_with_what_to_do() -> None:
    said = Termination(Reason.CACHE_FAILED, "the cache has no room for x")
    failure = first_failure([faulty(Fault("fetch", "Error", "exit code 1", said))])
    assert failure is not None
    assert (failure.reason, failure.is_mismatch) == ("CacheFailed", False)
    assert failure.message.startswith(
        "pod chat-1, container fetch: the cache has no room for x; next: where it is full,"
    )


def test_a_full_cache_says_which_pods_keep_a_model_that_serves_nobody() -> None:
    failure = first_failure([faulty(Fault("fetch", "Error", "exit code 1", Termination(Reason.CACHE_FAILED, "x")))])
    assert failure is not None
    assert f"`kubectl get pods -l {names.SERVICE}=NAME{names.QUARANTINED}`" in failure.message


def test_a_sidecar_that_runs_is_no_fault() -> None:
    """Even after it was started again; it is an init container that has not ended."""
    running = {"name": "hold", "ready": True, "started": True, "state": {"running": {}},
               "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}  # fmt: skip
    body = {"metadata": {"name": "chat-1"}, "status": {"initContainerStatuses": [running]}}
    assert Pod.from_body(body).faults == ()
