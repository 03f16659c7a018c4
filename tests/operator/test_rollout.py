"""The table of `choose`, row by row; then roll-outs as a Deployment's controller and a scheduler carry them out."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_builders import IMAGE, live_objects, manifest, observed, pod, service, target

from pinrail_operator import names
from pinrail_operator.errors import SpecError
from pinrail_operator.observed import Observed, Pod, Ref, templates_by_revision
from pinrail_operator.plan import plan_for
from pinrail_operator.rollout import Action, Course, Mark, Reason, choose, needs_templates
from pinrail_operator.types import InferenceService

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OLD_REVISION = target(service())
LONG_AGO, JUST_NOW = NOW - timedelta(seconds=30), NOW - timedelta(seconds=29)
WORDS = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu"
TEMPLATE = {"metadata": {"labels": {names.REVISION: OLD_REVISION}}, "spec": {}}


def asked(policy: str, replicas: int = 2, least: int | None = None) -> InferenceService:
    disruption = {"minAvailable": least} if least is not None else {}
    return service(
        replicas=replicas, nodeSelector={"gpu": "new"}, rollout={"onUnschedulable": policy}, disruption=disruption
    )


NEW_REVISION = target(asked("Wait"))


def seen(
    replicas: int = 2,
    since: datetime | None = LONG_AGO,
    mark: Mark | None = None,
    done: bool = False,
    new: str = WORDS,
    ending: int = 0,
    templates: Mapping[str, Any] | None = None,
) -> Observed:
    """A roll-out whose new pod has no node; `done` is one that is complete."""
    live = live_objects(asked("Wait", replicas), replicas, total=replicas + (not done), updated=replicas if done else 1)
    deployment = live[Ref("Deployment", "chat")]
    if mark is not None:
        deployment["metadata"]["annotations"][names.ROLLOUT] = str(mark)
    if mark is not None and mark.action is Action.ABORT:
        deployment["spec"]["template"]["metadata"]["labels"][names.REVISION] = OLD_REVISION
    old = () if done else tuple(pod(f"old-{i}", revision=OLD_REVISION) for i in range(replicas))
    fresh = pod("new-1", revision=NEW_REVISION, is_ready=False, unschedulable=new, unschedulable_since=since)
    return observed(live, (*old, fresh), ending=ending, templates=templates or {})


REPLACING, ABORTED = Mark(Action.REPLACE, NEW_REVISION), Mark(Action.ABORT, NEW_REVISION, OLD_REVISION)
OTHERS = Mark(Action.REPLACE, "another")
KNOWN = {OLD_REVISION: TEMPLATE}


@pytest.mark.parametrize(
    ("service", "found", "action", "reason"),
    [
        pytest.param(asked("Replace"), seen(done=True, mark=REPLACING), Action.PROCEED, Reason.NONE, id="complete"),
        pytest.param(asked("Abort"), seen(mark=ABORTED, since=None), Action.ABORT, Reason.ABORTED, id="was aborted"),
        pytest.param(asked("Replace"), seen(mark=REPLACING, new=""), Action.REPLACE, Reason.REPLACING,
                     id="replacing: the new pod has a node by now"),
        pytest.param(asked("Replace"), seen(since=JUST_NOW), Action.PROCEED, Reason.NONE, id="within the grace time"),
        pytest.param(asked("Replace"), seen(ending=1), Action.PROCEED, Reason.NONE, id="an old pod is ending"),
        pytest.param(asked("Wait"), seen(), Action.PROCEED, Reason.WAITING, id="wait"),
        pytest.param(asked("Replace", 2, 2), seen(), Action.PROCEED, Reason.WAITING, id="minAvailable forbids it"),
        pytest.param(asked("Replace", 2, 2), seen(mark=REPLACING), Action.PROCEED, Reason.WAITING,
                     id="minAvailable was raised meanwhile"),
        pytest.param(asked("Replace", 2, 1), seen(), Action.REPLACE, Reason.REPLACING, id="minAvailable is left"),
        pytest.param(asked("Replace", 1, 1), seen(1), Action.REPLACE, Reason.REPLACING, id="the only pod"),
        pytest.param(asked("Replace"), seen(mark=OTHERS, since=JUST_NOW), Action.PROCEED, Reason.NONE,
                     id="the mark is of another target"),
        pytest.param(asked("Abort"), seen(), Action.PROCEED, Reason.WAITING, id="nothing to go back to"),
        pytest.param(asked("Abort"), seen(templates=KNOWN), Action.ABORT, Reason.ABORTED, id="abort"),
        pytest.param(asked("Wait"), seen(mark=ABORTED, since=JUST_NOW), Action.PROCEED, Reason.NONE,
                     id="the policy was changed: another try"),
    ],
)  # fmt: skip
def test_choose(service: InferenceService, found: Observed, action: Action, reason: Reason) -> None:
    course = choose(service, found, NEW_REVISION, NOW)
    assert (course.action, course.reason) == (action, reason)


@pytest.mark.parametrize(
    ("service", "found", "said"),
    [
        (asked("Wait"), seen(), f"pod new-1 has no node since 2026-01-02T03:03:35Z: {WORDS}; next: free or add a node"),
        (asked("Replace", 2, 2), seen(), "spec.disruption.minAvailable is 2"),
        (asked("Replace", 1), seen(1), "nothing serves until the new pod is ready"),
        (asked("Abort"), seen(), "no ReplicaSet of a revision that serves is left"),
        (asked("Abort"), seen(templates=KNOWN), f"revision {NEW_REVISION} was aborted and revision {OLD_REVISION}"),
    ],
)
def test_the_message_says_what_is_next(service: InferenceService, found: Observed, said: str) -> None:
    assert said in choose(service, found, NEW_REVISION, NOW).message


def test_more_pods_than_one_say_nothing_of_an_outage() -> None:
    assert "nothing serves" not in choose(asked("Replace"), seen(), NEW_REVISION, NOW).message


def test_an_aborted_roll_out_whose_replica_set_is_gone_is_left_as_it_is() -> None:
    found = seen(mark=ABORTED)
    course = choose(asked("Abort"), found, NEW_REVISION, NOW)
    assert (course.action, course.template) == (Action.ABORT, None)
    plan = plan_for(asked("Abort"), found, None, IMAGE, None, course)
    assert "Deployment" not in [o["kind"] for o in (*plan.apply, *plan.settle)]


@pytest.mark.parametrize("text", ["", "Proceed x", "Replace", "Replaced x", "Abort"])
def test_what_is_no_mark_of_ours_is_none(text: str) -> None:
    assert Mark.parse(text) is None


@pytest.mark.parametrize("mark", [REPLACING, ABORTED])
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    assert Mark.parse(str(mark)) == mark


def test_an_unknown_policy_is_refused_by_field() -> None:
    with pytest.raises(SpecError, match=r"spec.rollout.onUnschedulable: got 'Hope', want one of Wait, Replace, Abort"):
        asked("Hope")


def test_templates_are_asked_for_where_an_abort_may_need_them() -> None:
    fine = (pod("chat-a"),)
    assert needs_templates(asked("Abort"), seen())
    assert needs_templates(asked("Abort"), replace(seen(mark=ABORTED), pods=fine))
    assert not needs_templates(asked("Abort"), replace(seen(), pods=fine))
    assert not needs_templates(asked("Replace"), seen())
    assert not needs_templates(asked("Abort"), observed(pods=seen().pods))


@pytest.mark.parametrize(("enabled", "revision", "needed"), [
    (True, OLD_REVISION, True), (True, NEW_REVISION, False), (False, OLD_REVISION, False),
], ids=["an older pod", "none", "no policy"])  # fmt: skip
def test_templates_are_asked_for_while_a_policy_confines_older_pods(enabled: bool, revision: str, needed: bool) -> None:
    confined = service(nodeSelector={"gpu": "new"}, security={"networkPolicy": {"enabled": enabled}})
    assert needs_templates(confined, replace(seen(), pods=(pod(revision=revision),))) is needed


def test_no_good_pod_makes_room_for_a_revision_that_is_quarantined() -> None:
    there = replace(seen(), quarantined=(pod("apart", revision=NEW_REVISION),))
    course = choose(asked("Replace"), there, NEW_REVISION, NOW)
    assert (course.action, course.reason) == (Action.PROCEED, Reason.WAITING)


def test_the_newest_replica_set_of_a_revision_is_the_one() -> None:
    def replica_set(number: int, image: str) -> dict[str, Any]:
        labels = {names.REVISION: "r", "pod-template-hash": str(number)}
        return {
            "metadata": {"annotations": {"deployment.kubernetes.io/revision": str(number)}},
            "spec": {"template": {"metadata": {"labels": labels}, "spec": {"image": image}}},
        }

    found = templates_by_revision([replica_set(10, "right"), replica_set(9, "edited")])
    assert found == {"r": {"metadata": {"labels": {names.REVISION: "r"}}, "spec": {"image": "right"}}}


@dataclass
class World:
    """A Deployment's controller, and a scheduler with so many nodes; pods with a node are ready at once."""

    service: InferenceService
    nodes: int
    replicas: int
    now: datetime = NOW
    deployment: dict[str, Any] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    templates: dict[str, Any] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    fewest: int = 10**6  # ready pods at any moment
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        old = service(replicas=self.replicas)
        self.deployment = live_objects(old, self.replicas)[Ref("Deployment", "chat")]
        self.pods = [pod(f"old-{i}", revision=OLD_REVISION) for i in range(self.replicas)]
        self.templates[OLD_REVISION] = self.deployment["spec"]["template"]

    @property
    def revision(self) -> str:
        return str(self.deployment["spec"]["template"]["metadata"]["labels"][names.REVISION])

    @property
    def mark(self) -> str:
        return str(self.deployment["metadata"]["annotations"].get(names.ROLLOUT, ""))

    @property
    def is_settled(self) -> bool:
        return len(self.pods) == self.replicas and all(p.is_ready and p.revision == self.revision for p in self.pods)

    def observed(self) -> Observed:
        live = live_objects(self.service, self.replicas, manifest())
        live[Ref("Deployment", "chat")] = self.deployment
        return observed(live, tuple(self.pods), templates=dict(self.templates))

    def operator(self) -> Course:
        """One reconcile of an operator that remembers nothing."""
        found = self.observed()
        course = choose(self.service, found, NEW_REVISION, self.now)
        plan = plan_for(self.service, found, None, IMAGE, None, course)
        for body in (o for o in (*plan.apply, *plan.settle) if o["kind"] == "Deployment"):
            generation = self.deployment["metadata"]["generation"] + 1
            spec = {**body["spec"], "replicas": self.replicas}
            metadata = {**body["metadata"], "generation": generation}
            self.deployment = {**body, "metadata": metadata, "spec": spec, "status": self.deployment["status"]}
            self.templates[self.revision] = body["spec"]["template"]
        self.marks |= {self.mark} - {""}
        return course

    def controller(self) -> None:
        """One step of a rolling update, then the counts."""
        rolling = self.deployment["spec"]["strategy"]["rollingUpdate"]
        new = [p for p in self.pods if p.revision == self.revision]
        old = sorted((p for p in self.pods if p not in new), key=lambda p: p.is_ready)
        unready_new, ready = sum(not p.is_ready for p in new), sum(p.is_ready for p in self.pods)
        least = self.replicas - rolling["maxUnavailable"]
        if len(self.pods) < self.replicas + rolling["maxSurge"] and len(new) < self.replicas:
            name = f"new-{next(self.numbers)}"
            changes = {"is_ready": False, "unschedulable": WORDS, "unschedulable_since": self.now}
            self.pods.append(pod(name, revision=self.revision, **changes))
        elif old and len(self.pods) - least - unready_new > 0 and (not old[0].is_ready or ready > least):
            self.pods.remove(old[0])
        updated = sum(p.revision == self.revision for p in self.pods)
        generation = self.deployment["metadata"]["generation"]
        self.deployment["status"] = {
            "observedGeneration": generation, "replicas": len(self.pods), "updatedReplicas": updated,
        }  # fmt: skip
        self.fewest = min(self.fewest, sum(p.is_ready for p in self.pods))

    def scheduler(self) -> None:
        free = self.nodes - sum(p.is_ready for p in self.pods)
        for i, waiting in enumerate(self.pods):
            if free > 0 and not waiting.is_ready:
                self.pods[i] = pod(waiting.name, revision=waiting.revision)
                free -= 1

    def time(self) -> None:
        self.now += timedelta(seconds=20)

    def settle(self) -> None:
        for _ in range(40):
            self.operator()
            self.controller()
            self.scheduler()
            self.time()


STEPS = st.lists(st.sampled_from(["operator", "controller", "scheduler", "time"]), max_size=40)
REPLICAS = st.integers(1, 3)


def played(world: World, steps: list[str]) -> World:
    """The steps in their order, then everything in turn until nothing moves."""
    for step in steps:
        getattr(world, step)()
    world.settle()
    return world


@given(replicas=REPLICAS, steps=STEPS)
def test_replace_ends_with_the_new_revision_and_one_pod_less_at_most(replicas: int, steps: list[str]) -> None:
    world = played(World(asked("Replace", replicas), replicas, replicas), steps)
    assert world.is_settled
    assert world.revision == NEW_REVISION
    assert world.fewest >= replicas - 1
    assert (world.marks, world.mark) == ({str(REPLACING)}, "")
    assert world.deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@given(replicas=st.integers(2, 3), steps=STEPS)
def test_replace_never_takes_a_pod_that_min_available_demands(replicas: int, steps: list[str]) -> None:
    world = played(World(asked("Replace", replicas, replicas), replicas, replicas), steps)
    assert (world.fewest, world.marks) == (replicas, set())


@given(replicas=REPLICAS, steps=STEPS)
def test_abort_ends_with_the_old_revision_and_never_fewer_pods(replicas: int, steps: list[str]) -> None:
    world = played(World(asked("Abort", replicas), replicas, replicas), steps)
    assert world.is_settled
    assert world.revision == OLD_REVISION
    assert world.fewest == replicas
    assert world.mark == str(ABORTED)


@given(replicas=REPLICAS, steps=STEPS)
def test_wait_touches_nothing(replicas: int, steps: list[str]) -> None:
    world = played(World(asked("Wait", replicas), replicas, replicas), steps)
    assert (world.fewest, world.marks, world.revision) == (replicas, set(), NEW_REVISION)


@given(policy=st.sampled_from(["Wait", "Replace", "Abort"]), replicas=REPLICAS)
def test_with_a_node_to_spare_no_policy_acts(policy: str, replicas: int) -> None:
    world = played(World(asked(policy, replicas), replicas + 1, replicas), [])
    assert world.is_settled
    assert (world.revision, world.marks, world.fewest) == (NEW_REVISION, set(), replicas)


@given(policy=st.sampled_from(["Wait", "Replace", "Abort"]), replicas=REPLICAS, steps=STEPS)
def test_a_second_look_decides_the_same(policy: str, replicas: int, steps: list[str]) -> None:
    """Also by another operator: what was decided stands on the Deployment, and nothing is written twice."""
    world = World(asked(policy, replicas), replicas, replicas)
    for step in steps:
        getattr(world, step)()
        first = world.operator()
        before = world.deployment
        assert world.operator() == first
        assert world.deployment is before
