"""The Lease on a real API server: one of two leads, a new one takes over, and nobody writes without it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from pinrail_operator import leader
from pinrail_operator.leader import Leadership

pytestmark = pytest.mark.apiserver


@pytest.fixture
def http(control_plane: Any) -> Iterator[client.ApiClient]:
    made = config.new_client_from_config(str(control_plane.kubeconfig))
    yield made
    made.close()


@pytest.fixture
def candidates(http: client.ApiClient, kube: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Leadership, Leadership]:
    """Two candidates for a Lease of two seconds."""
    monkeypatch.setattr(leader, "LEASE", 2)
    monkeypatch.setattr(leader, "BELIEF", 1.0)
    monkeypatch.setattr(leader, "RETRY", 0.2)
    return tuple(Leadership.candidate(http, kube.namespace, "pinrail", name) for name in ("one", "two"))  # type: ignore[return-value]


async def until(is_true: Any, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not is_true():
            await asyncio.sleep(0.05)


async def test_one_of_two_leads_and_the_other_takes_over(candidates: tuple[Leadership, Leadership], kube: Any) -> None:
    one, two = candidates
    first = asyncio.create_task(one.run())
    await until(one.is_leader)
    second = asyncio.create_task(two.run())
    await asyncio.sleep(3)
    assert (one.is_leader(), two.is_leader()) == (True, False)
    assert kube.get("lease", "pinrail")["spec"]["holderIdentity"] == "one"
    first.cancel()  # as if the process were gone: nothing is released
    await until(lambda: not one.is_leader())
    assert not two.is_leader(), "two led while one might still have believed that it does"
    await until(two.is_leader)
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


async def test_a_released_lease_is_taken_at_once(candidates: tuple[Leadership, Leadership]) -> None:
    one, two = candidates
    first = asyncio.create_task(one.run())
    await until(one.is_leader)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await one.release()
    assert not one.is_leader()
    second = asyncio.create_task(two.run())
    await until(two.is_leader, 1.0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_without_an_api_server_nobody_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "RETRY", 0.05)
    configuration = client.Configuration(host="http://127.0.0.1:9")
    configuration.retries = False
    alone = Leadership.candidate(client.ApiClient(configuration), "default", "pinrail", str(tmp_path))
    task = asyncio.create_task(alone.run())
    await until(lambda: alone.tried_at > 0)
    assert not alone.is_leader()
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
