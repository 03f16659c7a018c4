"""New pods for old ones, and fewer of them, while clients ask: each request gets its whole answer."""

import time
from collections.abc import Callable

import pytest
from load import LEAST, LIMITS, under_load
from world import SERVICE, Service, kubectl, wait_for

LONG = 1800  # tokens of an answer that takes longer than a pod keeps its address after it was told to end


@pytest.fixture(scope="module")
def service(make_service: Callable[..., Service]) -> Service:
    service = make_service("steady", scaling=None, replicas=2, limits=LIMITS, drain={"timeoutSeconds": 900})
    service.wait_until("Ready", "True")
    wait_for("2 ready replicas", lambda: service.status().get("readyReplicas") == 2, show=service.describe)
    return service


def test_every_request_is_answered_through_a_roll_out_and_a_scale_in(service: Service) -> None:
    with under_load(service) as load:
        before = {pod.metadata.name for pod in service.pods()}
        service.patch({"engine": {"env": [{"name": "GREETING", "value": "hello"}]}})
        service.wait_until("RolloutComplete", "True")
        after = "the old pods' end"
        wait_for(after, lambda: not before & {p.metadata.name for p in service.pods()}, show=service.describe)
        service.patch({"replicas": 1})
        wait_for("one pod", lambda: len(service.pods()) == 1, show=service.describe)
    assert load.failures == [], f"after {load.answers}"
    assert min(load.answers.values()) >= LEAST, load.answers


def test_an_answer_that_is_under_way_is_finished_before_its_pod_ends(service: Service) -> None:
    """The only pod is deleted as its first token comes; its last one comes long after it left the Service."""
    wait_for("one pod", lambda: len(service.pods()) == 1, show=service.describe)
    (pod,) = service.pods()
    stream = service.openai().completions.create(
        model=SERVICE["spec"]["model"]["name"],
        prompt="Once upon a time",
        max_tokens=LONG,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    kubectl("delete", "pod", pod.metadata.name, "-n", service.namespace, "--wait=false")
    began = time.monotonic()
    last = list(stream)[-1]
    assert last.usage is not None, "the stream broke off"
    assert last.usage.completion_tokens == LONG
    print(f"the answer went on for {time.monotonic() - began:.1f} s after its pod was deleted")
    wait_for("the pod's end", lambda: pod.metadata.name not in {p.metadata.name for p in service.pods()})
    service.wait_until("Ready", "True")
