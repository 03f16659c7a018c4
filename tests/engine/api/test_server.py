"""The process's life under real signals: load, serve, drain, exit code."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fake_engine import WAIT

BODY = {"model": "tiny", "prompt": "hi", "stream": True}


class Server:
    def __init__(self, drain_timeout: int, state: str, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{self.port}"
        script = Path(__file__).with_name("serve_process.py")
        command = [sys.executable, str(script), str(self.port), str(drain_timeout), state]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)

    def wait_line(self, start: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith(start):
                return line
        raise AssertionError(f"the process ended without a line {start!r}")

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.wait_line("draining")


@pytest.fixture
def start(free_port: Callable[[], int]) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(drain_timeout: int = 30, state: str = "ready", port: int | None = None) -> Server:
        servers.append(Server(drain_timeout, state, port or free_port()))
        return servers[-1]

    yield make
    for server in servers:
        server.process.kill()
        server.process.communicate()


def test_the_port_is_open_while_the_engine_loads(start: Callable[..., Server]) -> None:
    server = start(state="loading")
    server.wait_line("listening address=127.0.0.1")
    assert httpx.get(server.url + "/health").status_code == 200
    assert httpx.get(server.url + "/ready").json() == {"state": "loading"}
    server.tell("ready")
    server.wait_line("ready max_model_len=256")
    assert httpx.get(server.url + "/ready").status_code == 200


def test_a_failed_load_exits_with_1(start: Callable[..., Server]) -> None:
    server = start(state="loading")
    server.wait_line("listening")
    server.tell("failed")
    assert server.process.wait(WAIT) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_it_stops_at_once_with_0(start: Callable[..., Server], number: signal.Signals) -> None:
    server = start()
    server.wait_line("ready")
    server.process.send_signal(number)
    assert server.process.wait(WAIT) == 0


def test_a_drain_lets_running_requests_end_and_refuses_new_ones(start: Callable[..., Server]) -> None:
    server = start()
    server.wait_line("ready")
    with httpx.stream("POST", server.url + "/v1/completions", json=BODY, timeout=WAIT) as running:
        lines = running.iter_lines()
        assert '"text":"a"' in next(lines)
        server.stop()
        refused = httpx.post(server.url + "/v1/completions", json=BODY)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.headers["connection"] == "close"
        assert httpx.get(server.url + "/ready").json() == {"state": "draining"}
        assert httpx.get(server.url + "/health").status_code == 200
        server.tell("go")
        rest = "".join(lines)
    assert '"text":"b"' in rest
    assert rest.endswith("data: [DONE]")
    assert server.process.wait(WAIT) == 0


def test_after_the_drain_time_the_rest_is_told_and_cut(start: Callable[..., Server]) -> None:
    server = start(drain_timeout=0)
    server.wait_line("ready")
    with httpx.stream("POST", server.url + "/v1/completions", json=BODY, timeout=WAIT) as running:
        lines = running.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = "".join(lines)
    assert '"code":"server_draining"' in rest
    assert rest.endswith("data: [DONE]")
    assert server.process.wait(WAIT) == 0


def test_a_second_signal_ends_it_at_once(start: Callable[..., Server]) -> None:
    server = start()
    server.wait_line("ready")
    with httpx.stream("POST", server.url + "/v1/completions", json=BODY, timeout=WAIT) as running:
        next(running.iter_lines())
        server.stop()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT) == -signal.SIGTERM


def test_a_taken_port_exits_with_1(start: Callable[..., Server]) -> None:
    first = start()
    first.wait_line("ready")
    second = start(port=first.port)
    second.wait_line(f"cannot listen address=127.0.0.1 port={first.port}")
    assert second.process.wait(WAIT) == 1
