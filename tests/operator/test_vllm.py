"""A vLLM-compatible engine: its command line as vLLM's own parser takes it, what is refused, and who verifies."""

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from operator_builders import DIGEST, IMAGE, manifest, observed, service
from vllm_stand_in import flags

from pinrail_contract import verify_command
from pinrail_contract.__main__ import main
from pinrail_contract.documents import read_manifest
from pinrail_contract.metrics import FILES_DIFFER
from pinrail_contract.termination import Reason, Termination
from pinrail_operator import names, pods
from pinrail_operator.checks import Blocked, first_blocker
from pinrail_operator.engine_args import OURS, UNPINNING
from pinrail_operator.errors import SpecError
from pinrail_operator.manifests import objects_for
from pinrail_operator.observed import Pod, Ref
from pinrail_operator.types import InferenceService
from pinrail_operator.verifier import with_verifier

VLLM = "registry.test/vllm/vllm-openai@sha256:" + "c" * 64
OTHER = IMAGE.replace("engine@", "newer@")
WARN = {"verification": {"mode": "Warn"}}


def asked(args: Sequence[str] = (), *, verifier: str = IMAGE, engine: Any = None, **spec: Any) -> InferenceService:
    whole = {"type": "vllm", "image": VLLM, "args": list(args), **(engine or {})}
    return service(engine=whole, **spec).verified_by(verifier)


def template(one: InferenceService, uri: str = "pvc://models/tiny/v1") -> dict[str, Any]:
    return pods.template(one, manifest(uri), VLLM)["spec"]


def test_the_command_line_is_one_that_vllm_takes() -> None:
    one = asked(
        ["--gpu-memory-utilization=0.8", "--enforce-eager"],
        engine={"dtype": "bfloat16", "prefixCache": False, "tracesEndpoint": "http://collector:4318"},
        limits={"maxModelLen": 4096, "maxNumSeqs": 8, "maxNumBatchedTokens": 2048, "blockSize": 32},
        scheduling={"policy": "priority"},
        parallelism={"tensor": 4, "pipeline": 2},
    )
    (engine,) = template(one)["containers"]
    assert "command" not in engine, "the image's own entry point"
    assert vars(flags().parse_args(engine["args"])) == {
        **vars(flags().parse_args([])),
        "model": pods.MODEL_DIR, "served_model_name": "tiny", "host": "0.0.0.0", "port": 8000, "dtype": "bfloat16",
        "max_model_len": 4096, "max_num_seqs": 8, "max_num_batched_tokens": 2048, "block_size": 32,
        "scheduling_policy": "priority", "enable_prefix_caching": False,
        "otlp_traces_endpoint": "http://collector:4318", "tensor_parallel_size": 4, "pipeline_parallel_size": 2,
        "gpu_memory_utilization": 0.8, "enforce_eager": True,
    }  # fmt: skip


def test_an_empty_spec_leaves_vllm_its_own_length_and_memory() -> None:
    given = vars(flags().parse_args(template(asked())["containers"][0]["args"]))
    assert (given["max_model_len"], given["gpu_memory_utilization"], given["dtype"]) == (None, None, "auto")
    assert (given["tensor_parallel_size"], given["pipeline_parallel_size"]) == (1, 1)
    assert (given["max_num_seqs"], given["block_size"], given["enable_prefix_caching"]) == (32, 16, True)


@pytest.mark.parametrize(
    ("parallelism", "flags_given"),
    [
        ({}, []),
        ({"tensor": 1, "pipeline": 1}, []),
        ({"tensor": 8}, ["--tensor-parallel-size=8"]),
        ({"pipeline": 2}, ["--pipeline-parallel-size=2"]),
    ],
    ids=str,
)
def test_devices_are_named_and_roll_pods_only_where_there_are_several(
    parallelism: dict[str, int], flags_given: list[str]
) -> None:
    one = asked(parallelism=parallelism)
    (engine,) = template(one)["containers"]
    assert [word for word in engine["args"] if "-parallel-size" in word] == flags_given
    is_same = pods.revision(one, manifest(), VLLM) == pods.revision(asked(), manifest(), VLLM)
    assert is_same is not bool(flags_given)


