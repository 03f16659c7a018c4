"""New pods for old ones, and fewer of them, while clients ask without a pause: each request gets its whole answer.

One half of the clients is as strict as can be, with a connection of its own for each request and no second attempt; the
other half is the official client as it comes, which keeps connections open.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import openai
import pytest
from world import SERVICE, SLOW, Service, wait_for

STRICT, USUAL = 2, 2  # clients
TOKENS = 24
LEAST = 20  # answers of each kind, for the test to mean something
LIMITS = {**SERVICE["spec"]["limits"], "maxNumSeqs": 8}


@dataclass
class Load:
    """What became of the requests."""

    stop: threading.Event = field(default_factory=threading.Event)
    answers: dict[str, int] = field(default_factory=lambda: {"strict": 0, "usual": 0})
    failures: list[str] = field(default_factory=list)

    def ask_on(self, kind: str, client: openai.OpenAI) -> None:
        """Until told to stop; bounded all the same."""
        for _ in range(10_000):
            if self.stop.is_set():
                return
            try:
                self._ask(client)
                self.answers[kind] += 1
            except Exception as e:
                self.failures.append(f"{kind}: {type(e).__name__}: {e}")

    def _ask(self, client: openai.OpenAI) -> None:
        stream = client.completions.create(
            model=SERVICE["spec"]["model"]["name"],
            prompt="Once upon a time",
            max_tokens=TOKENS,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
        assert chunks[-1].usage is not None, "the stream broke off"
        assert chunks[-1].usage.completion_tokens == TOKENS


@pytest.fixture(scope="module")
def service(make_service: Callable[..., Service]) -> Service:
    service = make_service("steady", scaling=None, replicas=2, limits=LIMITS)
    service.wait_until("Ready", "True")
    wait_for("2 ready replicas", lambda: service.status().get("readyReplicas") == 2, show=service.describe)
    return service


@pytest.fixture
def load(service: Service) -> Iterator[Load]:
    load, usual = Load(), service.openai()
    once = httpx.Client(trust_env=False, timeout=SLOW, limits=httpx.Limits(max_keepalive_connections=0))
    service.clients.append(once)
    strict = usual.with_options(http_client=once, max_retries=0)
    kept = usual.with_options(max_retries=openai.DEFAULT_MAX_RETRIES)
    clients = [("strict", strict)] * STRICT + [("usual", kept)] * USUAL
    threads = [threading.Thread(target=load.ask_on, args=client) for client in clients]
    for thread in threads:
        thread.start()
    yield load
    load.stop.set()
    for thread in threads:
        thread.join()


def test_every_request_is_answered_through_a_roll_out_and_a_scale_in(service: Service, load: Load) -> None:
    before = {pod.metadata.name for pod in service.pods()}
    service.patch({"engine": {"env": [{"name": "GREETING", "value": "hello"}]}})
    service.wait_until("RolloutComplete", "True")
    wait_for("the old pods' end", lambda: not before & {p.metadata.name for p in service.pods()}, show=service.describe)
    service.patch({"replicas": 1})
    wait_for("one pod", lambda: len(service.pods()) == 1, show=service.describe)
    load.stop.set()
    assert load.failures == [], f"after {load.answers}"
    assert min(load.answers.values()) >= LEAST, load.answers
