"""An operator that dies before any of its writes, or reads what is no longer so: the next one comes to the same end.

What the Deployment's controller would do is written by hand here. The graph of objects at the end is compared with that
of an operator that nothing happened to.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from apiserver_documents import pin, service
from object_graph import normalised
from operator_builders import DIGEST, IMAGE, load, manifest

from pinrail_operator.api import Api
from pinrail_operator.cluster import _PATHS, Cluster
from pinrail_operator.errors import Conflict, NotLeader
from pinrail_operator.metrics import Scrape
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

READY = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
KINDS = ("Deployment", "Service", "ConfigMap", "PodDisruptionBudget", "InferenceService", "Pod")
OTHER = manifest(weights="9" * 64).digest


class Scraper:
    """Pods that are the fuller the later their name comes."""

    async def scrape(self, pods: Any) -> dict[str, Scrape]:
        return {p.name: Scrape(load("abc".index(p.name[-1]) / 4), DIGEST) for p in pods}


@dataclass(frozen=True)
class World:
    """One namespace, and whoever writes to it besides the operator."""

    api: Api
    namespace: str

    def path(self, kind: str, name: str = "") -> str:
        return _PATHS[kind].format(self.namespace) + (f"/{name}" if name else "")

    async def apply(self, document: Any) -> None:
        name = document["metadata"]["name"]
        body = document | {"metadata": document["metadata"] | {"namespace": self.namespace}}
        await self.api.apply(self.path(document["kind"], name), body, "user")

    async def ask(self, replicas: int = 2, **spec: Any) -> None:
        await self.apply(service(replicas=replicas, **spec))

    async def add_pods(self, *pods: str) -> None:
        deployment = await self.api.get(self.path("Deployment", "chat"))
        assert deployment is not None
        template = deployment["spec"]["template"]
        for name in pods:
            head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **template["metadata"]}}
            await self.apply(head | {"spec": template["spec"]})
            await self.api.merge(self.path("Pod", name) + "/status", {"status": READY}, "kubelet")

    async def roll_out(self, replicas: int) -> None:
        live = await self.api.get(self.path("Deployment", "chat"))
        assert live is not None
        generation = live["metadata"]["generation"]
        counts = {"replicas": replicas, "updatedReplicas": replicas, "observedGeneration": generation}
        await self.api.merge(self.path("Deployment", "chat") + "/status", {"status": counts}, "controller")

    async def graph(self) -> list[Any]:
        found = []
        for kind in KINDS:
            listed = await self.api.get(self.path(kind))
            assert listed is not None
            found += [{"kind": kind, **o} for o in listed["items"] if o["metadata"]["name"] != "kube-root-ca.crt"]
        return normalised(found, self.namespace)

    async def look(self, cluster: Cluster) -> None:
        """By an operator that was just started."""
        one = Reconciler(cluster=cluster, scraper=Scraper(), engine_image=IMAGE, tick=5.0, resync=300.0)
        await one.reconcile(ServiceKey(self.namespace, "chat"))

    async def settle(self) -> None:
        for _ in range(2):
            await self.look(Cluster(self.api))


async def nothing(world: World) -> None:
    await world.apply(pin())
    await world.apply(pin("9" * 64, "tiny-v2"))


async def two_serve(world: World) -> None:
    await nothing(world)
    await world.ask()
    await world.settle()
    await world.add_pods("chat-a", "chat-b")
    await world.roll_out(2)
    await world.settle()


async def three_serve(world: World) -> None:
    await two_serve(world)
    await world.ask(3)
    await world.settle()
    await world.add_pods("chat-c")
    await world.roll_out(3)
    await world.settle()


NEW = {"model": {"name": "tiny", "manifestRef": {"name": "tiny-v2"}, "digest": OTHER}}


async def half_rolled_out(world: World) -> None:
    await two_serve(world)
    await world.ask(**NEW)
    await world.settle()


async def rolled_out(world: World) -> None:
    await half_rolled_out(world)
    await world.roll_out(2)


async def delete(world: World) -> None:
    await world.api.delete(world.path("InferenceService", "chat"))


Step = Callable[[World], Any]
SCENARIOS: dict[str, tuple[Step, Step, int]] = {  # what there was, what a user does, writes that this takes at least
    "create": (nothing, World.ask, 7),
    "scale out": (two_serve, lambda w: w.ask(4), 2),
    "scale in": (three_serve, lambda w: w.ask(2), 5),
    "suspend": (two_serve, lambda w: w.ask(suspend=True), 2),
    "roll out": (two_serve, lambda w: w.ask(**NEW), 3),
    "end of a roll-out": (rolled_out, lambda w: w.roll_out(2), 2),
    "roll back": (half_rolled_out, World.ask, 2),
    "wrong pin": (two_serve, lambda w: w.ask(model=NEW["model"] | {"digest": DIGEST}), 1),
    "delete": (two_serve, delete, 0),
}


@pytest.fixture
def worlds(kube: Any, api: Api) -> Callable[[], Any]:
    """A new namespace each time."""
    numbers = count()

    async def make() -> World:
        name = f"{kube.namespace}-{next(numbers)}"
        await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return World(api, name)

    return make


async def undisturbed(world: World, before: Step, change: Step) -> list[Any]:
    await before(world)
    await change(world)
    await world.settle()
    return await world.graph()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_an_operator_that_dies_before_any_write_leaves_the_next_one_to_the_same_end(
    worlds: Callable[[], Any], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, change, least = SCENARIOS[name]
    expected = await undisturbed(await worlds(), before, change)
    for writes in count():
        world = await worlds()
        await before(world)
        await change(world)
        left = iter([True] * writes)
        dying = Cluster(replace(world.api, may_write=lambda left=left: next(left, False)))  # type: ignore[misc]
        has_died = False
        for _ in range(2):
            try:
                await world.look(dying)
            except NotLeader:
                has_died = True
                break
        await world.settle()
        assert await world.graph() == expected, f"dead after {writes} writes"
        if not has_died:
            break
    assert writes >= least
    with capsys.disabled():
        print(f"\n  T21 {name}: dead before each of {writes} writes, one end", end="", flush=True)


class Recorded:
    """The API; once it is stale, what was read before is read again."""

    def __init__(self, api: Api) -> None:
        self._api, self.answers, self.is_stale = api, dict[tuple[Any, ...], Any](), False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def get(self, path: str, **query: str) -> Any:
        key = (path, *query.items())
        if self.is_stale and key in self.answers:
            return self.answers[key]
        self.answers[key] = await self._api.get(path, **query)
        return self.answers[key]

    def forget(self, kinds: tuple[str, ...]) -> None:
        """Of these kinds, the newest is read."""
        plurals = {_PATHS[kind].rpartition("/")[2] for kind in kinds}
        self.answers = {k: v for k, v in self.answers.items() if not plurals & set(k[0].split("/"))}
        self.is_stale = True


STALE = {
    "all": (),
    "the service": ("Deployment", "Pod", "ConfigMap", "ModelManifest"),
    "what it consists of": ("InferenceService", "ModelManifest"),
}  # and what is read as it is all the same


@pytest.mark.parametrize("name", [n for n in SCENARIOS if n != "create"])
async def test_an_operator_that_reads_what_is_no_longer_so_comes_to_the_same_end(
    worlds: Callable[[], Any], name: str
) -> None:
    before, change, _ = SCENARIOS[name]
    expected = await undisturbed(await worlds(), before, change)
    for stale, fresh in STALE.items():
        world = await worlds()
        await before(world)
        recorded = Recorded(world.api)
        await world.look(Cluster(recorded))  # type: ignore[arg-type]
        await change(world)
        recorded.forget(fresh)
        for _ in range(2):
            try:
                await world.look(Cluster(recorded))  # type: ignore[arg-type]
            except Conflict:
                continue
        await world.settle()
        assert await world.graph() == expected, f"after {stale} was read as it was"
