"""A pod that loads its model stays where it is; a ready one may be moved; no operator is needed to be safe."""

from typing import Any

import pytest
from operator_builders import IMAGE, faulty, live_objects, manifest, observed, pod, service

from pinrail_operator import names, pods, startup_protection
from pinrail_operator.checks import Blocked, Blocker
from pinrail_operator.observed import Fault, Pod
from pinrail_operator.plan import plan_for

PROTECTED = service(disruption={"protectStartup": True})


def born(**spec: Any) -> dict[str, Any]:
    return dict(pods.template(service(**spec), manifest(), IMAGE)["metadata"].get("annotations", {}))


def test_a_pod_is_born_protected_where_that_is_asked_and_else_not() -> None:
    ours = {
        "karpenter.sh/do-not-disrupt": "true",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "pinrail.dev/starting": "true",
    }
    assert born(disruption={"protectStartup": True}, podAnnotations={"a": "b"}) == {"a": "b", **ours}
    assert born() == {}


def test_a_pod_that_somebody_else_protects_for_good_is_none_of_ours() -> None:
    annotations = born(podAnnotations={"karpenter.sh/do-not-disrupt": "true"})
    parsed = Pod.from_body({"metadata": {"name": "chat-1", "annotations": annotations}})
    assert not parsed.is_protected
    assert startup_protection.ended(observed(pods=(pod(is_protected=False),))) == ()


@pytest.mark.parametrize(
    ("one", "ends"),
    [
        pytest.param(pod(is_protected=True), True, id="ready"),
        pytest.param(pod(is_protected=True, is_ready=False), False, id="loading"),
        pytest.param(faulty(Fault("engine", "Error", "exit code 1", None), is_protected=True), False, id="broken"),
        pytest.param(pod(), False, id="ready, and not protected any more"),
    ],
)
def test_protection_ends_when_a_pod_is_ready(one: Pod, ends: bool) -> None:
    assert startup_protection.ended(observed(pods=(one,))) == (("chat-1",) if ends else ())


def test_a_quarantined_pod_holds_no_node() -> None:
    out = pod("chat-q", is_protected=True, is_quarantined=True)
    assert startup_protection.ended(observed(quarantined=(out,))) == ("chat-q",)


STARTED = (pod("chat-1", is_protected=True), pod("chat-2", is_protected=True, is_ready=False))


@pytest.mark.parametrize("blocker", [None, Blocker(Blocked.MANIFEST_MISSING, "gone")], ids=str)
def test_the_plan_lets_started_pods_be_moved_blocked_or_not(blocker: Blocker | None) -> None:
    seen = observed(live_objects(PROTECTED), STARTED)
    plan = plan_for(PROTECTED, seen, blocker, IMAGE, None)
    assert (plan.started, plan.is_empty) == (("chat-1",), False)
    assert "let chat-1, which has started, be moved" in str(plan)


@pytest.mark.parametrize(
    ("spec", "blocker"),
    [({"paused": True}, None), ({}, Blocker(Blocked.NAME_TAKEN, "theirs"))],
    ids=["paused", "taken"],
)
def test_pods_are_left_alone_where_all_is(spec: dict[str, Any], blocker: Blocker | None) -> None:
    asked = service(disruption={"protectStartup": True}, **spec)
    assert plan_for(asked, observed(live_objects(asked), STARTED), blocker, IMAGE, None).is_empty


def test_protection_that_is_asked_for_no_more_still_ends_for_pods_that_have_it() -> None:
    assert plan_for(service(), observed(live_objects(service()), STARTED), None, IMAGE, None).started == ("chat-1",)


def test_all_that_a_pod_is_born_with_is_taken_off() -> None:
    assert set(startup_protection.WRITTEN) == set(born(disruption={"protectStartup": True}))
    assert names.STARTING in startup_protection.WRITTEN
