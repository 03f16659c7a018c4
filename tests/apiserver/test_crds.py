"""What the API server takes and refuses, with no webhook: a refusal names field, value seen and value wanted."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_documents import pin, service
from operator_builders import IMAGE

pytestmark = pytest.mark.apiserver

EXAMPLES = sorted((Path(__file__).parents[2] / "crds" / "examples").glob("*.yaml"))


def model(**changes: Any) -> dict[str, Any]:
    return {**service()["spec"]["model"], **changes}


def scaled(**scaling: Any) -> dict[str, Any]:
    return service(replicas=None, scaling={"maxReplicas": 4, **scaling})


def manifest(**spec: Any) -> dict[str, Any]:
    return pin() | {"spec": {**pin()["spec"], **spec}}


def vllm(*args: str, image: str | None = IMAGE, backend: str = "auto", env: Any = (), **spec: Any) -> dict[str, Any]:
    named = {"image": image} if image else {}
    engine = {"type": "vllm", "args": list(args), "backend": backend, "env": list(env), **named}
    return service(engine=engine, **spec)


def policy(*peers: dict[str, Any]) -> dict[str, Any]:
    return service(security={"networkPolicy": {"enabled": True, "from": list(peers)}})


def files(*roles: str, **change: Any) -> list[dict[str, Any]]:
    return [{"path": f"{r}.bin", "size": 1, "sha256": "0" * 64, "role": r, **change} for r in roles]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.name)
def test_every_example_is_taken(kube: Any, file: Path) -> None:
    kube("apply", "--server-side", "--dry-run=server", "-f", str(file))
    kube("apply", "--server-side", "-f", str(file))
    for document in yaml.safe_load_all(file.read_text()):
        assert kube.exists(document["kind"], document["metadata"]["name"])


KEY = {"name": "tracing", "key": "headers"}
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}

REFUSED = [
    pytest.param(service(replicas=None), "spec: got neither replicas nor scaling, want exactly one of them",
                 id="neither"),
    pytest.param(scaled() | {"spec": {**scaled()["spec"], "replicas": 1}},
                 "spec: got both replicas and scaling, want exactly one of them", id="both"),
    pytest.param(service(replicas=-1), "spec.replicas: Invalid value: -1: spec.replicas in body should be greater than",
                 id="negative"),
    pytest.param(service(model=None), "spec.model: Required value", id="no model"),
    pytest.param(service(model=model(digest="latest")), 'spec.model.digest: Invalid value: "latest"', id="digest"),
    pytest.param(service(model=model(manifestRef={})), "spec.model.manifestRef.name: Required value", id="no manifest"),
    pytest.param(service(model=model(tokenSecretRef={"name": "hub"})), "spec.model.tokenSecretRef.key: Required value",
                 id="no key"),
    pytest.param(service(model=model(endpoint="http://hub")),
                 "spec.model.endpoint: got http://hub, want an address that begins with https://, without a query",
                 id="hub without TLS"),
    pytest.param(service(model=model(endpoint="https://me:pw@hub")), "want an address that begins with https://",
                 id="hub with a password"),
    pytest.param(service(engine={"image": "engine:latest"}),
                 "spec.engine.image: got engine:latest, want a reference that ends in @sha256:<64 hex digits>",
                 id="image by tag"),
    pytest.param(service(engine={"type": "sglang"}), 'spec.engine.type: Unsupported value: "sglang"', id="engine"),
    pytest.param(service(engine={"args": ["--seed=1"]}), "spec.engine.args: got --seed=1, want none while", id="args"),
    pytest.param(vllm(image=None), "spec.engine.image: got none, want the image of a vLLM-compatible", id="no vllm"),
    pytest.param(vllm("seed=1"), "spec.engine.args[0]: Invalid value", id="no flag"),
    pytest.param(vllm("--port=1"), "spec.engine.args: got --port=1, want none that other fields", id="our flag"),
    pytest.param(vllm("--seed=1", "--trust-remote-code"), "want none that loads or runs something else", id="code"),
    pytest.param(vllm("--trust-remote"), "want none that loads or runs something else", id="a flag's beginning"),
    pytest.param(vllm("--hf-overrides.x=1"), "want none that loads or runs something else", id="a part of a flag"),
    pytest.param(vllm(backend="native"), "spec.engine: got backend native, quantization none and", id="vllm's backend"),
    pytest.param(vllm(env=[{"name": "HF_ENDPOINT", "value": "http://x"}]), "spec.engine.env: want none of HF_*, TRANS",
                 id="vllm's hub"),
    pytest.param(vllm(limits={"maxQueued": 1}), "spec.limits: want maxQueued, maxQueuedTokens", id="vllm's queue"),
    pytest.param(vllm(scheduling={"policy": "sjf"}), "spec.scheduling: got policy sjf, want fcfs", id="vllm's policy"),
    pytest.param(vllm(security={"apiKeySecretRef": {"name": "k"}}), "want none while spec.engine.type is vllm",
                 id="vllm's keys"),
    pytest.param(service(engine={"env": [{"name": "LD_PRELOAD", "value": "x"}]}),
                 "spec.engine.env: got LD_PRELOAD, want none of HOME, PATH, LD_* and PYTHON*", id="env"),
    pytest.param(service(engine={"env": [{"name": "A"}]}),
                 "spec.engine.env: got neither value nor valueFrom for A, want exactly one of them", id="no value"),
    pytest.param(service(engine={"env": [{"name": "A", "value": "", "valueFrom": {"secretKeyRef": KEY}}]}),
                 "spec.engine.env: got both value and valueFrom for A, want exactly one", id="two values"),
    pytest.param(service(engine={"env": [{"name": "A", "valueFrom": {}}]}),
                 "spec.engine.env: got neither secretKeyRef nor configMapKeyRef in valueFrom", id="value of nothing"),
    pytest.param(service(engine={"env": [{"name": "A", "valueFrom": {"secretKeyRef": KEY, "configMapKeyRef": KEY}}]}),
                 "spec.engine.env: got both secretKeyRef and configMapKeyRef in valueFrom, want", id="value of two"),
    pytest.param(service(engine={"env": [{"name": "LD_PRELOAD", "valueFrom": {"secretKeyRef": KEY}}]}),
                 "spec.engine.env: got LD_PRELOAD, want none of HOME, PATH, LD_* and PYTHON*", id="env of a Secret"),
    pytest.param(service(engine={"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]}),
                 'unknown field "spec.engine.env[0].valueFrom.fieldRef"', id="value of a field"),
    pytest.param(service(engine={"envFrom": [{"secretRef": {"name": "s"}}]}), 'unknown field "spec.engine.envFrom"',
                 id="a whole Secret"),
    pytest.param(service(serviceAccountName="robot"), 'unknown field "spec.serviceAccountName"', id="an account"),
    pytest.param(service(resourceClaims=[CLAIM], resources={"claims": [{"name": "gpu"}, {"name": "npu"}]}),
                 "spec.resources.claims: got npu, want a name of spec.resourceClaims", id="a claim of no name"),
    pytest.param(service(resources={"claims": [{"name": "gpu"}]}),
                 "spec.resources.claims: got gpu, want a name of spec.resourceClaims", id="no claims"),
    pytest.param(service(resourceClaims=[{"name": "gpu"}]),
                 "spec.resourceClaims: got neither of resourceClaimName and resource", id="claim"),
    pytest.param(service(resourceClaims=[CLAIM | {"resourceClaimName": "one"}]),
                 "spec.resourceClaims: got both of resourceClaimName and", id="two claims in one"),
    pytest.param(service(resourceClaims=[CLAIM, CLAIM]), 'spec.resourceClaims[1]: Duplicate value: {"name":"gpu"}',
                 id="one claim twice"),
    pytest.param(service(disruption={"protectStartup": True}, podAnnotations={"karpenter.sh/do-not-disrupt": "true"}),
                 "spec.podAnnotations: got karpenter.sh/do-not-disrupt, want none while spec.disruption.protect",
                 id="protected twice"),
    pytest.param(service(resources={"limits": {"cpu": 2, "memory": "4 GB"}}),
                 'spec.resources.limits[memory]: Invalid value: "": got 4 GB, want a quantity such as 2, 500m',
                 id="quantity"),
    pytest.param(service(verification={"mode": "Off"}), 'spec.verification.mode: Unsupported value: "Off"', id="mode"),
    pytest.param(service(limits={"kvCacheMemory": "1k"}), "spec.limits.kvCacheMemory: got 1k, want 64Ki to 16Ti",
                 id="little memory"),
    pytest.param(service(limits={"kvCacheMemory": "lots"}), "spec.limits.kvCacheMemory: got lots, want 64Ki to 16Ti",
                 id="no quantity"),
    pytest.param(service(limits={"maxNumSeqs": 0}), "spec.limits.maxNumSeqs: Invalid value: 0", id="no slots"),
    pytest.param(scaled(minReplicas=5),
                 "spec.scaling: got minReplicas 5 and maxReplicas 4, want minReplicas <= maxReplicas",
                 id="min over max"),
    pytest.param(scaled(metrics={"source": "Thanos"}), 'spec.scaling.metrics.source: Unsupported value: "Thanos"',
                 id="source"),
    pytest.param(scaled(metrics={"url": "http://here"}), 'unknown field "spec.scaling.metrics.url"', id="address"),
    pytest.param(scaled(minReplicas=0), "spec.scaling.minReplicas: Invalid value: 0", id="to zero"),
    pytest.param(scaled(targets={"cacheUtilization": "0.6"}),
                 "spec.scaling.targets: got scaleDownUtilization 0.70 and cacheUtilization 0.6, want 0 <",
                 id="targets"),
    pytest.param(scaled(targets={"cacheUtilization": "85%"}),
                 'spec.scaling.targets.cacheUtilization: Invalid value: "85%"', id="per cent"),
    pytest.param({**service(), "metadata": {"name": "chat.v1"}}, "metadata.name: got chat.v1, want at most 52 of a-z",
                 id="name with a dot"),
    pytest.param({**service(), "metadata": {"name": "c" * 53}}, "want at most 52 of a-z", id="long name"),
    pytest.param(service(engine={"backend": "torch", "quantization": "int8"}),
                 "spec.engine.quantization: got int8, want none while spec.engine.backend is torch",
                 id="quantized torch"),
    pytest.param(service(engine={"backend": "cuda"}), 'spec.engine.backend: Unsupported value: "cuda"', id="backend"),
    pytest.param(service(scheduling={"policy": "lifo"}), 'spec.scheduling.policy: Unsupported value: "lifo"',
                 id="policy"),
    pytest.param(service(rollout={"maxSurge": 0}),
                 "spec.rollout: got maxSurge 0 and maxUnavailable 0, want one of them above 0", id="no pod to replace"),
    pytest.param(service(rollout={"maxSurge": "0%", "maxUnavailable": "0%"}),
                 "spec.rollout: got maxSurge 0% and maxUnavailable 0%", id="0% of pods to replace"),
    pytest.param(service(rollout={"maxUnavailable": "101%"}),
                 "got 101%, want a whole number of 0 to 1000 or 0% to 100%",
                 id="above 100%"),
    pytest.param(service(rollout={"maxSurge": -1}), "got -1, want a whole number of 0 to 1000", id="negative surge"),
    pytest.param(service(podLabels={"pinrail.dev/service": "x"}), "want none of pinrail.dev/*", id="our label"),
    pytest.param(service(podAnnotations={"container.apparmor.security.beta.kubernetes.io/engine": "unconfined"}),
                 "want none of *apparmor.security.* and *seccomp.security.*", id="no profile"),
    pytest.param(service(affinity={"foo": 1}), 'unknown field "spec.affinity.foo"', id="no such affinity"),
    pytest.param(service(security={"apiKeySecretRef": {}}), "spec.security.apiKeySecretRef.name: Required value",
                 id="keys of no Secret"),
    pytest.param(policy({}), "got none of them, want podSelector, namespaceSelector, both, or ipBlock", id="no peer"),
    pytest.param(policy({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}),
                 "got ipBlock beside a selector, want podSelector, namespaceSelector, both, or ipBlock", id="two"),
    pytest.param(policy(), "spec.security.networkPolicy.from in body should have at least 1 items", id="no peers"),
    pytest.param(policy(*[{"podSelector": {}}] * 17), "spec.security.networkPolicy.from: Too many: 17", id="many"),
    pytest.param(service(security={"networkPolicy": {"egressPorts": [0]}}),
                 "spec.security.networkPolicy.egressPorts[0] in body should be greater", id="no port"),
    pytest.param(policy({"ipBlock": {"cidr": "here"}}), 'networkPolicy.from[0].ipBlock.cidr: Invalid value: "here"',
                 id="no addresses"),
    pytest.param(policy({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
                 "got none, want one or more while operator is In", id="In nothing"),
    pytest.param(policy({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}}),
                 "got some, want none while operator is Exists", id="Exists as something"),
    pytest.param(policy({"podSelector": {"matchLabels": {"a": "b c"}}}), "podSelector.matchLabels.a: Invalid value",
                 id="no label"),
    pytest.param(policy({"podSelectors": {}}), 'unknown field "spec.security.networkPolicy.from[0].podSelectors"',
                 id="misspelt peer"),
    pytest.param(service(parallelism={"tensor": 2}), "spec.parallelism.tensor: got 2, want 1 while spec.engine.type is "
                 "pinrail: that engine computes on one device", id="our engine on two"),
    pytest.param(service(parallelism={"pipeline": 3}), "spec.parallelism.pipeline: got 3, want 1 while spec.engine",
                 id="our engine in stages"),
    pytest.param(vllm(parallelism={"tensor": 65}), "spec.parallelism.tensor: Invalid value: 65", id="many devices"),
    pytest.param(vllm("--tensor-parallel-size=2"), "got --tensor-parallel-size=2, want none that other fields",
                 id="devices by a flag"),
    pytest.param(service(gpu=1), 'unknown field "spec.gpu"', id="unknown field"),
    pytest.param(service(scaling={"maxReplica": 2}), 'unknown field "spec.scaling.maxReplica"', id="misspelt field"),
    pytest.param(manifest(files=files("weights", "tokenizer")), "spec.files: got no file of role config, want at least",
                 id="no config"),
    pytest.param(manifest(files=files("config", "weights", "tokenizer", path="same")),
                 'spec.files[1]: Duplicate value: {"path":"same"}', id="one name twice"),
    pytest.param(manifest(files=files("config", "weights", "tokenizer") + files("index", path="a/b")),
                 'spec.files[3].path: Invalid value: "a/b"', id="a folder"),
    pytest.param(manifest(files=files("config", "weights", "tokenizer", sha256="A" * 64)), "spec.files[0].sha256",
                 id="upper case"),
    pytest.param(manifest(source={"uri": "hf://org/name"}), "spec.source.revision: want the 40 lower-case hex",
                 id="hf without a commit"),
    pytest.param(manifest(source={"uri": "hf://org/name", "revision": "main"}),
                 "spec.source.revision: want the 40 lower-case hex", id="hf branch"),
    pytest.param(manifest(source={"uri": "gs://org/name"}), "spec.source.uri: got gs://org/name, want pvc://claim/path",
                 id="scheme"),
    pytest.param(manifest(source={"uri": "s3://bucket/x?y"}), "spec.source.uri: got s3://bucket/x?y, want", id="query"),
    pytest.param(manifest(source={"uri": "oci://ghcr.io/org/name:latest"}),
                 "spec.source.uri: got oci://ghcr.io/org/name:latest, want pvc://claim/path", id="oci by tag"),
    pytest.param(manifest(source={"uri": "pvc://models/../x"}), "spec.source.uri: got pvc://models/../x", id="dots"),
    pytest.param(manifest(engine={}), "spec.engine.version: Required value", id="an engine without a version"),
    pytest.param(manifest(engine={"version": ">=0.1"}), "spec.engine.version: got >=0.1, want an exact version such as",
                 id="a range of versions"),
    pytest.param(manifest(numerics={}), "spec.numerics: Invalid value: 0: spec.numerics in body should have at least 1",
                 id="numerics that pin nothing"),
    pytest.param(manifest(numerics={"backend": "auto"}), 'spec.numerics.backend: Unsupported value: "auto"',
                 id="a backend that is not resolved"),
    pytest.param(manifest(numerics={"weightDtype": "fp8"}), 'spec.numerics.weightDtype: Unsupported value: "fp8"',
                 id="no such weights"),
    pytest.param(manifest(numerics={"backend": "torch", "weightDtype": "int8"}),
                 "spec.numerics.weightDtype: got int8, want float32 or bfloat16 while spec.numerics.backend is torch",
                 id="quantized torch in a manifest"),
    pytest.param(manifest(numerics={"instructions": "a;b"}), "spec.numerics.instructions: got a;b, want an instruction",
                 id="no instruction set"),
    pytest.param(manifest(schemaVersion=2), "spec.schemaVersion: Unsupported value: 2", id="newer schema"),
    pytest.param(manifest(tokenizer={}), 'unknown field "spec.tokenizer"', id="field of a newer schema"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "message"), REFUSED)
def test_a_wrong_document_is_refused(kube: Any, document: dict[str, Any], message: str) -> None:
    assert message in kube.refusal(document)


def test_a_tag_is_taken_where_a_mismatch_only_warns(kube: Any) -> None:
    kube.apply(service(engine={"image": "engine:dev"}, verification={"mode": "Warn"}))
    kube.apply(service(engine={"image": IMAGE}, verification={"mode": "Enforce"}))


@pytest.mark.parametrize(
    "uri",
    ["oci://127.0.0.1:5000/a/b-c__d.e@sha256:" + "0" * 64, "oci://ghcr.io/a@sha256:" + "f" * 64, "s3://models/a/b"],
)
def test_a_registry_by_digest_and_a_bucket_are_taken(kube: Any, uri: str) -> None:
    kube.apply(manifest(source={"uri": uri}))


def test_engine_and_numerics_are_taken_as_they_stand(kube: Any) -> None:
    pinned = {"engine": {"version": "0.1.0+cpu"}, "numerics": {"instructions": "NVIDIA H200", "weightDtype": "int4"}}
    kube.apply(manifest(**pinned))
    assert pinned.items() <= kube.get("pin", "tiny-v1")["spec"].items()


def test_a_pin_never_changes(kube: Any) -> None:
    kube.apply(manifest())
    kube.apply(manifest())
    said = kube.refusal(manifest(source={"uri": "pvc://elsewhere/x"}))
    assert "want the spec as it was created; a pin never changes" in said


def test_a_fixed_number_is_scaled_through_the_scale_subresource(kube: Any) -> None:
    kube.apply(service())
    kube.patch_status("infs", "chat", {"replicas": 1, "selector": "pinrail.dev/service=chat"})
    kube("scale", "infs/chat", "--replicas=3")
    assert kube.get("infs", "chat")["spec"]["replicas"] == 3
    scale = kube("get", "--raw", f"/apis/pinrail.dev/v1alpha1/namespaces/{kube.namespace}/inferenceservices/chat/scale")
    assert '"status":{"replicas":1,"selector":"pinrail.dev/service=chat"}' in scale


def test_the_scale_subresource_is_refused_where_the_scaler_decides(kube: Any) -> None:
    kube.apply(scaled())
    done = kube.run("scale", "infs/chat", "--replicas=3")
    assert "spec: got both replicas and scaling" in done.stderr


def test_short_names_and_columns(kube: Any) -> None:
    kube.apply(manifest(), service())
    table = kube("get", "infs,pin")
    assert "READY" in table
    assert "pvc://models/tiny/v1" in table
    assert "inferenceservice.pinrail.dev/chat" in kube("get", "pinrail", "-o", "name")
    assert "Authorization: Bearer KEY" in kube("explain", "infs.spec.security.apiKeySecretRef")
    assert "A whole Secret (envFrom) is left out on purpose" in " ".join(
        kube("explain", "infs.spec.engine.env").split()
    )
    assert "There is no serviceAccountName, on purpose" in " ".join(
        kube("explain", "infs.spec.imagePullSecrets").split()
    )
    assert "as `engine_version` of" in kube("explain", "pin.spec.engine.version")
    assert "What weights are kept in" in kube("explain", "pin.spec.numerics.weightDtype")
    explained = kube("explain", "infs.spec.security.networkPolicy.from")
    assert "gateways, Prometheus" in " ".join(explained.split())
    assert "vLLM's --tensor-parallel-size" in kube("explain", "infs.spec.parallelism.tensor")
    assert "Requests waiting in any one replica" in kube("explain", "infs.spec.scaling.targets.queueDepth")


@pytest.mark.parametrize(
    "spec",
    [
        {"rollout": {"maxSurge": 0, "maxUnavailable": 1}},
        {"rollout": {"maxSurge": "25%", "maxUnavailable": "0%"}},
        {"limits": {"kvCacheMemory": "auto"}},
        {
            "model": model(
                tokenSecretRef={"name": "hub", "key": ".t_1"},
                caConfigMapRef={"name": "ca", "key": "ca.crt"},
                credentialsSecretRef={"name": "s"},
                endpoint="https://hub.test:8443/x",
            )
        },
        {"engine": {"backend": "native", "quantization": "int4", "prefixCache": False}},
        {"scheduling": {"policy": "edf", "targetStepMilliseconds": 1, "stepsInFlight": 8}},
        {
            "engine": {"type": "vllm", "image": IMAGE, "args": ["--seed=2", "--enforce-eager"]},
            "parallelism": {"tensor": 2, "pipeline": 64},
        },
        {"engine": {"type": "vllm", "image": IMAGE, "args": ["--load-format=dummy"]}, "verification": {"mode": "Warn"}},
        {"suspend": True, "revisionHistoryLimit": 0},
        {"engine": {"env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": {"secretKeyRef": KEY}}]}},
        {"engine": {"env": [{"name": "B", "valueFrom": {"configMapKeyRef": {**KEY, "optional": True}}}]}},
        {"resourceClaims": [CLAIM], "resources": {"claims": [{"name": "gpu", "request": "half"}]}},
        {"disruption": {"protectStartup": True}, "podAnnotations": {"a": "b"}},
        {
            "security": {
                "networkPolicy": {
                    "enabled": True,
                    "from": [
                        {"podSelector": {}},
                        {"namespaceSelector": {}},
                        {"ipBlock": {"cidr": "fd00::/8", "except": ["fd00:1::/32"]}},
                        {
                            "namespaceSelector": {"matchLabels": {"a": ""}},
                            "podSelector": {"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]},
                        },
                    ],
                }
            }
        },
    ],
    ids=str,
)
def test_what_the_engine_and_the_deployment_offer_is_taken_as_it_stands(kube: Any, spec: dict[str, Any]) -> None:
    kube.apply(service(**spec))
    live = kube.get("infs", "chat")["spec"]
    for part, given in spec.items():
        assert live[part] == given if not isinstance(given, dict) else given.items() <= live[part].items()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"engine": {"env": [{"name": "A", "value": "x" * 1_400_000}]}}, "spec.engine.env[0].value: Too long"),
        ({"nodeSelector": {"x" * 1_400_000: "ssd"}}, "want keys of at most 317 characters"),
        ({"tolerations": [{"key": "x" * 200, "operator": "Exists"}] * 6000}, "spec.tolerations: Too many"),
    ],
    ids=["a value", "a key", "members"],
)
def test_a_spec_near_the_stores_limit_is_refused_and_the_service_stays_deletable(
    kube: Any, spec: dict[str, Any], said: str
) -> None:
    kube.apply(service())
    done = kube.run("replace", "-f", "-", stdin=yaml.safe_dump(service(**spec), width=2**31))
    assert done.returncode != 0
    assert said in re.sub("x{9,}", "", done.stderr), re.sub("x{9,}", "…", done.stderr)[:2000]
    kube("delete", "infs", "chat", "--timeout=10s")
    assert not kube.exists("infs", "chat")
