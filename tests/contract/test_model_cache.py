"""A cache that processes share: each test's fetches are processes of their own, against an https server that counts."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from https_server import https_server

from pinrail_contract import fetch_command, hold_command, termination
from pinrail_contract.cached_fetch import fetch_cached
from pinrail_contract.errors import CacheError
from pinrail_contract.file_lock import if_free, locked
from pinrail_contract.folder import mismatches, no_progress
from pinrail_contract.model_cache import ModelCache
from pinrail_contract.pin_command import pin_folder
from pinrail_contract.pins import API_VERSION, KIND, ModelManifest, Source
from pinrail_contract.runtime import Runtime

WEIGHTS = "model.safetensors"
CHUNK = 1 << 20  # bytes that a fetch writes at once
SIZE = 3 * CHUNK  # bytes of the weights
BOUND = 64 * CHUNK
PATIENCE = 60.0  # seconds; waited for in full by a failing test alone


@dataclass
class Origin:
    """The server that models come from."""

    folder: Path
    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)  # file, Range
    gate: threading.Event = field(default_factory=threading.Event)  # the weights' last bytes wait for it

    def names(self) -> list[str]:
        return sorted(name for name, _ in self.asked)


class _Handler(BaseHTTPRequestHandler):
    origin: Origin

    def do_GET(self) -> None:
        name, span = self.path.rsplit("/", 1)[1], self.headers["Range"] or ""
        self.origin.asked.append((name, span))
        data = (self.origin.folder / name).read_bytes()[int(span[6:].rstrip("-") or 0) if span else 0 :]
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        held_back = CHUNK if name == WEIGHTS else 0
        try:
            self.wfile.write(data[: len(data) - held_back])
            assert not held_back or self.origin.gate.wait(PATIENCE)
            self.wfile.write(data[len(data) - held_back :])
        except OSError:
            return  # whoever asked was killed

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def origin(folder: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Origin]:
    """Its gate is open, but for tests that close it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    (folder / WEIGHTS).write_bytes(os.urandom(SIZE))
    made = Origin(folder)
    made.gate.set()
    with https_server(type("Handler", (_Handler,), {"origin": made}), certificate) as port:
        made.url = f"https://127.0.0.1:{port}/tiny"
        yield made
        made.gate.set()


@pytest.fixture
def pinned(origin: Origin, tmp_path: Path) -> tuple[ModelManifest, Path]:
    """The manifest of what the server has, and its file."""
    manifest = replace(pin_folder(origin.folder, Source("https://x/"), no_progress), source=Source(origin.url))
    return manifest, written(manifest, tmp_path / "manifest.json")


