"""One reconcile: bring a service to what its spec asks for; safe to run at any moment, any number of times."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from pinrail_contract.metrics import LoadSample

from . import checks, fetching, quarantine, rollout, status
from .autoscale import Decision, Report
from .checks import Blocked, Blocker
from .errors import Refused, SpecError
from .events import Event, events_for, unused_event
from .memory import Memory
from .metrics import Scrape
from .observed import Observed, Pod
from .plan import Outcome, Plan, plan_for, target_revision
from .prometheus import NoServer
from .scaling_policy import MetricsSource
from .types import InferenceService, ServiceKey
from .verifier import with_verifier
from .view import View

log = logging.getLogger("pinrail.operator")

Body = Mapping[str, Any]


class Cluster(Protocol):
    """What a reconcile needs of the cluster; `cluster.Cluster` in life, a fake in tests."""

    async def service(self, key: ServiceKey) -> Body | None: ...
    async def observe(self, service: InferenceService, known: Observed | None = None) -> Observed: ...
    async def apply(self, namespace: str, plan: Plan) -> Outcome: ...
    async def write_status(self, body: Body, status: Body) -> Body: ...
    async def post(self, body: Body, event: Event) -> None: ...


class Scraper(Protocol):
    async def scrape(self, pods: tuple[Pod, ...]) -> dict[str, Scrape]: ...
    async def fetched(self, pods: tuple[Pod, ...]) -> dict[str, float]: ...


class LoadSource(Protocol):
    """Who tells loads where pods are not asked for them; `prometheus.Prometheus` in life."""

    async def loads(self, key: ServiceKey, pods: tuple[Pod, ...]) -> dict[str, Scrape]: ...


@dataclass(slots=True, kw_only=True)
class Reconciler:
    cluster: Cluster
    scraper: Scraper
    prometheus: LoadSource = field(default_factory=NoServer)
    engine_image: str  # for services that name none; may be empty
    host_caches: frozenset[str] = frozenset()  # folders of nodes that services may keep fetched models in
    namespace: str = ""  # of the operator's own pods; empty where it runs in none
    tick: float  # seconds between two looks at a service that scales, or whose pods have yet to say what they verified
    resync: float  # seconds between two looks at any other
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    memories: dict[ServiceKey, Memory] = field(default_factory=dict)
    touched: set[ServiceKey] = field(default_factory=set)  # since the last look at them began
    told: Callable[[ServiceKey, Body, Decision | None], None] = lambda *_: None
    """Called with each status and decision that a reconcile came to."""

    def touch(self, key: ServiceKey) -> None:
        """Something of a service but its Deployment and pods has changed: the next look reads all of it."""
        self.touched.add(key)

    async def reconcile(self, key: ServiceKey) -> float | None:
        """Returns the seconds until the next look, or None for a service that is gone.

        Between two whole looks, at most `resync` seconds apart, only the service, its Deployment and pods are read.
        """
        if key in self.touched:
            self.touched.remove(key)
            self.memories.setdefault(key, Memory()).known = None
        body = await self.cluster.service(key)
        if body is None or "deletionTimestamp" in body["metadata"]:
            self.memories.pop(key, None)
            return None  # owner references remove the rest
        try:
            service = InferenceService.from_body(body)
        except SpecError as e:
            await self._report(body, status.refused(body, e, body.get("status", {}), self.now()), Plan(), None)
            return self.resync
        known = self.memories.setdefault(key, Memory()).trusted(service, self.clock(), self.resync)
        observed = await self.cluster.observe(service, known)
        service = with_verifier(service, observed, self.engine_image).asked_from(self.namespace)
        image = service.engine.image or self.engine_image
        target = target_revision(service, observed, image)
        memory = await self._measure(service, observed, target)
        decision = memory.decide(service, observed, self.clock())
        blocker = checks.first_blocker(service, observed, image, self.host_caches)
        course = rollout.PROCEED
        if blocker is None and not service.paused:
            course = rollout.choose(service, observed, target, self.now())
        verdict = quarantine.judge(service, observed, memory.digests, target, memory.runtimes)
        loads = memory.loads_at(self.clock())
        plan = plan_for(service, observed, blocker, image, decision, course, loads, verdict, target)
        memory.keep(service, observed if plan.is_empty and blocker is None else None, self.clock())
        outcome = await self._apply(service, plan, decision)
        view = View(
            service=service,
            observed=quarantine.carried_out(_in_part(verdict, outcome.done), observed),
            target=target,
            blocker=_with_refusal(blocker, outcome.refused),
            is_scaled=blocker is None and outcome.is_scaled,
            decision=decision,
            digests=memory.digests,
            fetched=memory.fetched,
            runtimes=memory.runtimes,
            unread=memory.unread,
            done=outcome.done,
            course=course,
        )
        fresh = status.render(view, body.get("status", {}), self.now())
        await self._report(body, fresh, view.done, decision)
        await self._warn(body, memory, unused_event(service, observed.manifest))
        return self.tick if _is_watched(view) or status.is_awaiting(fresh) else self.resync

    async def _measure(self, service: InferenceService, observed: Observed, target: str) -> Memory:
        """Ask every ready pod, and those of `target` that fetch how far they are; remember what they say."""
        memory = self.memories.setdefault(service.key, Memory())
        answers, _ = await asyncio.gather(
            self._answers(service, observed.ready_pods),
            self._follow(memory, fetching.fetching_pods(observed, target)),
        )
        slots = {p.name: p.slots for p in observed.ready_pods}
        loads = {pod: Report(_with_slots(a.load, slots[pod]), a.age) for pod, a in answers.items() if a.load}
        digests = {p.name: p.verified for p in observed.ready_pods if p.verified}
        digests |= {pod: a.digest for pod, a in answers.items() if a.digest}
        errors = {pod: a.error for pod, a in answers.items() if a.error}
        for pod, error in errors.items() - memory.errors.items():
            log.warning("no load from %s of %s: %s", pod, service.key, error)
        memory.errors = errors
        memory.unread = {pod: a.kind for pod, a in answers.items() if a.kind}
        runtimes = {pod: a.runtime for pod, a in answers.items() if a.runtime is not None}
        memory.note(loads, digests, observed, self.clock(), runtimes)
        return memory

    async def _follow(self, memory: Memory, pods: tuple[Pod, ...]) -> None:
        """What pods that fetch say is told, and decides nothing."""
        shares = await self.scraper.fetched(pods) if pods else {}
        memory.fetched = fetching.advanced(memory.fetched, shares, pods)

    async def _answers(self, service: InferenceService, pods: tuple[Pod, ...]) -> dict[str, Scrape]:
        """What each pod verified and runs is its own to say; its load is Prometheus', where the spec has it so."""
        if service.scaling is None or service.scaling.source is MetricsSource.PODS:
            return await self.scraper.scrape(pods)
        pages, loads = await asyncio.gather(self.scraper.scrape(pods), self.prometheus.loads(service.key, pods))
        own = {pod: pages.get(pod, Scrape()) for pod in loads}
        return {pod: replace(load, digest=own[pod].digest, runtime=own[pod].runtime) for pod, load in loads.items()}

    async def _apply(self, service: InferenceService, plan: Plan, decision: Decision | None) -> Outcome:
        """Carry out the plan."""
        if plan.is_empty:
            return Outcome(plan)
        log.info("%s: %s", service.key, plan)
        if plan.scale is not None and decision is not None:
            log.info("scaling %s", _line(service, decision))
        return await self.cluster.apply(service.key.namespace, plan)

    async def _report(self, body: Body, fresh: Body, plan: Plan, decision: Decision | None) -> None:
        """Tell what changed, then write the status where it differs: a failure between the two tells it again.

        The cluster drops an event that says what an earlier one said.
        """
        previous, key = body.get("status", {}), ServiceKey(body["metadata"]["namespace"], body["metadata"]["name"])
        self.told(key, fresh, decision)
        for event in events_for(previous, fresh, plan, decision):
            await self._post(body, event)
        memory = self.memories.setdefault(key, Memory())
        if not memory.is_written(fresh, previous, self.clock()):
            memory.wrote(fresh, await self.cluster.write_status(body, fresh), self.clock())

    async def _warn(self, body: Body, memory: Memory, event: Event | None) -> None:
        """Tell of what no condition says, once in this process's life for each message."""
        said = event.message if event is not None else ""
        if event is not None and said != memory.unused:
            await self._post(body, event)
        memory.unused = said

    async def _post(self, body: Body, event: Event) -> None:
        try:
            await self.cluster.post(body, event)
        except Refused as e:  # a quota of events, say: the status is still to be told
            log.warning("event %s: %s", event.reason, e)


