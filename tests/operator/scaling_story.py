"""A service of three idle replicas that may lose two, and an operator whose clock a test turns.

It begins with half of a quiet window, then something is wrong for a minute, then all is well again.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from operator_builders import DIGEST, IMAGE, body, live_objects, observed, pod, target

from pinrail_operator.events import Event
from pinrail_operator.metrics import Scrape
from pinrail_operator.observed import Observed, Pod
from pinrail_operator.plan import Outcome, Plan
from pinrail_operator.reconcile import LoadSource, Reconciler
from pinrail_operator.types import InferenceService, ServiceKey

NAMES = ("chat-a", "chat-b", "chat-c")
TICK, STALE, WINDOW, WRONG = 5, 10, 40, 60  # seconds

SCALING = {
    "maxReplicas": 4,
    "metrics": {"source": "Prometheus", "staleAfterSeconds": STALE},
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": WINDOW}},
}


@dataclass(slots=True)
class ThreeReplicas:
    """A cluster that holds the service, and takes what is asked of it."""

    key: ServiceKey
    replicas: int = 3
    status: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        made = body(status=self.status, replicas=None, scaling=SCALING)
        return {**made, "metadata": {**made["metadata"], "namespace": self.key.namespace, "name": self.key.name}}

    async def service(self, _: ServiceKey) -> Mapping[str, Any]:
        return self.body()

    async def observe(self, _: InferenceService, known: Observed | None = None) -> Observed:
        asked = InferenceService.from_body(self.body())
        ready = tuple(pod(name, verified=DIGEST, revision=target(asked)) for name in NAMES[: self.replicas])
        return observed(live_objects(asked, replicas=self.replicas), ready)

    async def apply(self, _: str, plan: Plan) -> Outcome:
        if plan.scale is not None:
            self.replicas = plan.scale["spec"]["replicas"]
        return Outcome(plan)

    async def write_status(self, _: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
        self.status = status
        return status

    async def post(self, _: Mapping[str, Any], event: Event) -> None:
        pass


class Verified:
    """Pods that say what they verified, and of their load nothing that may count."""

    async def scrape(self, pods: tuple[Pod, ...]) -> dict[str, Scrape]:
        return {p.name: Scrape(digest=DIGEST) for p in pods}


async def at_once() -> None:
    """A source whose queries end before they are waited for."""


@dataclass
class Story:
    """What an operator made of it. The source's clock has to be `clock`."""

    key: ServiceKey = field(default_factory=lambda: ServiceKey("team", "chat"))
    now: float = 1000.0
    settled: Callable[[], Awaitable[None]] = at_once  # a tick is long enough for a query to end
    told: set[tuple[str, str]] = field(default_factory=set)  # reason and message of ScalingActive while it was wrong

    def __post_init__(self) -> None:
        self.cluster = ThreeReplicas(self.key)

    def clock(self) -> float:
        return self.now

    def with_loads_from(self, source: LoadSource) -> "Story":
        self.operator = Reconciler(
            cluster=self.cluster, scraper=Verified(), prometheus=source, engine_image=IMAGE, tick=TICK, resync=300.0,
            clock=self.clock, now=lambda: datetime.fromtimestamp(self.now, UTC),
        )  # fmt: skip
        return self

    async def look(self) -> dict[str, Any]:
        """One tick later: the condition ScalingActive."""
        self.now += TICK
        await self.operator.reconcile(self.key)
        await self.settled()
        return next(c for c in self.cluster.status["conditions"] if c["type"] == "ScalingActive")

    async def begin(self) -> None:
        """Half a window, in which fewer would do."""
        for _ in range(WINDOW // 2 // TICK):
            condition = await self.look()
            assert (condition["status"], condition["reason"]) == ("True", "StabilizingDown"), condition

    async def be_wrong(self) -> None:
        for second in range(0, WRONG, TICK):
            condition = await self.look()
            assert self.cluster.replicas == 3, f"removed after {second} s: {condition}"
            if second > STALE + TICK:
                assert condition["status"] == "False", condition
                self.told.add((condition["reason"], condition["message"].partition("; ")[2]))

    async def recover(self) -> None:
        """The whole window again, and then the replicas that nobody needs go."""
        since = self.now + TICK
        while self.cluster.replicas == 3:
            assert self.now < since + 2 * WINDOW, "nothing was removed, though all is well"
            await self.look()
        assert self.now - since >= WINDOW, f"removed {self.now - since:.0f} s after all was well"
