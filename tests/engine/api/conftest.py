"""A real server on 127.0.0.1 around the fake engine, and the clients that talk to it."""

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
import uvicorn

sys.path.insert(0, str(Path(__file__).parent))  # `fake_engine`, which a child process imports too

from fake_engine import WAIT, FakeEngine, pipeline

from pinrail_contract.runtime import Runtime
from pinrail_engine.api.app import ServerInfo, create_app
from pinrail_engine.api.server import uvicorn_config
from pinrail_engine.core.types import Engine
from pinrail_engine.text.pipeline import TextPipeline

INFO = ServerInfo(
    model_name="tiny",
    manifest_digest="sha256:" + "a" * 64,
    verification="Verified",
    mismatches=(),
    created=1700000000,
    runtime=Runtime(engine_version="0.1.0", backend="native", instructions="avx2", weight_dtype="int8"),
)


@pytest.fixture(scope="session")
def text() -> TextPipeline:
    return pipeline()


class Switch:
    """Stands in for whichever engine the running test has: starting a server for each test takes too long."""

    engine: FakeEngine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@pytest.fixture(scope="session")
def server(text: TextPipeline) -> Iterator[tuple[Switch, str]]:
    switch = Switch()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn_config(create_app(cast(Engine, switch), text, INFO)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield switch, f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(WAIT)
        assert not thread.is_alive()


@pytest.fixture
def serving(server: tuple[Switch, str]) -> Callable[[FakeEngine], str]:
    """Serves an engine; returns the base address."""

    def start(engine: FakeEngine) -> str:
        switch, address = server
        switch.engine = engine
        return address

    return start


@pytest.fixture(scope="session")
def clients(server: tuple[Switch, str]) -> Iterator[tuple[httpx.Client, openai.OpenAI]]:
    _, address = server
    with (
        httpx.Client(base_url=address, timeout=WAIT) as http,
        openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0, timeout=WAIT) as client,
    ):
        yield http, client


@pytest.fixture
def http(
    serving: Callable[[FakeEngine], str], clients: tuple[httpx.Client, openai.OpenAI]
) -> Callable[[FakeEngine], httpx.Client]:
    return lambda engine: (serving(engine), clients[0])[1]


@pytest.fixture
def client(
    serving: Callable[[FakeEngine], str], clients: tuple[httpx.Client, openai.OpenAI]
) -> Callable[[FakeEngine], openai.OpenAI]:
    return lambda engine: (serving(engine), clients[1])[1]
