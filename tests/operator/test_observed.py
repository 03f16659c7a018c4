"""What pods and Deployments say of themselves, and which failure is told first."""

from typing import Any

import pytest
from operator_builders import DIGEST, faulty, live_objects, observed, pod, service

from pinrail_contract.termination import Reason, Termination
from pinrail_operator import names
from pinrail_operator.failures import first_failure
from pinrail_operator.observed import Fault, Pod, Workload

MISMATCH = Termination(Reason.MODEL_MISMATCH, "model.safetensors: changed: has sha256 9…, want 2…")


def pod_body(ready: bool = True, containers: Any = (), init: Any = (), **status: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": str(ready)}
    return {
        "metadata": {"name": "chat-1", "uid": "uid-of-chat-1", "labels": {names.REVISION: "abc"}},
        "spec": {"containers": [{"name": "engine", "args": ["serve", f"--digest={DIGEST}"]}]},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [condition],
            "containerStatuses": list(containers),
            "initContainerStatuses": list(init),
            **status,
        },
    }


def test_a_pod_out_of_service_says_why() -> None:
    body = pod_body()
    body["metadata"]["labels"] = {names.SERVICE: "chat.quarantine", names.SERVING: "false"}
    body["metadata"]["annotations"] = {names.QUARANTINE: "reports another"}
    parsed = Pod.from_body(body)
    assert (parsed.is_quarantined, parsed.quarantine, parsed.mark) == (True, "reports another", "false")


@pytest.mark.parametrize(("word", "slots"), [("--max-num-seqs=8", 8), ("--max-num-seqs=many", 0), ("--other=8", 0)])
def test_what_an_engine_is_told_to_run_is_read_off_its_pod(word: str, slots: int) -> None:
    body = pod_body() | {"spec": {"containers": [{"name": "engine", "args": [word]}]}}
    assert Pod.from_body(body).slots == slots


def test_a_pod_that_is_told_no_digest_has_no_pin() -> None:
    assert Pod.from_body(pod_body() | {"spec": {"containers": [{"name": "engine"}]}}).pin == ""


def ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "message": message, "reason": reason}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def test_a_ready_pod() -> None:
    parsed = Pod.from_body(pod_body(containers=[{"name": "engine", "ready": True, "state": {"running": {}}}]))
    assert parsed == pod("chat-1", revision="abc")


@pytest.mark.parametrize("change", [{"phase": "Failed"}, {"phase": "Succeeded"}])
def test_a_pod_that_has_ended_does_not_count(change: dict[str, Any]) -> None:
    assert Pod.from_body(pod_body(**change)).is_ending


def test_a_pod_that_is_being_deleted_does_not_count() -> None:
    body = pod_body()
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert Pod.from_body(body).is_ending


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        pytest.param({"state": ended(64, MISMATCH.render())}, Fault("engine", "Error", "exit code 64", MISMATCH),
                     id="ended, in our words"),
        pytest.param({"state": waiting("CrashLoopBackOff"), "lastState": ended(64, MISMATCH.render())},
                     Fault("engine", "Error", "exit code 64", MISMATCH), id="waits after it ended"),
        pytest.param({"state": {"running": {}}, "lastState": ended(137, "", "OOMKilled"), "ready": False},
                     Fault("engine", "OOMKilled", "exit code 137", None), id="runs again, not ready"),
        pytest.param({"state": {"running": {}}, "lastState": ended(137), "ready": True}, None, id="runs again, ready"),
        pytest.param({"state": waiting("ImagePullBackOff", "no such image")},
                     Fault("engine", "ImagePullBackOff", "no such image", None), id="no image"),
        pytest.param({"state": waiting("ContainerCreating")}, None, id="its turn is to come"),
        pytest.param({"state": waiting("PodInitializing")}, None, id="an init container runs"),
        pytest.param({"state": ended(0)}, None, id="ended well"),
        pytest.param({"state": {"running": {}}}, None, id="runs"),
    ],
)  # fmt: skip
def test_faults(status: dict[str, Any], fault: Fault | None) -> None:
    parsed = Pod.from_body(pod_body(False, containers=[{"name": "engine", **status}]))
    assert parsed.faults == ((fault,) if fault else ())