def written(manifest: ModelManifest, path: Path) -> Path:
    path.write_text(json.dumps({"apiVersion": API_VERSION, "kind": KIND, "spec": manifest.to_spec()}))
    return path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `pinrail` on the cache of the test; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def one(command: str, manifest: Path, *words: Any) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "pinrail_contract", command, "--manifest", manifest, "--cache", tmp_path / "c"]
        process = subprocess.Popen([*map(str, argv), *map(str, words)], stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def start_fetch(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    return lambda manifest, *words: start("fetch", manifest, f"--max-size={BOUND}", *words)


def says(process: subprocess.Popen[str], words: str) -> str:
    """The line of its log that holds these words, once it is there."""
    assert process.stderr is not None
    line = next((line for line in process.stderr if words in line), "")
    assert line, f"it ended without saying {words!r}"
    return line


def ends(process: subprocess.Popen[str], code: int = 0) -> str:
    """The rest of its log."""
    log = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == code, log
    return log


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def open_cache(tmp_path: Path) -> ModelCache:
    return ModelCache.open(tmp_path / "c")


def test_four_that_want_a_model_at_once_download_it_once(
    origin: Origin, pinned: tuple[ModelManifest, Path], start_fetch: Callable[..., Any], tmp_path: Path
) -> None:
    manifest, file = pinned
    origin.gate.clear()
    first = start_fetch(file)
    until(lambda: (WEIGHTS, "") in origin.asked)
    others = [start_fetch(file) for _ in range(3)]
    for process in others:
        says(process, f"waiting for another pod that fetches {manifest.digest}")
    origin.gate.set()
    for process in (first, *others):
        assert f"{len(manifest.files)} files, {manifest.digest}" in ends(process)
    assert origin.names() == sorted(f.path for f in manifest.files)
    assert mismatches(open_cache(tmp_path).folder(manifest.files_digest), manifest) == ()


def test_who_waits_for_anothers_fetch_shows_no_progress(
    origin: Origin, pinned: tuple[ModelManifest, Path], start_fetch: Callable[..., Any], free_port: Callable[[], int]
) -> None:
    origin.gate.clear()
    port, other_port = free_port(), free_port()
    first = start_fetch(pinned[1], "--metrics-address", f"127.0.0.1:{port}")
    until(lambda: (WEIGHTS, "") in origin.asked)
    socket.create_connection(("127.0.0.1", port)).close()
    second = start_fetch(pinned[1], "--metrics-address", f"127.0.0.1:{other_port}")
    says(second, "waiting for another pod")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", other_port))
    origin.gate.set()
    for process in (first, second):
        ends(process)


@dataclass
class Page:
    """Stands for the metrics page of a fetch."""

    is_shown: bool = False
    shown: int = 0  # times

    def __enter__(self) -> None:
        self.is_shown, self.shown = True, self.shown + 1

    def __exit__(self, *_: object) -> None:
        self.is_shown = False


def test_progress_is_shown_while_files_are_fetched_and_not_while_the_holder_is_waited_for(
    three: list[ModelManifest], tmp_path: Path
) -> None:
    page, fetched, waited = Page(), list[bool](), list[bool]()
    with pytest.raises(CacheError, match="nobody has locked it"):
        fetch_cached(
            three[0], open_cache(tmp_path), BOUND, tmp_path / "held", page=page,
            progress=lambda n: fetched.append(page.is_shown or not n), wait=lambda _: waited.append(page.is_shown),
        )  # fmt: skip
    assert (all(fetched), any(waited), page.shown) == (True, False, 1)


def test_a_model_that_is_there_whole_is_hashed_without_progress(three: list[ModelManifest], tmp_path: Path) -> None:
    page, cache = Page(), open_cache(tmp_path)
    for _ in range(2):
        fetch_cached(three[0], cache, BOUND, page=page)
    assert page.shown == 1


def test_a_fetch_that_is_killed_is_taken_over_where_it_stopped(
    origin: Origin, pinned: tuple[ModelManifest, Path], start_fetch: Callable[..., Any], tmp_path: Path
) -> None:
    manifest, file = pinned
    part = open_cache(tmp_path).folder(manifest.files_digest) / f"{WEIGHTS}.part"
    origin.gate.clear()
    first = start_fetch(file)
    until(lambda: part.exists() and part.stat().st_size == SIZE - CHUNK)
    second = start_fetch(file)
    says(second, "waiting for another pod")
    first.kill()
    until(lambda: (WEIGHTS, f"bytes={SIZE - CHUNK}-") in origin.asked)
    origin.gate.set()
    ends(second)
    assert len(origin.asked) == len(manifest.files) + 1
    assert mismatches(part.parent, manifest) == ()


def test_two_models_are_fetched_without_waiting_for_each_other(
    origin: Origin, pinned: tuple[ModelManifest, Path], start_fetch: Callable[..., Any], tmp_path: Path
) -> None:
    origin.gate.clear()
    slow = start_fetch(pinned[1])
    until(lambda: (WEIGHTS, "") in origin.asked)
    other, _ = another(tmp_path, "b")
    ends(start_fetch(other))
    assert slow.poll() is None
    origin.gate.set()
    ends(slow)


def another(tmp_path: Path, name: str, size: int = 1000) -> tuple[Path, ModelManifest]:
    """A model of this machine's disk with weights of its own: the file of its manifest, and that."""
    folder = tmp_path / f"model-{name}"
    folder.mkdir()
    (folder / "config.json").write_bytes((tmp_path / "model" / "config.json").read_bytes())
    (folder / "tokenizer.json").write_text("{}")
    (folder / WEIGHTS).write_bytes(name.encode() * size)
    manifest = pin_folder(folder, Source(f"file://{folder}"), no_progress)
    return written(manifest, tmp_path / f"{name}.json"), manifest


@pytest.fixture
def three(folder: Path, tmp_path: Path) -> list[ModelManifest]:
    """Models of one size."""
    return [another(tmp_path, name)[1] for name in ("a", "b", "c")]


def names(cache: ModelCache, models: list[ModelManifest]) -> list[bool]:
    """Which of the models it has."""
    return [cache.folder(m.files_digest).exists() for m in models]


def test_room_is_made_by_removing_what_was_used_least_recently(three: list[ModelManifest], tmp_path: Path) -> None:
    cache, (a, b, c), said = open_cache(tmp_path), three, list[str]()
    for model in (a, b, a):
        fetch_cached(model, cache, BOUND)
    fetch_cached(c, cache, 2 * a.total_size, say=said.append)
    assert names(cache, three) == [True, False, True]
    assert said == [f"removing {cache.folder(b.files_digest).name}, the least recently used: {b.total_size} bytes"]


def test_a_model_in_use_is_never_removed(three: list[ModelManifest], tmp_path: Path) -> None:
    cache, (a, b, c) = open_cache(tmp_path), three
    fetch_cached(a, cache, BOUND)
    fetch_cached(b, cache, BOUND)
    with cache.in_use(a.files_digest):
        fetch_cached(c, cache, 2 * a.total_size)
        assert names(cache, three) == [True, False, True]
        with pytest.raises(
            CacheError, match=rf"takes {b.total_size} bytes beside {a.total_size} of 1 model in use, and"
        ):
            fetch_cached(b, cache, a.total_size + b.total_size - 1)
        assert names(cache, [a, c]) == [True, True], "nothing is removed for what does not fit anyway"


def test_what_other_pods_have_yet_to_write_is_counted(
    origin: Origin, pinned: tuple[ModelManifest, Path], start_fetch: Callable[..., Any], tmp_path: Path
) -> None:
    origin.gate.clear()
    slow = start_fetch(pinned[1])
    until(lambda: (WEIGHTS, "") in origin.asked)
    _, small = another(tmp_path, "b")
    whole = pinned[0].total_size + small.total_size
    with pytest.raises(CacheError, match=f"maxSize is {whole - 1}, want {whole} or above"):
        fetch_cached(small, open_cache(tmp_path), whole - 1)
    assert slow.poll() is None
    fetch_cached(small, open_cache(tmp_path), whole)


def test_room_is_made_by_one_at_a_time(
    three: list[ModelManifest], start_fetch: Callable[..., Any], tmp_path: Path
) -> None:
    """Two that count at once would both find the same room."""
    cache = open_cache(tmp_path)
    with locked(cache.root / "locks" / "room"):
        fetching = start_fetch(tmp_path / "a.json")
        with pytest.raises(subprocess.TimeoutExpired):
            fetching.wait(1.5)
    ends(fetching)
    assert names(cache, three) == [True, False, False]


def test_a_model_that_was_refused_takes_nobodys_room(three: list[ModelManifest], tmp_path: Path) -> None:
    """Its pod goes on trying, and has it in use meanwhile."""
    cache, (a, b, c) = open_cache(tmp_path), three
    for model in (b, a):  # b is removed, which leaves what it was let in with behind
        fetch_cached(model, cache, a.total_size)
    with cache.in_use(a.files_digest), cache.in_use(b.files_digest):
        with pytest.raises(CacheError, match="no room"):
            fetch_cached(b, cache, a.total_size)
        fetch_cached(c, cache, a.total_size + c.total_size)


def test_a_model_larger_than_the_bound_is_refused_at_once(three: list[ModelManifest], tmp_path: Path) -> None:
    cache, (a, b, _) = open_cache(tmp_path), three
    fetch_cached(a, cache, BOUND)
    with pytest.raises(CacheError, match=rf"maxSize: got {b.total_size - 1}, want {b.total_size} or above for sha256:"):
        fetch_cached(b, cache, b.total_size - 1)
    assert names(cache, three) == [True, False, False]


def test_a_wrong_file_under_a_right_name_is_fetched_again(
    origin: Origin, pinned: tuple[ModelManifest, Path], tmp_path: Path
) -> None:
    manifest, cache = pinned[0], open_cache(tmp_path)
    weights = fetch_cached(manifest, cache, BOUND) / WEIGHTS
    data = bytearray(weights.read_bytes())
    data[7] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(data)
    fetch_cached(manifest, cache, BOUND)
    assert mismatches(weights.parent, manifest) == ()
    assert origin.names() == sorted([*(f.path for f in manifest.files), WEIGHTS])


def test_a_newly_pinned_engine_version_finds_the_files_of_the_earlier_manifest(
    origin: Origin, pinned: tuple[ModelManifest, Path], tmp_path: Path
) -> None:
    manifest, cache = pinned[0], open_cache(tmp_path)
    raised = replace(manifest, runtime=Runtime(engine_version="0.9.0"))
    assert raised.digest != manifest.digest
    assert fetch_cached(raised, cache, BOUND) == fetch_cached(manifest, cache, manifest.total_size)
    assert origin.names() == sorted(f.path for f in manifest.files)


def test_files_removed_by_hand_are_fetched_again(three: list[ModelManifest], tmp_path: Path) -> None:
    cache, model = open_cache(tmp_path), three[0]
    folder = fetch_cached(model, cache, BOUND)
    (folder / "config.json").unlink()
    fetch_cached(model, cache, BOUND)
    assert mismatches(folder, model) == ()


def test_what_an_engine_would_refuse_beside_the_model_is_removed(three: list[ModelManifest], tmp_path: Path) -> None:
    cache, model = open_cache(tmp_path), three[0]
    folder = fetch_cached(model, cache, BOUND)
    for name in ("model-2.safetensors", f"{WEIGHTS}.part"):
        (folder / name).touch()
    fetch_cached(model, cache, BOUND)
    assert mismatches(folder, model) == ()


@pytest.mark.parametrize("name", ["model-2.safetensors", WEIGHTS])
def test_a_link_is_none_of_the_models_files(three: list[ModelManifest], tmp_path: Path, name: str) -> None:
    cache, model = open_cache(tmp_path), three[0]
    folder = fetch_cached(model, cache, BOUND)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "model-a" / WEIGHTS)
    fetch_cached(model, cache, BOUND)
    assert mismatches(folder, model) == ()


def test_files_of_the_cache_are_written_once(three: list[ModelManifest], tmp_path: Path) -> None:
    folder = fetch_cached(three[0], open_cache(tmp_path), BOUND)
    assert {p.stat().st_mode & 0o777 for p in folder.iterdir()} == {0o444}


def test_what_is_no_model_of_the_cache_is_left_alone(three: list[ModelManifest], tmp_path: Path) -> None:
    cache, (a, b, _) = open_cache(tmp_path), three
    strange = [cache.root / "lost+found", cache.root / ("sha256-" + "0" * 63), cache.root / "notes"]
    for folder in strange:
        folder.mkdir()
        (folder / "large").write_bytes(b"x" * 10 * a.total_size)
    (cache.root / ("sha256-" + "1" * 64)).symlink_to(strange[0])
    fetch_cached(a, cache, a.total_size)
    fetch_cached(b, cache, a.total_size)
    assert names(cache, three) == [False, True, False]
    assert all((folder / "large").exists() for folder in strange)


def test_what_holds_a_model_keeps_it_until_a_signal_ends_it(
    three: list[ModelManifest], start: Callable[..., Any], start_fetch: Callable[..., Any], tmp_path: Path
) -> None:
    """The fetch of its pod ends only once it has begun, so that the model is never without a lock."""
    cache, (a, b, _) = open_cache(tmp_path), three
    sign, file = tmp_path / "held", tmp_path / "a.json"
    fetching = start_fetch(file, "--holder", sign)
    folder = cache.folder(a.files_digest)
    until(folder.exists)
    with pytest.raises(subprocess.TimeoutExpired):
        fetching.wait(1.0)
    holding = start("hold", file, "--holder", sign)
    ends(fetching)
    with pytest.raises(CacheError, match="1 model in use"):
        fetch_cached(b, cache, a.total_size)
    before = time.time() - 1
    os.utime(cache.root / "locks" / f"{folder.name}.use", (0, 0))
    holding.send_signal(signal.SIGTERM)
    holding.wait(5.0)
    ends(holding)
    assert (cache.root / "locks" / f"{folder.name}.use").stat().st_mtime > before, "it was used until then"
    fetch_cached(b, cache, a.total_size)
    assert names(cache, three) == [False, True, False]


def test_a_holder_that_is_killed_holds_nothing(
    three: list[ModelManifest], start: Callable[..., Any], tmp_path: Path
) -> None:
    cache, (a, b, _) = open_cache(tmp_path), three
    use = cache.root / "locks" / f"{fetch_cached(a, cache, BOUND).name}.use"
    os.utime(use, (0, 0))
    holding = start("hold", tmp_path / "a.json", "--holder", tmp_path / "held")
    until(lambda: use.stat().st_mtime > 0)
    fetch_cached(a, cache, BOUND, tmp_path / "held")
    holding.kill()
    holding.wait()
    fetch_cached(b, cache, a.total_size)
    assert names(cache, three) == [False, True, False]
    with pytest.raises(CacheError, match="held: nobody has locked it for 120 s, want `pinrail hold` beside the fetch"):
        fetch_cached(b, cache, BOUND, tmp_path / "held", wait=lambda _: None)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=rf"file/locks: Not a directory for user {os.getuid()}, want a folder that it"):
        ModelCache.open(tmp_path / "file")


