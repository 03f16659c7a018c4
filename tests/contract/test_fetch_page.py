"""The page of a fetch that runs: what it says, what it never costs the fetch, and that it ends with it."""

import argparse
import contextlib
import http.client
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stepped_source import Steps, fetching, pinned, stepped_source

from pinrail_contract import fetch_page as served
from pinrail_contract.errors import SampleError
from pinrail_contract.fetch import CHUNK, fetch
from pinrail_contract.fetch_page import AT_ONCE, Address, showing
from pinrail_contract.metrics import FETCH_TOTAL_BYTES, FETCHED_BYTES, fetch_page, fetched_share
from pinrail_contract.pins import ModelManifest
from pinrail_contract.progress import ProgressBar


def read(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return str(answer.read(), "utf-8")


def test_a_page_says_which_part_of_the_model_is_there() -> None:
    assert fetched_share(fetch_page(108, 271)) == 108 / 271
    assert fetched_share(fetch_page(271, 271)) == 1.0


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("", "stands 0 times"),
        (fetch_page(5, 4), "got 5 of 4"),
        (fetch_page(0, 0), "got 0 of 0"),
        (fetch_page(-1, 4), "got -1"),
        (fetch_page(1, 4) * 2, "stands 2 times"),
        (f"{FETCHED_BYTES} NaN\n{FETCH_TOTAL_BYTES} 4\n", "want a finite number"),
        (f"{FETCHED_BYTES} 1\n{FETCH_TOTAL_BYTES} +Inf\n", "want a finite number"),
        (f"{FETCHED_BYTES} most\n{FETCH_TOTAL_BYTES} 4\n", "got 'most', want a number"),
    ],
)
def test_a_page_that_cannot_be_is_an_error(page: str, said: str) -> None:
    with pytest.raises(SampleError, match=said.replace("+", r"\+")):
        fetched_share(page)


def test_the_page_is_there_while_it_fetches_and_gone_after(free_port: Callable[[], int]) -> None:
    port, done = free_port(), 40
    with showing(Address("127.0.0.1", port), lambda: done, 100):
        assert fetched_share(read(port)) == 0.4
        done = 70
        assert fetched_share(read(port)) == 0.7
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(port, "/ready")
    with pytest.raises(urllib.error.URLError, match="refused"):
        read(port)


def test_a_port_that_is_taken_does_not_fail_the_fetch(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with showing(Address("127.0.0.1", port), lambda: 0, 1):
            pass
    assert f"progress is not served at 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_clients_that_hang_neither_fill_the_fetch_with_threads_nor_keep_it_from_ending(
    free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served._Handler, "timeout", 60.0)
    port, before = free_port(), threading.active_count()
    with showing(Address("127.0.0.1", port), lambda: 0, 1):
        hanging = [socket.create_connection(("127.0.0.1", port)) for _ in range(AT_ONCE)]
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            read(port)
        assert threading.active_count() == before + 1 + AT_ONCE
    for client in hanging:
        client.close()


def test_a_client_that_leaves_makes_room_for_the_next(free_port: Callable[[], int]) -> None:
    port = free_port()
    with showing(Address("127.0.0.1", port), lambda: 1, 2):
        for _ in range(3 * AT_ONCE):
            assert fetched_share(read(port)) == 0.5


@pytest.mark.parametrize("text", ["", "8000", ":8000", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "a:b", "a:²"])
def test_an_address_that_is_none_is_refused_with_what_is_wanted(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="want HOST:PORT such as 127"):
        Address.parse(text)


def test_only_a_pod_shows_a_page_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setattr("pinrail_contract.termination.PATH", str(log))
    assert Address.of_pod() is None
    log.touch()
    assert Address.of_pod() == Address("0.0.0.0", 8000)


def test_what_an_earlier_fetch_left_counts_as_done(folder: Path, manifest: ModelManifest, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors.part").write_bytes((folder / "model.safetensors").read_bytes()[:4000])
    told = list[int]()
    fetch(manifest, out, told.append)
    assert told[0] == 4000
    assert sum(told) == manifest.total_size


def test_what_an_earlier_fetch_left_is_hashed_without_a_page(manifest: ModelManifest, tmp_path: Path) -> None:
    shown = list[bool]()

    @contextlib.contextmanager
    def page() -> Iterator[None]:
        shown.append(True)
        yield
        shown.append(False)

    fetch(manifest, tmp_path / "out", make_room=lambda _: shown.append(False), page=page())
    assert shown == [False, True, False]


def test_what_is_done_twice_counts_once() -> None:
    bar = ProgressBar("fetching", 10)
    bar(8)
    bar(8)
    assert bar.done == 10


def test_a_fetch_that_runs_says_how_far_it_is(
    folder: Path, certificate: Path, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    (folder / "model.safetensors").write_bytes(os.urandom(4 * CHUNK))
    steps, port = Steps(), free_port()
    with stepped_source(folder, certificate, steps) as url:
        manifest = pinned(folder, url)
        with fetching(manifest, tmp_path, certificate, "127.0.0.1", port) as process:
            for pieces in (1, 2):
                steps.give(1)
                await_share(port, pieces * CHUNK / manifest.total_size)
            steps.give(2)
            assert process.wait(30) == 0
    with pytest.raises(urllib.error.URLError, match="refused"):
        read(port)


def await_share(port: int, least: float) -> None:
    deadline, seen = time.monotonic() + 20, -1.0
    while not least <= seen < least + 0.1:
        assert time.monotonic() < deadline, f"got {seen}, want {least}"
        with contextlib.suppress(urllib.error.URLError):
            seen = fetched_share(read(port))
        time.sleep(0.05)
