"""Load makes it scale from 1 to 2, its end makes it scale back; the status says why, both times."""

import threading
from collections.abc import Callable, Iterator

import openai
import pytest
from world import SERVICE, Service, wait_for

SCALING = {
    "minReplicas": 1,
    "maxReplicas": 2,
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 10}},
}
LIMITS = {**SERVICE["spec"]["limits"], "maxNumSeqs": 4}
CLIENTS = 6  # more than 0.85 of the 4 slots of one replica


@pytest.fixture(scope="module")
def service(make_service: Callable[..., Service]) -> Service:
    service = make_service("load", scaling=SCALING, limits=LIMITS)
    service.wait_until("Ready", "True")
    return service


@pytest.fixture
def load(service: Service) -> Iterator[threading.Event]:
    """Clients that ask one long question after another, until the event is set; bounded all the same."""
    stop = threading.Event()
    threads = [threading.Thread(target=_ask_on, args=(service.openai(), stop)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    yield stop
    stop.set()
    for thread in threads:
        thread.join()


def _ask_on(client: openai.OpenAI, stop: threading.Event) -> None:
    for _ in range(1000):
        stream = client.completions.create(
            model=SERVICE["spec"]["model"]["name"],
            prompt="Once upon a time",
            max_tokens=400,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for _ in stream:
            if stop.is_set():
                stream.close()
                return


def test_it_follows_the_load_up_and_down(service: Service, load: threading.Event) -> None:
    up = scaled(service, "from 1 to 2 replicas")
    assert "request slots need 2 replicas" in up, up
    wait_for("2 ready replicas", lambda: service.status().get("readyReplicas") == 2, show=service.describe)
    assert service.status()["scaling"]["desiredReplicas"] == 2
    load.set()
    down = scaled(service, "from 2 to 1 replica")
    assert "would fit 1 replica" in down, down
    wait_for("1 replica again", lambda: service.status().get("replicas") == 1, show=service.describe)
    assert service.status()["scaling"]["desiredReplicas"] == 1
    assert "Paris" in service.ask("What is the capital of France?")


def scaled(service: Service, change: str) -> str:
    """The message of the event that tells of the change, and why."""
    return wait_for(
        f"the event Scaled, {change}",
        lambda: next((e.message for e in service.events() if e.reason == "Scaled" and change in e.message), None),
        show=service.describe,
    )