@pytest.mark.skipif(os.getuid() != 0, reason="another user's folder takes root to make")
@pytest.mark.parametrize("named", ["locks", ""], ids=["empty", "with locks of an earlier user"])
def test_a_cache_of_another_user_is_named(tmp_path_factory: pytest.TempPathFactory, named: str) -> None:
    """As in a pod, whose user is not root."""
    cache = tmp_path_factory.mktemp("theirs")
    if not named:
        (cache / "locks").mkdir()
        os.chown(cache / "locks", 65532, 65532)
    with as_user(65532, cache), pytest.raises(CacheError) as caught:
        ModelCache.open(cache)
    wanted = "Permission denied for user 65532, want a folder that it can write, on a file system that has flock"
    assert str(caught.value) == f"{cache / named}: {wanted}"


@contextmanager
def as_user(user: int, folder: Path) -> Iterator[None]:
    """This process may do what that user may, and reaches the folder all the same."""
    closed = [p for p in folder.parents if not p.stat().st_mode & 0o001]
    for path in closed:
        path.chmod(path.stat().st_mode | 0o011)
    folder.chmod(0o755)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        for path in closed:
            path.chmod(path.stat().st_mode & ~0o011)


@pytest.mark.usefixtures("three")
def test_what_is_wrong_with_a_cache_is_left_to_the_kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[termination.Termination] = []
    monkeypatch.setattr(termination, "write", left.append)
    (tmp_path / "c").touch()
    words = [f"--manifest={tmp_path / 'a.json'}", f"--cache={tmp_path / 'c'}", "--max-size=1Gi", "--holder=never"]
    with pytest.raises(CacheError):
        fetch_command.command.run(words)
    (said,) = left
    assert said.reason is termination.Reason.CACHE_FAILED
    assert said.message.startswith(f"{tmp_path}/c/locks: Not a directory")


