"""What RolloutComplete and Stalled say of a roll-out that waits: which pod, for what, since when."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_builders import IMAGE, faulty, live_objects, observed, pod, service, target

from pinrail_contract.termination import Reason as Ending
from pinrail_contract.termination import Termination
from pinrail_operator import status
from pinrail_operator.observed import Fault, Ref
from pinrail_operator.plan import target_revision
from pinrail_operator.rollout import PROCEED, Action, Course, Mark, Reason
from pinrail_operator.view import View

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MADE = {"created": NOW - timedelta(minutes=2)}
SINCE = "(waiting since 2026-01-02T03:02:05Z)"
NEW = target(service())
OLD = pod("old", revision="older")
CRASH = Fault("engine", "Error", "exit code 70", Termination(Ending.FAILED, "the cache does not fit"))
PULL = Fault("engine", "ImagePullBackOff", "Back-off pulling image", None)
ABORTED = Course(Action.ABORT, Reason.ABORTED, "aborted; next: free a node", Mark(Action.ABORT, NEW, "older"))


def conditions(new: Any, course: Course = PROCEED, **spec: Any) -> dict[str, dict[str, Any]]:
    """Of a roll-out with one old pod and a new one; `spec` are the Deployment's own conditions and generation."""
    asked = service()
    live = live_objects(asked, total=2, updated=1)
    live[Ref("Deployment", "chat")]["status"] |= spec
    seen = observed(live, (OLD, new))
    view = View(
        service=asked, observed=seen, target=target_revision(asked, seen, IMAGE), blocker=None, decision=None,
        course=course, fetched={"new": 4},
    )  # fmt: skip
    return {c["type"]: c for c in status.render(view, {}, NOW)["conditions"]}


@pytest.mark.parametrize(
    ("new", "reason", "said"),
    [
        pytest.param(pod("new", is_ready=False, **MADE), "RollingOut", f"pod new is starting {SINCE}", id="starting"),
        pytest.param(pod("new", is_ready=False, is_fetching=True, **MADE), "RollingOut",
                     f"pod new is fetching its model: 40 % of 271 MB {SINCE}", id="fetching"),
        pytest.param(pod("new", is_ready=False, unschedulable="no GPU", unschedulable_since=NOW - timedelta(minutes=2)),
                     "Unschedulable", f"pod new: no GPU; next: free or add a node, or change spec.resources, "
                     "spec.resourceClaims, spec.nodeSelector, spec.affinity or "
                     f"spec.tolerations {SINCE}", id="no node"),
        pytest.param(faulty(PULL, "new", **MADE), "ImagePullBackOff", SINCE, id="no image"),
        pytest.param(faulty(CRASH, "new", **MADE), str(Ending.FAILED), "the cache does not fit", id="its own words"),
    ],
)  # fmt: skip
def test_the_pod_that_waits_is_named(new: Any, reason: str, said: str) -> None:
    found = conditions(new)["RolloutComplete"]
    assert (found["status"], found["reason"]) == ("False", reason)
    assert said in found["message"]


def test_reconciling_says_how_far_the_new_pod_is_while_an_old_one_serves() -> None:
    found = conditions(pod("new", is_ready=False, is_fetching=True, **MADE))["Reconciling"]
    assert (found["status"], found["reason"]) == ("True", "ReplicasStarting")
    assert "pod new is fetching its model: 40 % of 271 MB" in found["message"]


LATE = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}]


def test_a_deadline_that_passed_is_stalled_with_what_it_waits_for() -> None:
    found = conditions(pod("new", is_ready=False, **MADE), conditions=LATE)
    assert (found["Stalled"]["status"], found["Stalled"]["reason"]) == ("True", "ProgressDeadlineExceeded")
    assert f"pod new is starting {SINCE}; 1 replica of the previous revision goes on" in found["Stalled"]["message"]
    assert found["Reconciling"]["status"] == "False"


def test_a_deadline_of_an_older_spec_is_not_this_ones() -> None:
    found = conditions(pod("new", is_ready=False, **MADE), conditions=LATE, observedGeneration=0)
    assert found["Stalled"]["status"] == "False"


def test_an_aborted_roll_out_is_stalled_and_serves() -> None:
    found = conditions(OLD, ABORTED)
    assert (found["Stalled"]["status"], found["Stalled"]["reason"]) == ("True", "RolloutAborted")
    assert found["RolloutComplete"]["reason"] == "RolloutAborted"
    assert "next: free a node; 2 replicas of the previous revision go on serving" in found["Stalled"]["message"]


def test_what_an_action_says_is_not_said_twice() -> None:
    waits = Course(Action.PROCEED, Reason.WAITING, "pod new has no node")
    found = conditions(pod("new", is_ready=False, unschedulable="no GPU"), waits)["RolloutComplete"]
    assert (found["reason"], found["message"]) == ("Unschedulable", "pod new has no node")