def _with_refusal(blocker: Blocker | None, refused: Refused | None) -> Blocker | None:
    """What the API server refuses is for a person to mend, like any other blocker, and is told with one."""
    if refused is None:
        return blocker
    message = f"{refused}; next: mend the spec, the operator's rights, or the namespace's quota and policies"
    if blocker is None:
        return Blocker(Blocked.REFUSED, message)
    return replace(blocker, message=f"{blocker.message}; besides, {message}")


def _in_part(verdict: quarantine.Verdict, done: Plan) -> quarantine.Verdict:
    """With those pods alone to be quarantined that were."""
    out = {pod["metadata"]["name"] for pod in done.quarantine}
    return replace(verdict, release=tuple(w for w in verdict.release if w.pod.name in out))


def _with_slots(load: LoadSample, slots: int) -> LoadSample:
    """vLLM's metrics do not say how many requests may run at once; what the engine was told does."""
    return load if load.max_num_seqs else replace(load, max_num_seqs=slots)


def _is_watched(view: View) -> bool:
    """Whether it is to be looked at soon, though no event may come: what takes our names is not watched."""
    ready = view.observed.ready_pods
    is_kept_out = view.blocker is not None and view.blocker.reason is Blocked.NAME_TAKEN
    is_moving = view.decision is not None or view.is_applying or is_kept_out or _waits_for_a_node(view)
    is_asked = bool(view.fetching) or view.has_unheard or any(p.name not in view.digests for p in ready)
    return is_moving or is_asked


def _waits_for_a_node(view: View) -> bool:
    """Time alone will call for something: no event tells that a pod has waited long enough."""
    return not view.is_rolled_out and any(p.unschedulable for p in view.current_pods)


def _line(service: InferenceService, decision: Decision) -> str:
    """One decision with all its inputs, as JSON that can be replayed."""
    facts = {"service": str(service.key), "replicas": decision.replicas, "reason": str(decision.reason)}
    return json.dumps(facts | {"message": decision.message, "inputs": asdict(decision.inputs)})
