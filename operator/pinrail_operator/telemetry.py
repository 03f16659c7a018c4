"""The operator's own Prometheus metrics: what it does, and how the services stand. I/O of clocks alone.

Every label's values are bounded: verbs, kinds and reasons by tables or by number, and no series names a service.
"""

import importlib.metadata
import platform
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .autoscale import Decision
from .errors import Conflict, Ending, NotLeader, Refused, Unavailable
from .metrics import Scrape
from .observed import Pod
from .types import ServiceKey

MOST_REASONS = 20
"""Series of one condition's value; reasons beyond it are counted as OTHER, since kubelets may say anything."""

OTHER = "Other"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # bounds of a reconcile's time

_VERBS = {"PATCH": "apply", "PUT": "update", "POST": "create", "DELETE": "delete"}
_KINDS = {
    "configmaps": "ConfigMap",
    "deployments": "Deployment",
    "events": "Event",
    "inferenceservices": "InferenceService",
    "leases": "Lease",
    "modelmanifests": "ModelManifest",
    "networkpolicies": "NetworkPolicy",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "pods": "Pod",
    "services": "Service",
}
_PATH = re.compile(
    r"/(?:api|apis/[^/]+)/[^/]+(?:/namespaces/[^/]+)?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?"
)
_OUTCOMES: tuple[tuple[type[Exception], str], ...] = (
    (Conflict, "conflict"),
    (Refused, "refused"),
    (Unavailable, "unavailable"),
    (Ending, "ending"),
)
Work = Callable[[ServiceKey], Awaitable[float | None]]


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the API server, as labels."""

    verb: str  # get, list, apply, update, create or delete
    kind: str  # such as Deployment; Other for what the operator has no business with
    is_status: bool  # of a status subresource

    @classmethod
    def of(cls, method: str, url: str) -> "Request":
        match = _PATH.fullmatch(urlsplit(url).path)
        if match is None:
            return cls(_VERBS.get(method, "get"), OTHER, False)
        verb = _VERBS.get(method) or ("get" if match["name"] else "list")
        return cls(verb, _KINDS.get(match["plural"], OTHER), match["sub"] == "status")


class Scraper(Protocol):
    async def scrape(self, pods: tuple[Pod, ...]) -> dict[str, Scrape]: ...
    async def fetched(self, pods: tuple[Pod, ...]) -> dict[str, float]: ...


class Queue(Protocol):
    """What is asked of the queue each time that the page is written."""

    def waiting(self) -> tuple[float, ...]: ...


@dataclass(frozen=True, slots=True)
class Standing:
    """One condition of one service."""

    type: str
    status: str
    reason: str
    since: float  # seconds since the epoch


@dataclass(slots=True, eq=False)  # a registry keeps it by identity
class Standings(Collector):
    """How many services hold each condition, and for how long: of all that this process leads."""

    is_leader: Callable[[], bool]
    clock: Callable[[], float] = time.time
    services: dict[ServiceKey, tuple[Standing, ...]] = field(default_factory=dict)

    def note(self, key: ServiceKey, status: Mapping[str, Any]) -> None:
        self.services[key] = tuple(
            Standing(c["type"], c["status"], c["reason"], _epoch(c["lastTransitionTime"]))
            for c in status.get("conditions", [])
        )

    def forget(self, key: ServiceKey) -> None:
        self.services.pop(key, None)

    def collect(self) -> Iterable[Metric]:
        labels = ["condition", "status", "reason"]
        count = GaugeMetricFamily(
            "pinrail_operator_services", "Services that hold a condition; none from a follower", labels=labels
        )
        oldest = GaugeMetricFamily(
            "pinrail_operator_condition_oldest_seconds",
            "Longest time that a service has held this condition's status, whatever its reason was before",
            labels=labels,
        )
        known = list(self.services.values()) if self.is_leader() else []  # the loop's thread may add one
        for key, since in _bounded([s for service in known for s in service]).items():
            count.add_metric(key, len(since))
            oldest.add_metric(key, max(0.0, self.clock() - min(since)))
        return (count, oldest)


def _bounded(standings: list[Standing]) -> dict[tuple[str, str, str], list[float]]:
    """Beginnings by condition, status and reason; of one status the commonest reasons, then one for the rest."""
    by_reason: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for s in standings:
        by_reason[s.type, s.status][s.reason].append(s.since)
    found: dict[tuple[str, str, str], list[float]] = {}
    for (kind, status), reasons in by_reason.items():
        ordered = sorted(reasons.items(), key=lambda r: (-len(r[1]), r[0]))
        for i, (reason, since) in enumerate(ordered):
            found.setdefault((kind, status, reason if i < MOST_REASONS else OTHER), []).extend(since)
    return found


class Telemetry:
    """All of it, on a registry of its own.

    Args:
        is_leader: Whether this process holds the Lease.
        queue: Whose length is told.
    """

    def __init__(self, is_leader: Callable[[], bool], queue: Queue) -> None:
        self.registry = CollectorRegistry()
        self.standings = Standings(is_leader)
        self._is_leader = is_leader
        self.registry.register(self.standings)
        self._count()
        self._ask(queue)

    def _count(self) -> None:
        """What is added to as it happens."""
        registry = self.registry
        self._reconciles = Counter(
            "pinrail_operator_reconciles", "Reconciles that have ended", ["outcome"], registry=registry
        )
        self._seconds = Histogram(
            "pinrail_operator_reconcile_seconds", "Time of one reconcile", buckets=SECONDS, registry=registry
        )
        self._requests = Counter(
            "pinrail_operator_api_requests",
            "Requests to the API server but watches; code is a class such as 2xx, or none where no answer came",
            ["verb", "kind", "code"],
            registry=registry,
        )
        self._writes = Counter(
            "pinrail_operator_objects_written",
            "Objects created, changed or deleted, but statuses and the Lease: none while nothing changes",
            ["kind"],
            registry=registry,
        )
        self._statuses = Counter("pinrail_operator_status_writes", "Statuses written", registry=registry)
        self._decisions = Counter(
            "pinrail_operator_scaling_decisions", "Scaling decisions, by their reason", ["reason"], registry=registry
        )
        self._scrapes = Counter(
            "pinrail_operator_engine_scrapes", "Replicas asked for their load", ["outcome"], registry=registry
        )
        self._queries = Counter(
            "pinrail_operator_prometheus_queries", "Questions to Prometheus for loads", ["outcome"], registry=registry
        )
        for outcome in ("ok", "failed"):
            self._scrapes.labels(outcome)
            self._queries.labels(outcome)
        for outcome in ("ok", "gone", "error", *(name for _, name in _OUTCOMES)):
            self._reconciles.labels(outcome)

    def _ask(self, queue: Queue) -> None:
        """What is looked at when the page is written."""
        registry = self.registry
        length = Gauge("pinrail_operator_queue_length", "Services that are due and wait", registry=registry)
        length.set_function(lambda: len(queue.waiting()))
        oldest = Gauge(
            "pinrail_operator_queue_oldest_seconds", "Time that the first of them has waited", registry=registry
        )
        oldest.set_function(lambda: max(queue.waiting(), default=0.0))
        leader = Gauge("pinrail_operator_leader", "1 where this process may write, else 0", registry=registry)
        leader.set_function(lambda: float(self._is_leader()))
        about = Gauge(
            "pinrail_operator_build_info", "Versions, as labels", ["version", "kopf", "python"], registry=registry
        )
        version = importlib.metadata.version
        about.labels(version("pinrail"), version("kopf"), platform.python_version()).set(1)

    def requested(self, method: str, url: str, status: int) -> None:
        """Called after each request, in whatever thread sent it; `status` is 0 where no answer came."""
        request = Request.of(method, url)
        self._requests.labels(request.verb, request.kind, f"{status // 100}xx" if status else "none").inc()
        if method == "GET" or not 200 <= status < 300 or request.kind == "Lease":
            return
        if request.is_status:
            self._statuses.inc()
        else:
            self._writes.labels(request.kind).inc()

    def told(self, key: ServiceKey, status: Mapping[str, Any], decision: Decision | None) -> None:
        """Called with each status that a reconcile came to, written or not."""
        self.standings.note(key, status)
        if decision is not None:
            self._decisions.labels(str(decision.reason)).inc()

    def measured(self, work: Work) -> Work:
        """The same work, counted and timed; what a follower leaves to the leader is not."""

        async def measure(key: ServiceKey) -> float | None:
            outcome, started = "error", time.perf_counter()
            try:
                again = await work(key)
                outcome = "ok" if again is not None else "gone"
                if again is None:
                    self.standings.forget(key)
                return again
            except NotLeader:
                outcome = ""
                raise
            except (Conflict, Refused, Unavailable, Ending) as e:
                outcome = next(name for kind, name in _OUTCOMES if isinstance(e, kind))
                raise
            finally:
                if outcome:
                    self._reconciles.labels(outcome).inc()
                    self._seconds.observe(time.perf_counter() - started)

        return measure

    def queried(self, outcome: str) -> None:
        """Called after each question to Prometheus: ok or failed."""
        self._queries.labels(outcome).inc()

    def counted(self, scraper: Scraper) -> Scraper:
        """The same scraper, whose answers of load are counted: an older image says nothing while it fetches."""
        return _Counted(scraper, self._scrapes)


@dataclass(frozen=True, slots=True)
class _Counted:
    scraper: Scraper
    scrapes: Counter

    async def scrape(self, pods: tuple[Pod, ...]) -> dict[str, Scrape]:
        answers = await self.scraper.scrape(pods)
        for answer in answers.values():
            self.scrapes.labels("failed" if answer.error else "ok").inc()
        return answers

    async def fetched(self, pods: tuple[Pod, ...]) -> dict[str, float]:
        return await self.scraper.fetched(pods)


def _epoch(written: str) -> float:
    """A time as Kubernetes writes it, in seconds since the epoch."""
    return datetime.strptime(written, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