class Ended(Exception):
    """Stands for a signal."""


def hold(tmp_path: Path, *steps: Callable[[], object]) -> None:
    """Hold model a; each wait takes a step, and the one after the last is ended."""
    left = list(steps)

    def wait(_seconds: float) -> None:
        if not left:
            left.append(lambda: pytest.fail("it waits again though it was ended"))
            raise Ended
        left.pop(0)()

    with pytest.raises(Ended):
        hold_command._hold(tmp_path / "a.json", tmp_path / "c", tmp_path / "held", wait)


def is_held(tmp_path: Path) -> bool:
    with if_free(tmp_path / "held") as lock:
        return lock is None


@pytest.mark.usefixtures("three")
def test_what_holds_a_model_begins_once_the_cache_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = list[bool]()
    (tmp_path / "c").touch()
    hold(tmp_path, lambda: None, (tmp_path / "c").unlink, lambda: seen.append(is_held(tmp_path)))
    assert seen == [True]
    assert capsys.readouterr().err.count("c/locks: Not a directory") == 1, "it is told once"


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EROFS], ids=errno.errorcode.get)
def test_what_holds_a_model_goes_on_though_its_use_cannot_be_noted(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sidecar that ends makes the pod of an engine that serves unready."""
    seen = list[bool]()

    def refuse(_handle: int) -> None:
        raise OSError(number, os.strerror(number))

    hold(tmp_path, lambda: monkeypatch.setattr(os, "utime", refuse), *2 * [lambda: seen.append(is_held(tmp_path))])
    assert seen == [True, True]
    assert capsys.readouterr().err.count(f"{tmp_path / 'c'}: {os.strerror(number)}") == 1, "it is told once"


@pytest.mark.parametrize("words", [["--cache=c"], ["--output=c", "--max-size=1Gi"], ["--cache=c", "--output=o"]])
def test_a_cache_without_a_bound_is_not_asked_for(words: list[str], tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pinrail_contract", "fetch", f"--manifest={tmp_path / 'm'}", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []
