"""Every refusal names the field, the value seen and the value wanted; what passes is parsed whole."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_builders import DIGEST, IMAGE, body, scaled, service

from pinrail_contract.launch import LaunchSpec
from pinrail_operator.errors import SpecError
from pinrail_operator.scaling_pace import Pace, Policy, PolicyType, SelectPolicy
from pinrail_operator.scaling_policy import MetricsSource, ScalingMode, ScalingPolicy
from pinrail_operator.types import InferenceService, ServiceKey

CRDS = Path(__file__).parents[2] / "crds"
KEY = {"name": "tracing", "key": "headers"}
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
MODEL = {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": DIGEST}
PVC, HOST = {"persistentVolumeClaim": {"claimName": "c"}}, {"hostPath": {"path": "/cache"}}


def test_an_absent_field_takes_its_default() -> None:
    parsed = service()
    assert parsed.key == ServiceKey("team", "chat")
    assert (parsed.replicas, parsed.limits.max_queued, parsed.limits.kv_cache_memory) == (2, 256, 512 * 2**20)
    assert (parsed.drain_timeout, parsed.min_available, parsed.paused) == (30, None, False)


def test_defaults_of_the_limits_are_those_of_the_engine_but_for_memory() -> None:
    """A pod that takes what is free would take what its neighbours on the node need: the cache's size is fixed."""
    bare = LaunchSpec(
        model_dir="/m", manifest="/x", digest=DIGEST, served_model_name="tiny", kv_cache_memory=512 * 2**20
    )
    assert service().launch(model_dir="/m", manifest="/x") == bare


def test_the_launch_holds_every_limit() -> None:
    asked = service(
        limits={"maxModelLen": 4096, "maxNumSeqs": 8, "maxNumBatchedTokens": 64, "maxQueued": 9, "blockSize": 32,
                "kvCacheMemory": "1Gi"},
        engine={"dtype": "float32"},
        verification={"mode": "Warn"},
        drain={"timeoutSeconds": 5},
    )  # fmt: skip
    assert asked.launch(model_dir="/m", manifest="/x", host="0.0.0.0", port=9).args() == [
        "--model-dir=/m", "--manifest=/x", f"--digest={DIGEST}", "--served-model-name=tiny", "--host=0.0.0.0",
        "--port=9", "--verification=Warn", "--dtype=float32", "--max-model-len=4096", "--max-num-seqs=8",
        "--max-num-batched-tokens=64", "--max-queued=9", "--block-size=32", "--kv-cache-memory=1073741824",
        "--drain-timeout=5",
    ]  # fmt: skip


NEWER = {
    "engine": {"backend": "native", "quantization": "int4", "prefixCache": False, "cacheEvents": True,
               "tracesEndpoint": "http://collector:4318/v1/traces"},
    "limits": {"kvCacheMemory": "auto", "maxQueuedTokens": 1000, "maxQueueWaitSeconds": 30},
    "scheduling": {"policy": "edf", "targetStepMilliseconds": 80, "stepsInFlight": 2},
}  # fmt: skip


def test_the_launch_holds_how_the_engine_computes_and_schedules() -> None:
    assert service(**NEWER).launch(model_dir="/m", manifest="/x").args()[4:] == [
        "--backend=native", "--quantization=int4", "--policy=edf", "--target-step-ms=80", "--steps-in-flight=2",
        "--max-queued-tokens=1000", "--max-queue-wait=30", "--prefix-cache=off", "--cache-events=on",
        "--otlp-traces-endpoint=http://collector:4318/v1/traces",
    ]  # fmt: skip


def test_every_engine_flag_can_be_asked_for() -> None:
    """What a service cannot say is the operator's own to say."""
    rest = {"limits": {**NEWER["limits"], "maxModelLen": 9, "maxNumSeqs": 9, "maxNumBatchedTokens": 9, "maxQueued": 9,
                       "blockSize": 8},
            "engine": {**NEWER["engine"], "dtype": "float32"}, "verification": {"mode": "Warn"},
            "drain": {"timeoutSeconds": 9}}  # fmt: skip
    asked = service(**{**NEWER, **rest}).launch(model_dir="/m", manifest="/x")
    flags = {f.name: f.default for f in dataclasses.fields(LaunchSpec)}
    default = {name for name, value in flags.items() if getattr(asked, name) == value}
    assert default == {"host", "port", "api_keys_dir", "kv_cache_memory"}, "kvCacheMemory: auto is the engine's own"


