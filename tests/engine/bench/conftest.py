"""A server that answers completions as the running test says, on 127.0.0.1; modules that several files import."""

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

sys.path.insert(0, str(Path(__file__).parent))  # `fake_server`, `tiny_model`

from fake_server import WAIT, Server


@pytest.fixture(scope="session")
def running() -> Iterator[tuple[Server, str]]:
    made = Server()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(made.app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield made, f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(WAIT)
        assert not thread.is_alive()


@pytest.fixture
def server(running: tuple[Server, str]) -> tuple[Server, str]:
    running[0].bodies.clear()
    return running
