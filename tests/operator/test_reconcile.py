"""One reconcile against a cluster made of values: what it writes, and what it leaves alone."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_builders import (
    DIGEST,
    IMAGE,
    MANIFEST_SPEC,
    body,
    live_objects,
    load,
    observed,
    pod,
    scaled,
    service,
    target,
)  # fmt: skip

from pinrail_contract.pins import ModelManifest
from pinrail_contract.runtime import Runtime
from pinrail_operator.errors import Conflict, Refused
from pinrail_operator.events import Event, EventType
from pinrail_operator.metrics import Scrape
from pinrail_operator.network_policy import operator_namespace
from pinrail_operator.observed import Observed, Pod
from pinrail_operator.plan import Outcome, Plan
from pinrail_operator.quarantine import MOST
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import InferenceService, ServiceKey

KEY = ServiceKey("team", "chat")
SETTLED = observed(live_objects(service()), (pod("chat-a"), pod("chat-b")))
GOOD = {"chat-a": Scrape(load(0.5), DIGEST), "chat-b": Scrape(load(0.5), DIGEST)}


@dataclass
class FakeCluster:
    """What there is, and what was written to it."""

    body: Mapping[str, Any] | None
    seen: Observed = field(default_factory=observed)
    refuses: Exception | None = None
    refuses_but: Plan = field(default_factory=Plan)  # what is carried out where `refuses` is a refusal
    plans: list[Plan] = field(default_factory=list)
    statuses: list[Mapping[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    takes_events: bool = True
    prunes: str = ""  # a field of the status' model that the CRD lacks

    async def service(self, _: ServiceKey) -> Mapping[str, Any] | None:
        return self.body

    async def observe(self, _: InferenceService, known: Observed | None = None) -> Observed:
        return self.seen

    async def apply(self, _: str, plan: Plan) -> Outcome:
        if isinstance(self.refuses, Refused):
            return Outcome(self.refuses_but, self.refuses, is_scaled=self.refuses_but.scale is not None)
        if self.refuses is not None:
            raise self.refuses
        self.plans.append(plan)
        return Outcome(plan)

    async def write_status(self, body: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
        self.statuses.append(status)
        model = {key: value for key, value in status.get("model", {}).items() if key != self.prunes}
        kept = {**status, "model": model} if "model" in status else status
        self.body = {**body, "status": kept}
        return kept

    async def post(self, _: Mapping[str, Any], event: Event) -> None:
        if not self.takes_events:
            raise Refused("exceeded quota: count/events")
        self.events.append(event)


@dataclass
class FakeScraper:
    answers: dict[str, Scrape] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)  # pods that fetch

    async def scrape(self, pods: tuple[Pod, ...]) -> dict[str, Scrape]:
        return {p.name: self.answers.get(p.name, Scrape(error="no answer")) for p in pods}

    async def fetched(self, pods: tuple[Pod, ...]) -> dict[str, float]:
        self.asked += [p.name for p in pods]
        return {p.name: self.shares[p.name] for p in pods if p.name in self.shares}


def reconciler(cluster: FakeCluster, answers: dict[str, Scrape] | None = None, now: float = 0.0) -> Reconciler:
    return Reconciler(
        cluster=cluster, scraper=FakeScraper(answers or {}), engine_image=IMAGE, tick=5.0, resync=300.0,
        clock=lambda: now, now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def reasons(cluster: FakeCluster) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in cluster.statuses[-1]["conditions"]}


async def test_a_service_that_is_gone_is_forgotten() -> None:
    one = reconciler(FakeCluster(None))
    assert await one.reconcile(KEY) is None
    assert one.memories == {}


async def test_a_service_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    ending = body()
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster = FakeCluster(ending)
    assert await reconciler(cluster).reconcile(KEY) is None
    assert (cluster.plans, cluster.statuses) == ([], [])


async def test_a_new_service_is_applied_and_reported() -> None:
    cluster = FakeCluster(body())
    assert await reconciler(cluster).reconcile(KEY) == 5.0
    (plan,) = cluster.plans
    assert str(plan).endswith("apply Deployment chat, scale chat to 2, apply Deployment chat")
    assert reasons(cluster)["Reconciling"] == ("True", "ReplicasStarting")


async def test_a_settled_service_is_written_once() -> None:
    cluster = FakeCluster(body(), SETTLED)
    one = reconciler(cluster, GOOD)
    for _ in range(3):
        await one.reconcile(KEY)
    assert cluster.plans == []
    assert len(cluster.statuses) == 1
    assert cluster.statuses[0]["model"] == {"digest": DIGEST, "verifiedReplicas": 2}
    assert cluster.events == [Event(EventType.NORMAL, "Serving", "verified replicas serve tiny")]


@pytest.mark.parametrize(("engine", "again"), [({"engine": {"version": "1"}}, 5.0), ({}, 300.0)], ids=["pinned", "not"])
async def test_a_replica_whose_files_were_verified_before_it_started_is_asked_again_what_it_runs(
    engine: dict[str, Any], again: float
) -> None:
    pinned = ModelManifest.from_spec({**MANIFEST_SPEC, **engine})
    asked = {"model": {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": pinned.digest}}
    revision = target(service(**asked), pinned)
    pods = tuple(pod(n, pin=pinned.digest, verified=pinned.digest, revision=revision) for n in ("chat-a", "chat-b"))
    seen = observed(live_objects(service(**asked), pinned=pinned), pods, manifest=pinned)
    one = reconciler(FakeCluster(body(**asked), seen))
    assert await one.reconcile(KEY) == again
    one.scraper = FakeScraper({p.name: Scrape(load(0.5), runtime=Runtime(engine_version="1")) for p in pods})
    assert await one.reconcile(KEY) == 300.0


async def test_a_lost_object_is_applied_again_and_looked_after() -> None:
    live = {ref: o for ref, o in live_objects(service()).items() if ref.kind != "ConfigMap"}
    cluster = FakeCluster(body(), observed(live, SETTLED.pods))
    assert await reconciler(cluster, GOOD).reconcile(KEY) == 5.0
    assert reasons(cluster)["Reconciling"] == ("True", "Applying")
    assert reasons(cluster)["Ready"] == ("True", "Serving")


async def test_a_policy_that_was_just_written_is_told_as_work_under_way() -> None:
    cluster = FakeCluster(body(security={"networkPolicy": {"enabled": True}}), SETTLED)
    one = reconciler(cluster, GOOD)
    one.namespace = "sys"
    assert await one.reconcile(KEY) == 5.0
    (plan,) = cluster.plans
    assert [operator_namespace(policy) for policy in plan.policies] == ["sys"]
    assert reasons(cluster)["Reconciling"] == ("True", "Applying")


async def test_a_missing_manifest_is_awaited_for_a_moment_and_told_once() -> None:
    cluster = FakeCluster(body(), observed(manifest=None))
    one, start = reconciler(cluster), datetime.now(UTC)
    for seconds, again in ((0, 5.0), (10, 5.0), (16, 300.0), (316, 300.0)):
        one.now = lambda at=start + timedelta(seconds=seconds): at  # type: ignore[misc]
        assert await one.reconcile(KEY) == again
        assert bool(cluster.events) is (seconds > 10)
    assert cluster.plans == []
    assert reasons(cluster)["Stalled"] == ("True", "ManifestMissing")
    assert [e.reason for e in cluster.events] == ["ManifestMissing"]
    assert cluster.events[0].type is EventType.WARNING


async def test_a_spec_that_cannot_be_read_is_reported_by_field() -> None:
    cluster = FakeCluster(body(limits={"maxNumSeqs": "many"}), SETTLED)
    assert await reconciler(cluster).reconcile(KEY) == 300.0
    assert reasons(cluster)["Stalled"] == ("True", "InvalidSpec")
    assert "spec.limits.maxNumSeqs: got 'many'" in cluster.events[0].message
    assert cluster.plans == []


async def test_what_the_api_server_refuses_is_reported_in_its_words() -> None:
    cluster = FakeCluster(body(), refuses=Refused("the API server refuses chat: affinity is wrong"))
    await reconciler(cluster).reconcile(KEY)
    assert reasons(cluster)["Stalled"] == ("True", "Refused")
    assert "affinity is wrong" in cluster.events[0].message


async def test_a_mark_that_is_refused_for_ever_is_told_once_and_tried_no_more_often_than_other_writes() -> None:
    apart = tuple(pod(f"gone-{i}", is_quarantined=True) for i in range(MOST))
    cluster = FakeCluster(body(), observed(live_objects(service()), SETTLED.pods, quarantined=apart))
    cluster.refuses = Refused("label pinrail.dev/serving of pod chat-b: no pods")
    other = Scrape(load(0.5), "sha256:" + "9" * 64)
    one = reconciler(cluster, GOOD | {"chat-b": other})
    for _ in range(3):
        assert await one.reconcile(KEY) == 300.0
    assert len(cluster.statuses) == 1
    assert reasons(cluster)["Stalled"] == ("True", "Refused")
    assert [e.reason for e in cluster.events] == ["Refused"]
    assert "label pinrail.dev/serving of pod chat-b: no pods" in cluster.events[0].message


async def test_what_is_refused_beside_a_blocker_is_told_with_it() -> None:
    cluster = FakeCluster(body(), observed(live_objects(service()), SETTLED.pods, manifest_problem="it is no list",
                                           manifest=None), refuses=Refused("no pods"))  # fmt: skip
    await reconciler(cluster, GOOD | {"chat-b": Scrape(load(0.5), "sha256:" + "9" * 64)}).reconcile(KEY)
    assert reasons(cluster)["Stalled"] == ("True", "ManifestInvalid")
    assert "it is no list" in message(cluster, "Stalled")
    assert "; besides, no pods; next: " in message(cluster, "Stalled")


async def test_a_scaling_that_was_refused_is_not_told_as_done() -> None:
    seen = observed(live_objects(scaled(), replicas=2), (pod("chat-a"), pod("chat-b")))
    cluster = FakeCluster(body(replicas=None, scaling={"maxReplicas": 4}), seen, refuses=Refused("exceeded quota"))
    full = Scrape(load(1.0), DIGEST)
    await reconciler(cluster, {"chat-a": full, "chat-b": full}).reconcile(KEY)
    assert [e.reason for e in cluster.events] == ["Refused"]


async def test_a_scaling_beside_something_refused_is_told_as_done() -> None:
    """A policy that the operator may not write, say: the service is scaled all the same, look after look."""
    full = Scrape(load(1.0), DIGEST)
    seen = observed(live_objects(scaled(), replicas=2), (pod("chat-a"), pod("chat-b")))
    cluster = FakeCluster(body(replicas=None, scaling={"maxReplicas": 4}), seen, refuses=Refused("no policies"))
    cluster.refuses_but = Plan(scale={"metadata": {"name": "chat"}, "spec": {"replicas": 3}})
    await reconciler(cluster, {"chat-a": full, "chat-b": full}).reconcile(KEY)
    assert [e.reason for e in cluster.events] == ["Refused", "Scaled"]
    assert cluster.statuses[-1]["scaling"]["lastScale"]["to"] == 3
    assert reasons(cluster)["ScalingActive"] == ("True", "CacheDemand")
    assert (reasons(cluster)["Stalled"], message(cluster, "Stalled")[:11]) == (("True", "Refused"), "no policies")


async def test_a_quarantine_beside_something_refused_is_told_as_done() -> None:
    wrong = Scrape(load(0.5), "sha256:" + "9" * 64)
    whole = FakeCluster(body(), SETTLED)
    await reconciler(whole, GOOD | {"chat-b": wrong}).reconcile(KEY)
    cluster = FakeCluster(body(), SETTLED, refuses=Refused("no policies"))
    cluster.refuses_but = Plan(quarantine=whole.plans[0].quarantine)
    await reconciler(cluster, GOOD | {"chat-b": wrong}).reconcile(KEY)
    assert [e.reason for e in cluster.events] == ["Refused", "Quarantined"]
    assert cluster.statuses[-1]["readyReplicas"] == 1
    cluster = FakeCluster(body(), SETTLED, refuses=Refused("no pods"))
    await reconciler(cluster, GOOD | {"chat-b": wrong}).reconcile(KEY)
    assert [e.reason for e in cluster.events] == ["Refused"]
    assert cluster.statuses[-1]["readyReplicas"] == 2, "it was not quarantined"


async def test_an_event_that_is_refused_does_not_keep_the_status_from_being_told() -> None:
    cluster = FakeCluster(body(), observed(manifest_problem="it is no list", manifest=None), takes_events=False)
    await reconciler(cluster).reconcile(KEY)
    assert reasons(cluster)["Stalled"] == ("True", "ManifestInvalid")


async def test_a_status_of_which_the_crd_lacks_a_field_is_written_once_an_hour() -> None:
    cluster = FakeCluster(body(), SETTLED, prunes="verifiedReplicas")
    one, written = reconciler(cluster, GOOD), []
    for seconds in (0, 5, 3599.9, 3600, 3605):
        one.clock = lambda at=seconds: at  # type: ignore[misc]
        await one.reconcile(KEY)
        written.append(len(cluster.statuses))
    assert written == [1, 1, 1, 2, 2]
    assert len(cluster.events) == 1


async def test_a_status_of_which_the_crd_lacks_a_field_is_written_when_it_changes_or_somebody_changed_it() -> None:
    cluster = FakeCluster(body(), SETTLED, prunes="verifiedReplicas")
    one = reconciler(cluster, GOOD)
    await one.reconcile(KEY)
    cluster.seen = observed(live_objects(service()), (pod("chat-a"), pod("chat-b", is_ready=False)))
    await one.reconcile(KEY)
    assert [s["readyReplicas"] for s in cluster.statuses] == [2, 1]
    assert cluster.body is not None
    cluster.body = {**cluster.body, "status": {**cluster.body["status"], "readyReplicas": 7}}
    await one.reconcile(KEY)
    assert [s["readyReplicas"] for s in cluster.statuses] == [2, 1, 1]


async def test_a_service_whose_name_is_taken_is_looked_at_soon() -> None:
    live = {
        ref: {**o, "metadata": {**o["metadata"], "ownerReferences": []}} for ref, o in live_objects(service()).items()
    }
    cluster = FakeCluster(body(), observed(live))
    assert await reconciler(cluster).reconcile(KEY) == 5.0
    assert reasons(cluster)["Stalled"] == ("True", "NameTaken")


async def test_a_conflict_is_left_to_the_queue() -> None:
    with pytest.raises(Conflict):
        await reconciler(FakeCluster(body(), refuses=Conflict("x"))).reconcile(KEY)


async def test_load_scales_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    asked = body(replicas=None, scaling={"maxReplicas": 4})
    seen = observed(live_objects(scaled(), replicas=2), (pod("chat-a"), pod("chat-b")))
    cluster = FakeCluster(asked, seen)
    full = Scrape(load(1.0), DIGEST)
    with caplog.at_level(logging.INFO, "pinrail.operator"):
        assert await reconciler(cluster, {"chat-a": full, "chat-b": full}).reconcile(KEY) == 5.0
    (plan,) = cluster.plans
    assert plan.apply == ()
    assert plan.scale is not None
    assert plan.scale["spec"] == {"replicas": 3}
    assert [e.reason for e in cluster.events] == ["Serving", "Scaled"]
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("scaling ")]
    facts = json.loads(line.removeprefix("scaling "))
    assert (facts["replicas"], facts["reason"], facts["inputs"]["demand_blocks"]) == (3, "CacheDemand", 200.0)


async def test_silent_pods_keep_what_they_said_until_it_is_stale() -> None:
    asked = body(replicas=None, scaling={"maxReplicas": 4})
    seen = observed(live_objects(scaled(), replicas=2), (pod("chat-a"), pod("chat-b")))
    cluster = FakeCluster(asked, seen)
    one = reconciler(cluster, GOOD)
    await one.reconcile(KEY)
    one.scraper = FakeScraper()
    one.clock = lambda: 30.0
    await one.reconcile(KEY)
    assert cluster.statuses[-1]["scaling"]["reporting"] == 2
    one.clock = lambda: 30.1
    await one.reconcile(KEY)
    assert cluster.statuses[-1]["scaling"]["reporting"] == 0
    assert reasons(cluster)["ScalingActive"] == ("False", "NoMetrics")
    assert reasons(cluster)["Ready"] == ("True", "Serving")


@dataclass
class FakePrometheus:
    answers: dict[str, Scrape] = field(default_factory=dict)
    asked: list[ServiceKey] = field(default_factory=list)

    async def loads(self, key: ServiceKey, pods: tuple[Pod, ...]) -> dict[str, Scrape]:
        self.asked.append(key)
        return {p.name: self.answers.get(p.name, Scrape(error="no series")) for p in pods}


@pytest.mark.parametrize("scaling", [{}, {"metrics": {"source": "Pods"}}, None], ids=["default", "Pods", "fixed"])
async def test_a_service_that_did_not_ask_for_prometheus_makes_no_query(scaling: Any) -> None:
    spec = {"scaling": None} if scaling is None else {"replicas": None, "scaling": {"maxReplicas": 4, **scaling}}
    cluster = FakeCluster(body(**spec), SETTLED)
    one = reconciler(cluster, GOOD)
    one.prometheus = FakePrometheus()
    await one.reconcile(KEY)
    assert one.prometheus.asked == []
    assert cluster.statuses[-1].get("scaling", {}).get("reporting", 2) == 2


async def test_prometheus_tells_loads_and_pods_what_they_verified() -> None:
    asked = body(replicas=None, scaling={"maxReplicas": 4, "metrics": {"source": "Prometheus"}})
    seen = observed(live_objects(scaled(), replicas=2), (pod("chat-a"), pod("chat-b")))
    cluster = FakeCluster(asked, seen)
    one = reconciler(cluster, {"chat-a": Scrape(load(0.0), DIGEST), "chat-b": Scrape(None, DIGEST, error="no load")})
    full = Scrape(load(1.0), "sha256:" + "0" * 64, age=20.0)
    one.prometheus = FakePrometheus({"chat-a": full, "chat-b": full})
    await one.reconcile(KEY)
    assert cluster.statuses[-1]["model"]["verifiedReplicas"] == 2
    assert cluster.statuses[-1]["scaling"]["demandBlocks"] == 200
    assert one.memories[KEY].loads["chat-a"] == (load(1.0), -20.0)


async def test_a_load_of_prometheus_is_stale_by_the_age_of_its_scrape() -> None:
    asked = body(replicas=None, scaling={"maxReplicas": 4, "metrics": {"source": "Prometheus"}})
    seen = observed(live_objects(scaled(), replicas=2), (pod("chat-a"), pod("chat-b")))
    cluster = FakeCluster(asked, seen)
    one = reconciler(cluster, GOOD)
    one.prometheus = FakePrometheus({"chat-a": Scrape(load(0.0), age=30.0), "chat-b": Scrape(load(0.0), age=30.1)})
    await one.reconcile(KEY)
    assert cluster.statuses[-1]["scaling"]["reporting"] == 1
    assert reasons(cluster)["ScalingActive"] == ("False", "MetricsIncomplete")


async def test_why_a_pod_was_not_read_is_left_to_the_log_since_it_holds_addresses_that_change() -> None:
    seen = observed(live_objects(scaled(), replicas=2), (pod("chat-a"), pod("chat-b")))
    cluster = FakeCluster(body(replicas=None, scaling={"maxReplicas": 4}), seen)
    await reconciler(cluster).reconcile(KEY)
    (told,) = [c["message"] for c in cluster.statuses[-1]["conditions"] if c["type"] == "ScalingActive"]
    assert told == "no ready replica reports its load: nothing is scaled"


async def test_a_pod_that_has_not_said_what_it_verified_is_asked_again_soon() -> None:
    assert await reconciler(FakeCluster(body(), SETTLED)).reconcile(KEY) == 5.0
    assert await reconciler(FakeCluster(body(), SETTLED), GOOD).reconcile(KEY) == 300.0


async def test_a_silent_pod_is_logged_when_it_falls_silent_alone(caplog: pytest.LogCaptureFixture) -> None:
    one = reconciler(FakeCluster(body(), SETTLED))
    for _ in range(3):
        await one.reconcile(KEY)
    assert len([r for r in caplog.records if "no answer" in r.getMessage()]) == 2


async def test_pods_that_are_gone_are_forgotten() -> None:
    cluster = FakeCluster(body(), SETTLED)
    one = reconciler(cluster, GOOD)
    await one.reconcile(KEY)
    cluster.seen = observed(live_objects(service()), (pod("chat-a"),))
    await one.reconcile(KEY)
    memory = one.memories[KEY]
    assert (set(memory.loads), set(memory.digests)) == ({"chat-a"}, {"chat-a"})


async def test_what_was_added_a_moment_ago_is_counted_at_the_next_look() -> None:
    asked = body(replicas=None, scaling={"maxReplicas": 4, "behavior": {
        "scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}}})  # fmt: skip
    service = InferenceService.from_body(asked)
    cluster = FakeCluster(asked, observed(live_objects(service, replicas=1), (pod("chat-a"),)))
    one = reconciler(cluster, {"chat-a": Scrape(load(1.0), DIGEST), "chat-b": Scrape(load(1.0), DIGEST)})
    await one.reconcile(KEY)
    assert cluster.plans[-1].scale is not None
    cluster.seen = observed(live_objects(service, replicas=2), (pod("chat-a"), pod("chat-b")))
    one.clock = lambda: 5.0
    await one.reconcile(KEY)
    assert reasons(cluster)["ScalingActive"] == ("True", "ScaleUpLimit")


def message(cluster: FakeCluster, kind: str) -> str:
    return str({c["type"]: c["message"] for c in cluster.statuses[-1]["conditions"]}[kind])


def fetching(*names: str, **changes: Any) -> tuple[Pod, ...]:
    return tuple(pod(name, is_ready=False, is_fetching=True, **changes) for name in names)


async def test_a_pod_that_fetches_is_looked_at_again_soon_and_told_of_by_tenths() -> None:
    """At most eleven messages for one pod, whatever it says: none goes back, and silence takes nothing away."""
    asked = service(replicas=1)
    cluster = FakeCluster(body(replicas=1), observed(live_objects(asked, 1), fetching("chat-a")))
    one, scraper = reconciler(cluster), FakeScraper()
    one.scraper = scraper
    assert await one.reconcile(KEY) == 5.0
    for hundredths in range(101):
        for share in ({"chat-a": hundredths / 100}, {"chat-a": 0.05}, {}):
            scraper.shares = share
            assert await one.reconcile(KEY) == 5.0
    told = [{c["type"]: c["message"] for c in s["conditions"]}["WorkloadReady"] for s in cluster.statuses]
    start = "0 of 1 replica is ready; pod chat-a is fetching its model"
    checking = start.replace("fetching", "fetching or checking")
    assert told == [checking, *(f"{start}: {tenths * 10} % of 271 MB" for tenths in range(11))]
    assert len(scraper.asked) == 304, "one question a look"
    assert reasons(cluster)["Reconciling"] == ("True", "ReplicasStarting")


async def test_only_fetches_of_the_wanted_revision_are_asked_about() -> None:
    pods = (*fetching("chat-a"), *fetching("chat-old", revision="old"), pod("chat-b"))
    one = reconciler(FakeCluster(body(), observed(live_objects(service()), pods)), GOOD)
    one.scraper = scraper = FakeScraper(GOOD, {"chat-old": 0.9})
    await one.reconcile(KEY)
    assert scraper.asked == ["chat-a"]
    assert one.memories[KEY].fetched == {}


async def test_what_a_pod_fetched_is_forgotten_when_it_no_longer_fetches() -> None:
    cluster = FakeCluster(body(), observed(live_objects(service()), fetching("chat-a", "chat-b")))
    one = reconciler(cluster)
    one.scraper = FakeScraper(shares={"chat-a": 0.4, "chat-b": 0.95})
    await one.reconcile(KEY)
    assert message(cluster, "WorkloadReady").endswith(
        "2 pods are fetching the model: the slowest fetch has 40 % of 271 MB"
    )
    cluster.seen = observed(live_objects(service()), (pod("chat-a", is_ready=False), *fetching("chat-b")))
    await one.reconcile(KEY)
    assert message(cluster, "WorkloadReady").endswith("pod chat-b is fetching its model: 90 % of 271 MB")
    assert one.memories[KEY].fetched == {"chat-b": 9}


async def test_pages_of_a_fetch_are_no_load_and_scale_nothing() -> None:
    asked = body(replicas=None, scaling={"maxReplicas": 4})
    live, ready = live_objects(scaled(), replicas=2), pod("chat-a")
    decided = []
    for other in (pod("chat-b", is_ready=False), *fetching("chat-b", revision=target(scaled()))):
        one = reconciler(FakeCluster(asked, observed(live, (ready, other))))
        one.scraper = FakeScraper({"chat-a": Scrape(load(1.0), DIGEST)}, {"chat-b": 0.5})
        await one.reconcile(KEY)
        decided.append(one.memories[KEY].last)
        assert set(one.memories[KEY].loads) == {"chat-a"}
    assert one.memories[KEY].fetched == {"chat-b": 5}
    assert decided[0] == decided[1]


def with_token(**spec: Any) -> dict[str, Any]:
    token = {"tokenSecretRef": {"name": "hub", "key": "token"}}
    return body(model={**body()["spec"]["model"], **token}, **spec)


async def test_a_field_without_effect_is_told_once_and_blocks_nothing() -> None:
    cluster = FakeCluster(with_token(), SETTLED)
    one = reconciler(cluster, GOOD)
    for _ in range(3):
        assert await one.reconcile(KEY) == 300.0
    assert [e.reason for e in cluster.events] == ["Serving", "FieldUnused"]
    assert reasons(cluster)["Ready"] == ("True", "Serving")
    assert len(cluster.statuses) == 1
    cluster.body = body(cluster.statuses[-1])
    await one.reconcile(KEY)
    cluster.body = with_token() | {"status": cluster.statuses[-1]}
    await one.reconcile(KEY)
    assert [e.reason for e in cluster.events].count("FieldUnused") == 2, "it was taken away, and came back"


async def test_a_warning_that_is_refused_does_not_fail_the_look() -> None:
    cluster = FakeCluster(with_token(), SETTLED, takes_events=False)
    assert await reconciler(cluster, GOOD).reconcile(KEY) == 300.0