def test_the_rest_of_the_spec_is_kept_while_suspended() -> None:
    asked = scaled(2, 6)
    suspended = dataclasses.replace(asked, suspended=True)
    assert (suspended.least_replicas, suspended.scaling) == (0, None)
    assert suspended.replicas == asked.replicas


@pytest.mark.parametrize(("surge", "unavailable"), [(1, 0), (0, 1), ("0%", "100%"), ("25%", 0), (0, "9%")])
def test_zero_is_a_number_of_pods(surge: int | str, unavailable: int | str) -> None:
    asked = service(rollout={"maxSurge": surge, "maxUnavailable": unavailable}).rollout
    assert (asked.max_surge, asked.max_unavailable) == (surge, unavailable)


def test_scaling_is_read_whole() -> None:
    asked = scaled(
        2, 6, mode="Recommend", targets={"cacheUtilization": "0.9", "scaleDownUtilization": "0.5", "queueDepth": 7},
        behavior={"scaleUp": {"stabilizationWindowSeconds": 1, "selectPolicy": "Min", "tolerance": "0.1",
                              "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60},
                                           {"value": 4, "periodSeconds": 15}]},
                  "scaleDown": {"stabilizationWindowSeconds": 2, "selectPolicy": "Disabled"}},
        metrics={"staleAfterSeconds": 40, "source": "Prometheus"},
    )  # fmt: skip
    assert asked.scaling == ScalingPolicy(
        min_replicas=2, max_replicas=6, mode=ScalingMode.RECOMMEND, up_target=0.9, down_target=0.5, queue_depth=7,
        up=Pace(window=1, select=SelectPolicy.MIN, tolerance=0.1,
                policies=(Policy(PolicyType.PERCENT, 50, 60), Policy(PolicyType.PODS, 4, 15))),
        down=Pace(window=2, select=SelectPolicy.DISABLED), stale_after=40, source=MetricsSource.PROMETHEUS,
    )  # fmt: skip
    assert asked.least_replicas == 2