def test_processes_of_several_devices_share_more_memory_than_a_container_has() -> None:
    spec = template(asked(parallelism={"tensor": 2}))
    (engine,) = spec["containers"]
    (mount,) = [m for m in engine["volumeMounts"] if m["mountPath"] == "/dev/shm"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == mount["name"]]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert all(mount not in c["volumeMounts"] for c in spec["initContainers"])
    assert "/dev/shm" not in str(template(asked()))


def test_two_ways_of_spreading_a_replica_are_two_revisions() -> None:
    spread = [{"tensor": 2}, {"pipeline": 2}, {"tensor": 2, "pipeline": 2}]
    assert len({pods.revision(asked(parallelism=p), manifest(), VLLM) for p in spread}) == 3


@pytest.mark.parametrize("field", ["tensor", "pipeline"])
@pytest.mark.parametrize(
    ("engine", "count", "problem"),
    [
        ({}, 2, "got 2, want 1 while spec.engine.type is pinrail: that engine computes on one device"),
        ({"type": "vllm", "image": VLLM}, 65, "got 65, want a whole number of 1 to 64"),
        ({"type": "vllm", "image": VLLM}, 0, "got 0, want a whole number of 1 to 64"),
    ],
    ids=["ours", "many", "none"],
)
def test_devices_that_an_engine_cannot_compute_on_are_refused(
    engine: dict[str, str], count: int, problem: str, field: str
) -> None:
    with pytest.raises(SpecError) as caught:
        service(engine=engine, parallelism={field: count})
    assert str(caught.value) == f"spec.parallelism.{field}: {problem}"


def test_its_pod_is_probed_by_health_has_no_hub_and_time_to_drain() -> None:
    spec = template(asked(drain={"timeoutSeconds": 45}))
    (engine,) = spec["containers"]
    assert {engine[p]["httpGet"]["path"] for p in ("startupProbe", "readinessProbe", "livenessProbe")} == {"/health"}
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in engine["env"]
    assert engine["lifecycle"]["preStop"]["sleep"]["seconds"] == pods.PRE_STOP + 45
    assert spec["terminationGracePeriodSeconds"] > pods.PRE_STOP + 45
    assert engine["securityContext"]["readOnlyRootFilesystem"] is True
    (model,) = [m for m in engine["volumeMounts"] if m["name"] == "model"]
    assert model["readOnly"] is True


@pytest.mark.parametrize(("uri", "ran"), [("pvc://models/x", ["verify"]), ("https://m.test/x/", ["fetch", "verify"])])
def test_files_are_verified_by_our_own_image_before_it_starts(uri: str, ran: list[str]) -> None:
    init = template(asked(), uri)["initContainers"]
    assert [c["name"] for c in init] == ran
    assert {c["image"] for c in init} == {IMAGE}
    assert init[-1]["command"] == ["pinrail"]
    assert init[-1]["args"] == [
        "verify", f"--digest={DIGEST}", "--verification=Enforce", "/etc/pinrail/manifest.json", "/models",
    ]  # fmt: skip


def verified(init: dict[str, Any], folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Runs what the init container runs, on another folder: its exit code, and what it leaves to the kubelet."""
    said: list[Termination] = []
    monkeypatch.setattr(verify_command, "write", said.append)
    words = [{"/etc/pinrail/manifest.json": str(file), "/models": str(folder)}.get(w, w) for w in init["args"]]
    return main(words), said[-1].render()


def pod_of(one: InferenceService, code: int, message: str) -> Pod:
    ended = {"name": names.VERIFY, "state": {"terminated": {"exitCode": code, "message": message, "reason": "x"}}}
    return Pod.from_body({
        "metadata": {"name": "chat-1"},
        "spec": template(one),
        "status": {"initContainerStatuses": [ended], "conditions": [{"type": "Ready", "status": str(code == 0)}]},
    })  # fmt: skip


@pytest.fixture
def pinned(tmp_path: Path) -> tuple[Path, Path, str]:
    """A folder, its manifest's file and digest."""
    folder, file = tmp_path / "model", tmp_path / "manifest.yaml"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1, '
        '"vocab_size": 10, "max_position_embeddings": 32}'
    )
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    assert main(["pin", str(folder), "--name", "m", "-o", str(file)]) == 0
    return folder, file, read_manifest(file).digest


