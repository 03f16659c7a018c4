"""Clients that ask without a pause while something happens to the service; what became of each request."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import openai
from world import SERVICE, SLOW, Service

STRICT, USUAL = 2, 2  # clients
TOKENS = 24
LEAST = 20  # answers of each kind, for a test to mean something
LIMITS = {**SERVICE["spec"]["limits"], "maxNumSeqs": 8}
"""Of a service under this load: twice the requests that run at once."""


@dataclass
class Load:
    """Half of the clients is as strict as can be, with a connection of its own for each request and no second attempt;
    the other half is the official client as it comes, which keeps connections open.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    answers: dict[str, int] = field(default_factory=lambda: {"strict": 0, "usual": 0})
    failures: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def ask_on(self, kind: str, client: openai.OpenAI) -> None:
        """Until told to stop; bounded all the same."""
        for _ in range(10_000):
            if self.stop.is_set():
                return
            try:
                self._ask(client)
                self.answers[kind] += 1
            except Exception as e:
                when = time.monotonic() - self.began
                self.failures.append(f"{kind} after {when:.1f} s: {type(e).__name__}: {e}: {e.__cause__}")

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


@contextmanager
def under_load(service: Service) -> Iterator[Load]:
    """Clients that ask until the block ends."""
    load, usual = Load(), service.openai()
    once = httpx.Client(trust_env=False, timeout=SLOW, limits=httpx.Limits(max_keepalive_connections=0))
    service.clients.append(once)
    strict = usual.with_options(http_client=once, max_retries=0)
    kept = usual.with_options(max_retries=openai.DEFAULT_MAX_RETRIES)
    clients = [("strict", strict)] * STRICT + [("usual", kept)] * USUAL
    threads = [threading.Thread(target=load.ask_on, args=client) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.stop.set()
        for thread in threads:
            thread.join()