def test_an_init_container_is_asked_too() -> None:
    said = Termination(Reason.FETCH_FAILED, "https://models.test/x: 404")
    parsed = Pod.from_body(pod_body(False, init=[{"name": "fetch", "state": ended(1, said.render())}]))
    failure = first_failure([parsed])
    assert failure is not None
    assert (failure.reason, failure.is_mismatch) == ("FetchFailed", False)
    assert "container fetch: https://models.test/x: 404; next: check that pods can reach the source" in failure.message


@pytest.mark.parametrize(
    ("init", "wanted"),
    [
        ([{"name": "fetch", "state": {"running": {}}}], True),
        ([{"name": "fetch", "state": waiting("PodInitializing")}], False),
        ([{"name": "fetch", "state": ended(0)}, {"name": "verify", "state": {"running": {}}}], False),
        ([], False),
    ],
    ids=["it runs", "it waits", "it has ended", "there is none"],
)
def test_a_pod_fetches_while_that_container_runs(init: list[Any], wanted: bool) -> None:
    assert Pod.from_body(pod_body(False, init=init)).is_fetching is wanted


def test_the_gravest_failure_is_told_first() -> None:
    nowhere = pod("chat-1", is_ready=False, unschedulable="0/3 nodes are available")
    crashed = faulty(Fault("engine", "OOMKilled", "exit code 137", None), "chat-2")
    wrong = faulty(Fault("engine", "Error", "exit code 64", MISMATCH), "chat-3")
    assert [first_failure(pods).reason for pods in ([nowhere, crashed, wrong], [nowhere, crashed], [nowhere])] == [
        "ModelMismatch", "OOMKilled", "Unschedulable",
    ]  # fmt: skip
    assert first_failure([nowhere]).can_pass
    assert not first_failure([crashed]).can_pass
    assert first_failure([pod()]) is None


def test_a_mismatch_names_the_file_and_the_next_step() -> None:
    failure = first_failure([faulty(Fault("engine", "Error", "exit code 64", MISMATCH))])
    assert failure is not None
    assert "pod chat-1, container engine: model.safetensors: changed" in failure.message
    assert "pinrail verify" in failure.message


def test_an_image_that_cannot_be_pulled_names_the_field() -> None:
    failure = first_failure([faulty(Fault("engine", "ImagePullBackOff", "not found", None))])
    assert failure is not None
    assert "check spec.engine.image" in failure.message


def test_a_ready_pod_does_not_fail_for_what_it_did_before() -> None:
    assert first_failure([pod(faults=(Fault("engine", "OOMKilled", "x", None),))]) is None


def test_the_scheduler_is_quoted() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    parsed = Pod.from_body(pod_body(conditions=[condition]))
    assert (parsed.unschedulable, parsed.is_ready) == ("0/1 nodes", False)


@pytest.mark.parametrize(
    ("condition", "failure"),
    [
        ({"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "late"},
         "ProgressDeadlineExceeded: late"),
        ({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"},
         "FailedCreate: quota"),
        ({"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}, ""),
        ({"type": "ReplicaFailure", "status": "False", "reason": "x"}, ""),
    ],
)  # fmt: skip
def test_why_a_deployment_is_stuck(condition: dict[str, str], failure: str) -> None:
    body = next(o for ref, o in live_objects(service()).items() if ref.kind == "Deployment")
    body["status"]["conditions"] = [condition]
    assert Workload.from_body(body).failure == failure


def test_no_deployment_is_no_workload() -> None:
    assert observed().workload is None


@pytest.mark.parametrize("container", ["fetch", "engine"])
def test_a_secret_that_is_not_there_is_named_with_the_next_step(container: str) -> None:
    """Of what is fetched with, or of a variable."""
    waits = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}}
    told = [{"name": container, "state": waits}]
    kind = "init" if container == "fetch" else "containers"
    failure = first_failure([Pod.from_body(pod_body(False, **{kind: told}))])
    assert failure is not None
    assert failure.reason == "CreateContainerConfigError"
    seen, step = failure.message.split("; next: ")
    assert seen.endswith(f'container {container}: CreateContainerConfigError: secret "hub" not found')
    assert step == (
        "create the Secret or ConfigMap with that key, or name another one in spec.model or spec.engine.env: the pod "
        "goes on by itself"
    )