def scaling(up: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": None, "scaling": {"maxReplicas": 2, "behavior": {"scaleUp": up}}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"replicas": None}, "spec: got neither replicas nor scaling, want exactly one of them"),
        ({"scaling": {"maxReplicas": 2}}, "spec: got both replicas and scaling, want exactly one of them"),
        ({"replicas": -1}, "spec.replicas: got -1, want a whole number of 0 to 1000"),
        ({"replicas": True}, "spec.replicas: got True, want a whole number of 0 to 1000"),
        ({"model": None}, "spec.model.name: got nothing, want at most 128 letters"),
        ({"model": {**MODEL, "digest": "latest"}}, "spec.model.digest: got 'latest', want sha256: and 64 lower-case"),
        ({"model": {**MODEL, "digest": DIGEST.upper()}}, "want sha256: and 64 lower-case hex digits"),
        ({"model": {**MODEL, "uri": "x"}}, "spec.model.uri: is not a known field, want one of caConfigMapRef, cac"),
        ({"model": {**MODEL, "tokenSecretRef": {"name": "hub"}}}, "tokenSecretRef.key: got nothing, want a key"),
        ({"model": {**MODEL, "tokenSecretRef": {"name": "A", "key": "k"}}}, "tokenSecretRef.name: got 'A', want a res"),
        ({"model": {**MODEL, "caConfigMapRef": {"name": "ca", "key": "a/b"}}}, "caConfigMapRef.key: got 'a/b', want"),
        ({"model": {**MODEL, "credentialsSecretRef": {}}}, "spec.model.credentialsSecretRef.name: got nothing, want a"),
        ({"model": {**MODEL, "endpoint": "http://hub"}}, "spec.model.endpoint: got 'http://hub', want an address that"),
        ({"model": {**MODEL, "endpoint": "https://me:pw@hub"}}, "want an address that begins with https://"),
        ({"model": {**MODEL, "cache": {"maxSize": "1Gi"}}}, "spec.model.cache: got neither, want exactly one of pers"),
        ({"model": {**MODEL, "cache": {**PVC, **HOST, "maxSize": "1Gi"}}}, "spec.model.cache: got both, want exact"),
        ({"model": {**MODEL, "cache": PVC}}, "spec.model.cache.maxSize: got nothing, want 16Mi to 256Ti"),
        ({"model": {**MODEL, "cache": {**PVC, "maxSize": "15Mi"}}}, "maxSize: got '15Mi', want 16Mi to 256Ti"),
        ({"model": {**MODEL, "cache": {**PVC, "maxSize": "257Ti"}}}, "maxSize: got '257Ti', want 16Mi to 256Ti"),
        ({"model": {**MODEL, "cache": {"persistentVolumeClaim": {}, "maxSize": "1Gi"}}}, "claimName: got nothing, wa"),
        *(
            ({"model": {**MODEL, "cache": {"hostPath": {"path": path}, "maxSize": "1Gi"}}},
             f"spec.model.cache.hostPath.path: got '{path}', want an absolute path of at most 255")
            for path in ("cache", "/", "/a/../etc", "/..", "/a/.", "/a//b", "/a/", "/a b")
        ),
        ({"model": {**MODEL, "cache": {"hostPath": {"path": "/" + "x" * 255}, "maxSize": "1Gi"}}}, "of at most 255 le"),
        ({"model": {**MODEL, "manifestRef": "x"}}, "spec.model.manifestRef: got 'x', want an object"),
        ({"verification": {"mode": "Off"}}, "spec.verification.mode: got 'Off', want one of Enforce, Warn"),
        (scaling({"policies": [{"value": 0, "periodSeconds": 1}]}), "policies[0].value: got 0, want a whole"),
        (scaling({"policies": [{"value": 1}]}), "policies[0].periodSeconds: got nothing, want a whole"),
        (scaling({"policies": [{"type": "Pod", "value": 1, "periodSeconds": 1}]}), "got 'Pod', want one of Pods"),
        (scaling({"selectPolicy": "All"}), "behavior.scaleUp.selectPolicy: got 'All', want one of Max, Min, Disabled"),
        (scaling({"tolerance": "1"}), "behavior.scaleUp.tolerance: got '1', want a decimal string of 0 to below 1"),
        ({"engine": {"type": "sglang"}}, "spec.engine.type: got 'sglang', want one of pinrail, vllm"),
        ({"engine": {"image": "engine:latest"}}, "spec.engine.image: got 'engine:latest', want a reference that ends"),
        ({"engine": {"env": [{"name": "LD_PRELOAD", "value": "x"}]}}, "spec.engine.env[0].name: got 'LD_PRELOAD'"),
        ({"engine": {"env": [{"name": "A"}]}}, "spec.engine.env[0]: got neither value nor valueFrom for A, want"),
        ({"engine": {"env": [{"name": "A", "value": ""}] * 2}}, "spec.engine.env[1].name: got 'A' for the second time"),
        ({"engine": {"env": [{"name": "A", "value": 1}]}}, "spec.engine.env[0].value: got 1, want at most 4096"),
        ({"engine": {"env": [{"name": "A", "value": "", "valueFrom": {"secretKeyRef": KEY}}]}}, "got both value and"),
        ({"engine": {"env": [{"name": "A", "valueFrom": {}}]}},
         "spec.engine.env[0].valueFrom: got nothing, want exactly one of secretKeyRef, configMapKeyRef"),
        ({"engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": KEY, "configMapKeyRef": KEY}}]}},
         "spec.engine.env[0].valueFrom: got secretKeyRef and configMapKeyRef, want exactly one of"),
        ({"engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]}},
         "spec.engine.env[0].valueFrom.secretKeyRef.key: got nothing, want a key"),
        ({"engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {**KEY, "optional": 1}}}]}},
         "valueFrom.secretKeyRef.optional: got 1, want true or false"),
        ({"engine": {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]}}, "fieldRef: is not a known field"),
        ({"engine": {"envFrom": [{"secretRef": {"name": "s"}}]}}, "spec.engine.envFrom: is not a known field"),
        ({"engine": {"env": [{"name": "PYTHONPATH", "valueFrom": {"secretKeyRef": KEY}}]}}, "got 'PYTHONPATH', want"),
        ({"serviceAccountName": "robot"}, "spec.serviceAccountName: is not a known field"),
        ({"resources": {"claims": [{"name": "npu"}]}}, "spec.resources.claims[0].name: got 'npu', want a name of"),
        ({"resources": {"claims": [{"name": "gpu"}, {"name": "npu"}]}, "resourceClaims": [CLAIM]},
         "spec.resources.claims[1].name: got 'npu', want a name of spec.resourceClaims: gpu"),
        ({"resources": {"claims": [{"name": "gpu", "request": "A"}]}, "resourceClaims": [CLAIM]}, "request: got 'A'"),
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims[0]: got neither of resourceClaimName and"),
        ({"resourceClaims": [CLAIM | {"resourceClaimName": "g"}]}, "spec.resourceClaims[0]: got both of"),
        ({"resourceClaims": [CLAIM, CLAIM]}, "spec.resourceClaims[1].name: got 'gpu' for the second time, want each"),
        ({"resourceClaims": [{**CLAIM, "name": "G"}]}, "spec.resourceClaims[0].name: got 'G', want at most 63 of a-z"),
        ({"disruption": {"protectStartup": 1}}, "spec.disruption.protectStartup: got 1, want true or false"),
        ({"disruption": {"protectStartup": True},
          "podAnnotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
         "spec.podAnnotations: got cluster-autoscaler.kubernetes.io/safe-to-evict, want none while"),
        ({"engine": {"env": {}}}, "spec.engine.env: got {}, want a list of at most 64"),
        ({"limits": {"maxNumSeqs": 0}}, "spec.limits.maxNumSeqs: got 0, want a whole number of 1 to 4096"),
        ({"limits": {"kvCacheMemory": "lots"}}, "spec.limits.kvCacheMemory: got 'lots', want bytes above 0"),
        ({"limits": {"kvCacheMemory": "1k"}}, "spec.limits.kvCacheMemory: got '1k', want 64Ki to 16Ti"),
        ({"limits": {"kvCacheMemory": "17Ti"}}, "spec.limits.kvCacheMemory: got '17Ti', want 64Ki to 16Ti"),
        ({"drain": {"timeoutSeconds": 4000}}, "spec.drain.timeoutSeconds: got 4000, want a whole number of 0 to 3600"),
        ({"paused": "yes"}, "spec.paused: got 'yes', want true or false"),
        ({"suspend": 1}, "spec.suspend: got 1, want true or false"),
        ({"engine": {"backend": "cuda"}}, "spec.engine.backend: got 'cuda', want one of auto, native, torch"),
        ({"engine": {"quantization": "fp8"}}, "spec.engine.quantization: got 'fp8', want one of none, int8, int4"),
        ({"engine": {"backend": "torch", "quantization": "int8"}}, "spec.engine.quantization: got 'int8', want none"),
        ({"engine": {"prefixCache": "off"}}, "spec.engine.prefixCache: got 'off', want true or false"),
        ({"engine": {"tracesEndpoint": "collector"}}, "spec.engine.tracesEndpoint: got 'collector', want an http(s)"),
        ({"limits": {"maxQueuedTokens": 0}}, "spec.limits.maxQueuedTokens: got 0, want a whole number of 1 to"),
        ({"limits": {"maxQueueWaitSeconds": 86401}}, "spec.limits.maxQueueWaitSeconds: got 86401, want a whole"),
        ({"scheduling": {"policy": "lifo"}}, "spec.scheduling.policy: got 'lifo', want one of fcfs, priority, sjf"),
        ({"scheduling": {"targetStepMilliseconds": 0}}, "spec.scheduling.targetStepMilliseconds: got 0, want a"),
        ({"scheduling": {"stepsInFlight": 9}}, "spec.scheduling.stepsInFlight: got 9, want a whole number of 1 to 8"),
        ({"rollout": {"maxSurge": 0}}, "spec.rollout: got maxSurge 0 and maxUnavailable 0, want one of them above 0"),
        ({"rollout": {"maxSurge": "0%", "maxUnavailable": 0}}, "spec.rollout: got maxSurge 0% and maxUnavailable 0"),
        ({"rollout": {"maxSurge": "101%"}}, "spec.rollout.maxSurge: got '101%', want a whole number of 0 to 1000 or"),
        ({"rollout": {"maxUnavailable": True}}, "spec.rollout.maxUnavailable: got True, want a whole number"),
        ({"rollout": {"maxUnavailable": -1}}, "spec.rollout.maxUnavailable: got -1, want a whole number"),
        ({"rollout": {"progressDeadlineSeconds": 0}}, "spec.rollout.progressDeadlineSeconds: got 0, want a whole"),
        ({"revisionHistoryLimit": 101}, "spec.revisionHistoryLimit: got 101, want a whole number of 0 to 100"),
        ({"topologySpreadConstraints": ["x"]}, "spec.topologySpreadConstraints[0]: got 'x', want an object"),
        ({"podLabels": {"pinrail.dev/service": "x"}}, "spec.podLabels: got pinrail.dev/service, want none of pinrail"),
        ({"podAnnotations": {"app.kubernetes.io/name": "x"}}, "spec.podAnnotations: got app.kubernetes.io/name, want"),
        ({"security": {"apiKeySecretRef": {}}}, "spec.security.apiKeySecretRef.name: got nothing, want a"),
        ({"security": {"apiKey": "x"}}, "spec.security.apiKey: is not a known field, want one of apiKeySecretRef"),
        ({"gpu": 1}, "spec.gpu: is not a known field"),
        ({"resources": []}, "spec.resources: got [], want an object"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        service(**spec)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"minReplicas": 5}, "spec.scaling: got minReplicas 5 and maxReplicas 4, want minReplicas <= maxReplicas"),
        ({"minReplicas": 0}, "spec.scaling.minReplicas: got 0, want a whole number of 1 to 1000"),
        ({"targets": {"cacheUtilization": 0.85}}, "spec.scaling.targets.cacheUtilization: got 0.85, want a decimal"),
        ({"targets": {"cacheUtilization": "0.7"}}, "got scaleDownUtilization 0.7 and cacheUtilization 0.7"),
        ({"targets": {"scaleDownUtilization": "0.0"}}, "got scaleDownUtilization 0 and"),
        (
            {"metrics": {"source": "http://h"}},
            "spec.scaling.metrics.source: got 'http://h', want one of Pods, Prometheus",
        ),
        ({"metrics": {"url": "http://h"}}, "spec.scaling.metrics.url: is not a known field"),
        ({"metrics": {"staleAfterSeconds": 1}}, "spec.scaling.metrics.staleAfterSeconds: got 1"),
        ({"mode": "Off"}, "spec.scaling.mode: got 'Off', want one of Active, Recommend, Paused"),
    ],
)
def test_a_wrong_scaling_field_is_refused(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        scaled(**scaling)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["Chat", "1chat", "chat.v1", "c" * 53, "chat-", ""])
def test_a_name_that_no_service_can_have_is_refused(name: str) -> None:
    whole = body()
    whole["metadata"]["name"] = name
    with pytest.raises(SpecError, match=r"metadata\.name: got"):
        InferenceService.from_body(whole)


def test_another_kind_is_refused() -> None:
    with pytest.raises(SpecError, match="kind: got 'Pod' of 'v1', want InferenceService"):
        InferenceService.from_body({"kind": "Pod", "apiVersion": "v1", "metadata": {}, "spec": {}})


def test_a_tag_is_enough_where_a_mismatch_only_warns() -> None:
    asked = service(engine={"image": "engine:dev"}, verification={"mode": "Warn"})
    assert asked.engine.image == "engine:dev"
    assert service(engine={"image": IMAGE}).engine.image == IMAGE


@pytest.mark.parametrize("file", sorted((CRDS / "examples").glob("*.yaml")), ids=lambda f: f.name)
def test_every_example_is_accepted(file: Path) -> None:
    documents = list(yaml.safe_load_all(file.read_text()))
    assert [InferenceService.from_body(d) for d in documents if d["kind"] == "InferenceService"]
