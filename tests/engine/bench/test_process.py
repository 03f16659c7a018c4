"""`pinrail serve` as a child: its start, its last words, its memory, and that it is always ended."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pinrail_contract.launch import LaunchSpec
from pinrail_engine.bench import process
from pinrail_engine.bench.errors import BenchError
from pinrail_engine.bench.process import Child, child, memory

SPEC = LaunchSpec(model_dir="d", manifest="m", host="0.0.0.0", port=9)
WAIT = 20.0  # seconds
Use = Callable[[str], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Takes a mode of fake_serve."""
    script = str(Path(__file__).with_name("fake_serve.py"))
    return lambda mode: monkeypatch.setattr(process, "SERVE", (sys.executable, script, mode))


def is_there(server: Child) -> bool:
    return Path(f"/proc/{server.pid}").exists()


def test_it_is_ready_answers_and_is_ended(use: Use) -> None:
    use("serves")
    before = time.monotonic()
    with child(SPEC) as server:
        assert before <= server.began
        server.wait_until_ready(WAIT)
        assert server.url.startswith("http://127.0.0.1:"), "whatever the flags say"
        assert server.port != 9
        assert "manifest_info" in server.metrics()
        assert is_there(server)
    assert not is_there(server)


def test_one_that_dies_at_its_start_is_reported_with_its_own_words(use: Use) -> None:
    use("dies")
    with pytest.raises(BenchError) as caught, child(SPEC) as server:
        server.wait_until_ready(WAIT)
    assert str(caught.value).splitlines() == [
        "pinrail serve was not ready yet: it ended with code 3, and had said:",
        "model.safetensors: not what was pinned",
    ]
    assert not is_there(server)


def test_one_that_never_is_ready_is_ended(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    use("serves")
    monkeypatch.setattr(process, "READY", "\n")
    with pytest.raises(BenchError, match=r"is not ready after 0\.1 seconds, and says:"), child(SPEC) as server:
        server.wait_until_ready(0.1)
    assert not is_there(server)


def test_whose_error_it_is_not_stays_as_it_is(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    use("serves")
    monkeypatch.setattr(process, "_GONE_SECONDS", 0.05)
    with pytest.raises(BenchError, match=r"^another server failed$"), child(SPEC):
        raise BenchError("another server failed")


def test_one_that_does_not_end_is_killed(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    use("stays")
    monkeypatch.setattr(process, "_END_SECONDS", 0.1)
    with child(SPEC) as server:
        server.wait_until_ready(WAIT)
    assert not is_there(server)


def test_sigterm_ends_the_child_too(use: Use) -> None:
    use("serves")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, child(SPEC) as server:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert not is_there(server)
    assert signal.getsignal(signal.SIGTERM) is before


def test_memory_is_the_sum_of_all_processes() -> None:
    me = memory([os.getpid()])
    assert me["peak_bytes"] >= me["resident_bytes"] > 2**20
    assert memory([os.getpid(), os.getpid()])["peak_bytes"] >= 2 * me["peak_bytes"]


def test_memory_that_nobody_tells_of_is_left_out() -> None:
    assert memory([]) == {}
    assert memory([os.getpid(), 2**30]) == {}
