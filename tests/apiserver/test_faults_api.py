"""An API server that fails, and watches that say nothing: the operator goes on by itself once they are well again.

PINRAIL_FAULTS=full lasts as long as outages do; else each fault is as short as shows the same.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from apiserver_documents import pin, service
from faults_proxy import Fault, Proxy, all_is_well, everything, status_writes
from operator_process import Process, until

from pinrail_operator import names

pytestmark = pytest.mark.apiserver

IS_FULL = os.environ.get("PINRAIL_FAULTS") == "full"
OUTAGE = 120.0 if IS_FULL else 4.0  # seconds of 503
REFUSAL = 20.0 if IS_FULL else 1.5  # seconds of each other code
RESYNC = 300.0 if IS_FULL else 3.0  # seconds
RECOVERY = (
    40.0 if IS_FULL else 15.0
)  # seconds: two of the longest back-off that an outage leads to, or of resync and start
WATCHED = 6  # services, manifests, and four kinds of what they consist of
NAMES = ("one", "two", "three")


@dataclass
class World:
    """An operator behind a proxy, and three services that people edit past it."""

    kube: Any
    proxy: Proxy
    operator: Process

    def edit(self, replicas: int) -> None:
        for name in NAMES:
            self.kube.apply(service(replicas=replicas) | {"metadata": {"name": name}})

    def is_reconciled(self, replicas: int) -> bool:
        """Whether each service's Deployment and status follow the newest spec."""
        made = self.kube.get("deployments", "-l", names.SERVICE)["items"]
        deployments = {d["metadata"]["name"]: d["spec"]["replicas"] for d in made}
        seen = [
            s.get("status", {}).get("observedGeneration", 0) >= s["metadata"]["generation"]
            for s in self.kube.get("infs")["items"]
        ]
        return all(seen) and deployments == dict.fromkeys(NAMES, replicas)

    def seconds_until(self, replicas: int, what: str, at_most: float) -> float:
        began = time.monotonic()
        until(lambda: self.is_reconciled(replicas), what, at_most)
        return time.monotonic() - began


@pytest.fixture
def resync() -> float:
    """Seconds between two looks at a service of which nothing was heard."""
    return RESYNC


@pytest.fixture
def world(kube: Any, proxy: tuple[Proxy, Path], start: Callable[..., Process], resync: float) -> World:
    operator = start(proxy[1], PINRAIL_RESYNC_SECONDS=str(resync))
    kube.apply(pin())
    made = World(kube, proxy[0], operator)
    made.edit(1)
    until(lambda: made.is_reconciled(1), "three services")
    return made


def report(capsys: pytest.CaptureFixture[str], line: str) -> None:
    with capsys.disabled():
        print(f"\n  {line}", end="", flush=True)


def test_after_any_failure_of_the_api_server_every_service_reconciles_again_without_a_restart(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    faults: list[tuple[str, Fault, float]] = [("503", everything(503), OUTAGE)]
    faults += [(f"{code} to statuses", status_writes(code), REFUSAL) for code in (422, 409, 413, 401, 403)]
    figures = []
    for replicas, (name, fault, seconds) in enumerate(faults, start=2):
        failed = world.proxy.failed
        world.proxy.fault = fault
        world.edit(replicas)
        time.sleep(seconds)
        assert world.proxy.failed > failed, f"{name}: the fault met nobody"
        assert not world.is_reconciled(replicas), f"{name}: nothing was held up"
        world.proxy.fault = all_is_well
        figures.append(
            f"{name} for {seconds:g} s: {world.seconds_until(replicas, f'recovery from {name}', RECOVERY):.1f} s"
        )
    assert world.operator.child.poll() is None
    report(capsys, f"T1 recovery after {'; '.join(figures)}")


def test_an_edit_takes_effect_though_every_watch_is_deaf(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """By the resync, or after 70 s by a watch that is opened anew, whichever is sooner."""
    assert world.proxy.deafen() >= WATCHED
    world.edit(2)
    took = world.seconds_until(2, "the edit", min(90.0, RESYNC + 10.0))
    assert world.operator.health("livez")[0] == 200
    report(capsys, f"T2 deaf watches: an edit took {took:.1f} s, resync {RESYNC:g} s")


def test_a_lost_event_is_made_good_by_the_resync(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.proxy.to_drop = lambda event: event["object"]["kind"] == "InferenceService"
    world.edit(2)
    took = world.seconds_until(2, "the edit", RESYNC + 10.0)
    assert world.proxy.dropped >= 3
    report(capsys, f"T2 lost events: an edit took {took:.1f} s, resync {RESYNC:g} s")


@pytest.mark.parametrize("resync", [300.0])
def test_watches_that_end_with_an_error_are_opened_again(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """410: the version to go on from is forgotten. The others an API server says while it starts or is overloaded."""
    world.operator.may_trace = True  # Kopf says at length what ended it
    figures = []
    for replicas, code in enumerate((410, 429, 500), start=2):
        assert world.proxy.say(code) >= 1
        until(lambda: world.proxy.streams >= WATCHED, "new watches", 15)
        world.edit(replicas)
        figures.append(f"{code}: {world.seconds_until(replicas, f'the edit after {code}', 15.0):.1f} s")
    assert world.operator.child.poll() is None, world.operator.log.read_text()[-2000:]
    report(capsys, f"T2 edits after watches ended with {', '.join(figures)}")