@pytest.mark.parametrize(
    ("spec", "flipped", "code", "reported"),
    [({}, False, 0, "digest"), ({}, True, 1, ""), (WARN, False, 0, "digest"), (WARN, True, 0, FILES_DIFFER)],
    ids=["right", "wrong", "right, warned", "wrong, warned"],
)
def test_what_the_init_container_finds_is_what_the_pod_reports(
    pinned: tuple[Path, Path, str], monkeypatch: pytest.MonkeyPatch, spec: Any, flipped: bool, code: int, reported: str
) -> None:
    folder, file, digest = pinned
    if flipped:
        (folder / "tokenizer.json").write_text("[]")
    one = asked(model={"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": digest}, **spec)
    ended = verified(template(one)["initContainers"][-1], folder, file, monkeypatch)
    assert ended[0] == code
    pod = pod_of(one, *ended)
    assert (pod.pin, pod.verified, pod.slots) == (digest, digest if reported == "digest" else reported, 32)
    if code:
        (fault,) = pod.faults
        assert fault.termination is not None
        assert fault.termination.reason is Reason.MODEL_MISMATCH
        assert "tokenizer.json: changed" in fault.termination.message


def test_another_manifest_than_the_pinned_one_lets_no_engine_start(
    pinned: tuple[Path, Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file, digest = pinned
    code, message = verified(template(asked())["initContainers"][-1], folder, file, monkeypatch)
    assert code != 0
    said = Termination.parse(message)
    assert said == Termination(Reason.MANIFEST_MISMATCH, f"{file}: has digest {digest}, want {DIGEST}")


@pytest.mark.parametrize("flag", [*UNPINNING, "trust-rem", "rev", "tr"])
def test_what_would_undo_the_pin_is_refused_while_it_is_enforced(flag: str) -> None:
    for word in (f"--{flag}", f"--{flag}=x", f"--{flag}.key=x"):
        with pytest.raises(SpecError, match=r"spec\.engine\.args\[1\]: got --"):
            asked(["--seed=1", word])
    assert asked([f"--{flag}"], **WARN).engine.args == (f"--{flag}",)


@pytest.mark.parametrize("flag", [*OURS, "mod", "max-num-s", "tensor", "pipeline-parallel"])
@pytest.mark.parametrize("spec", [{}, WARN], ids=["enforced", "warned"])
def test_what_other_fields_set_is_refused_in_any_case(flag: str, spec: Any) -> None:
    with pytest.raises(SpecError, match="want none that other fields of the spec or the operator set"):
        asked([f"--{flag}=x"], **spec)


@pytest.mark.parametrize(
    "word", ["", "x", "-tp=2", "--", "--a b", "--trust_remote_code", "--Seed=1", "--=x", "--s" + "e" * 256, 1], ids=repr
)
def test_a_word_that_is_no_single_flag_is_refused(word: Any) -> None:
    with pytest.raises(SpecError, match=r"spec\.engine\.args\[0\]: got .*, want one flag a word"):
        asked([word])


def test_our_engine_takes_no_further_flags() -> None:
    with pytest.raises(SpecError, match=r"got '--seed=1', want none while spec\.engine\.type is pinrail"):
        service(engine={"args": ["--seed=1"]})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"engine": {"image": None}}, "spec.engine.image: got none, want the image of a vLLM-compatible engine while"),
        (
            {"engine": {"backend": "native"}},
            "spec.engine.backend: got native, want auto while spec.engine.type is",
        ),
        ({"engine": {"quantization": "int8"}}, "spec.engine.quantization: got int8, want none while"),
        ({"engine": {"cacheEvents": True}}, "spec.engine.cacheEvents: got true, want false while"),
        ({"limits": {"maxQueued": 9}}, "spec.limits.maxQueued: got 9, want it left out while"),
        ({"limits": {"maxQueuedTokens": 9}}, "spec.limits.maxQueuedTokens: got 9, want it left out while"),
        ({"limits": {"maxQueueWaitSeconds": 9}}, "spec.limits.maxQueueWaitSeconds: got 9, want it left out while"),
        ({"limits": {"kvCacheMemory": "2Gi"}}, "want it left out (spec.engine.args takes --gpu-memory-utilization)"),
        ({"scheduling": {"policy": "sjf"}}, "spec.scheduling.policy: got sjf, want fcfs or priority while"),
        ({"scheduling": {"targetStepMilliseconds": 9}}, "spec.scheduling.targetStepMilliseconds: got 9, want it left"),
        ({"scheduling": {"stepsInFlight": 2}}, "spec.scheduling.stepsInFlight: got 2, want it left out while"),
        ({"security": {"apiKeySecretRef": {"name": "k"}}}, "spec.security.apiKeySecretRef: got k, want none, since it"),
        ({"engine": {"env": [{"name": "HF_HUB_OFFLINE", "value": "0"}]}}, "spec.engine.env[0].name: got 'HF_HUB_OFF"),
        ({"engine": {"env": [{"name": "VLLM_API_KEY", "value": "0"}]}}, "spec.engine.env[0].name: got 'VLLM_API_KEY'"),
    ],
    ids=str,
)
def test_a_field_that_it_has_no_counterpart_of_is_refused_and_not_ignored(spec: dict[str, Any], message: str) -> None:
    one = asked(**spec)
    blocker = first_blocker(one, observed(), one.engine.image)
    assert blocker is not None
    assert blocker.reason is Blocked.INVALID_SPEC
    assert message in blocker.message


@pytest.mark.parametrize(
    ("verifier", "spec", "reason"),
    [
        ("", {}, Blocked.IMAGE_MISSING),
        ("engine:dev", {}, Blocked.IMAGE_NOT_PINNED),
        ("engine:dev", WARN, None),
        (IMAGE, {}, None),
    ],
)
def test_who_verifies_is_named_as_strictly_as_who_serves(verifier: str, spec: Any, reason: Blocked | None) -> None:
    blocker = first_blocker(asked(verifier=verifier, **spec), observed(), VLLM)
    assert (blocker.reason if blocker else None) is reason
    assert blocker is None or "PINRAIL_ENGINE_IMAGE" in blocker.message


def test_its_flags_and_who_verifies_are_part_of_its_revision() -> None:
    def of(one: InferenceService) -> str:
        return pods.revision(one, manifest(), VLLM)

    base = of(asked())
    assert of(asked(["--seed=1"])) != base
    assert of(asked(verifier=VLLM)) != base
    assert of(service(engine={"image": VLLM})) != base
    assert of(service().verified_by(IMAGE)) == of(service()), "of our own engine, nobody else"


@pytest.mark.parametrize(
    ("running", "default", "taken"),
    [
        ("", IMAGE, IMAGE),  # a new service
        (IMAGE, OTHER, IMAGE),  # a new operator
        (IMAGE, "", IMAGE),  # one that is given none
    ],
)
def test_who_verifies_stays_while_nothing_else_of_its_pods_changes(running: str, default: str, taken: str) -> None:
    seen = observed({Ref.of(o): o for o in objects_for(asked(verifier=running), manifest(), VLLM)} if running else {})
    assert with_verifier(asked(verifier=""), seen, default).verifier == taken


def test_an_edit_brings_the_newer_image_that_verifies() -> None:
    seen = observed({Ref.of(o): o for o in objects_for(asked(), manifest(), VLLM)})
    assert with_verifier(asked(["--seed=1"], verifier=""), seen, OTHER).verifier == OTHER


def test_an_image_that_somebody_put_in_its_place_is_not_kept() -> None:
    live = {Ref.of(o): copy.deepcopy(dict(o)) for o in objects_for(asked(), manifest(), VLLM)}
    live[Ref("Deployment", "chat")]["spec"]["template"]["spec"]["initContainers"][0]["image"] = "mine"
    assert with_verifier(asked(verifier=""), observed(live), IMAGE).verifier == IMAGE


def test_the_stand_in_refuses_a_flag_that_vllm_does_not_have() -> None:
    import subprocess

    command = [sys.executable, str(Path(__file__).with_name("vllm_stand_in.py")), "--model-dir=/models"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "unrecognized arguments: --model-dir=/models" in done.stderr
