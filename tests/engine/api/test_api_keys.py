"""Who may ask: the official client with keys good and bad, a Secret that a kubelet swaps, and paths that stay open."""

import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from fake_engine import WAIT, FakeEngine, tokens
from starlette.routing import Route

from pinrail_contract import endpoints
from pinrail_engine.api import keys as keys_module
from pinrail_engine.api.app import ServerInfo, create_app
from pinrail_engine.api.auth import OPEN
from pinrail_engine.api.keys import MAX_KEY, ApiKeys
from pinrail_engine.api.server import uvicorn_config
from pinrail_engine.errors import KeysError
from pinrail_engine.text.pipeline import TextPipeline

ALICE, BOB = "alice-0123456789abcdef", "bob-fedcba9876543210"
INFO = ServerInfo(model_name="tiny", manifest_digest="", verification="Verified", cache_events=True)
HI: list[Any] = [{"role": "user", "content": "hi"}]


class Mounted:
    """A Secret's volume, written as a kubelet does: files are links through `..data`, which is swapped whole."""

    def __init__(self, folder: Path, **keys: str) -> None:
        self.folder, self.version = folder, 0
        folder.mkdir()
        self.write(**keys)

    def write(self, **keys: str) -> None:
        self.version += 1
        fresh = self.folder / f"..2026_{self.version}"
        fresh.mkdir()
        for name, key in keys.items():
            (fresh / name).write_text(key)
        (self.folder / "..data_tmp").symlink_to(fresh.name)
        os.rename(self.folder / "..data_tmp", self.folder / "..data")
        for name in keys:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        for path in self.folder.iterdir():
            if path.is_symlink() and not path.exists():
                path.unlink()


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path / "keys", alice=ALICE + "\n")


@pytest.fixture
async def http(text: TextPipeline, mounted: Mounted) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(FakeEngine(tokens("yes")), text, INFO, ApiKeys(mounted.folder))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        yield client


@pytest.fixture
def serving(text: TextPipeline, mounted: Mounted, free_port: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real server that watches the folder; its address."""
    monkeypatch.setattr(keys_module, "INTERVAL", 0.02)
    port = free_port()
    with ApiKeys(mounted.folder) as keys:
        config = uvicorn_config(create_app(FakeEngine(tokens("yes")), text, INFO, keys))
        config.port = port
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            thread.join(0.01)
        yield f"http://127.0.0.1:{port}"
        server.should_exit = True
        thread.join(WAIT)


def ask(address: str, key: str) -> str | None:
    with openai.OpenAI(base_url=address + "/v1", api_key=key, max_retries=0, timeout=WAIT) as client:
        return client.chat.completions.create(model="tiny", messages=HI).choices[0].message.content


def is_let_in(address: str, key: str) -> bool:
    try:
        return ask(address, key) == "yes"
    except openai.AuthenticationError:
        return False


def until(address: str, key: str, let_in: bool) -> None:
    for _ in range(500):
        if is_let_in(address, key) is let_in:
            return
    raise AssertionError(f"{key} is still {'refused' if let_in else 'let in'}")


def test_the_official_client_is_let_in_with_a_key_and_refused_as_openai_does(serving: str) -> None:
    assert ask(serving, ALICE) == "yes"
    with pytest.raises(openai.AuthenticationError) as caught:
        ask(serving, "wrong")
    error = caught.value
    assert (error.status_code, error.type, error.code) == (401, "authentication_error", "invalid_api_key")
    assert error.message == "Error code: 401 - The API key is not valid."
    assert error.response.headers["www-authenticate"] == 'Bearer realm="pinrail", error="invalid_token"'


def test_a_key_is_rotated_without_a_restart(serving: str, mounted: Mounted) -> None:
    mounted.write(alice=ALICE, bob=BOB)
    until(serving, BOB, True)
    assert is_let_in(serving, ALICE)
    mounted.write(bob=BOB)
    until(serving, ALICE, False)
    assert is_let_in(serving, BOB)


def test_a_secret_without_keys_lets_nobody_in(serving: str, mounted: Mounted) -> None:
    mounted.write()
    until(serving, ALICE, False)
    assert not is_let_in(serving, "x")
    mounted.write(alice=BOB)
    until(serving, BOB, True)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", ALICE)],
        [("Authorization", f"Basic {ALICE}")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer ")],
        [("Authorization", f"Bearer {ALICE}"), ("Authorization", f"Bearer {ALICE}")],
        [("X-Api-Key", ALICE)],
    ],
    ids=str,
)
async def test_without_one_bearer_the_answer_says_how_to_give_a_key(
    http: httpx.AsyncClient, headers: list[tuple[str, str]]
) -> None:
    answer = await http.get("/v1/models", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="pinrail"'
    assert answer.json()["error"]["code"] == "missing_api_key"


@pytest.mark.parametrize("key", [ALICE[:-1], ALICE + "x", ALICE.upper(), f"{ALICE} {ALICE}", "é", BOB], ids=str)
async def test_what_is_not_the_whole_key_is_refused(http: httpx.AsyncClient, key: str) -> None:
    answer = await http.get("/v1/models", headers=[(b"Authorization", f"Bearer {key}".encode())])
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_scheme_is_not_case_sensitive(http: httpx.AsyncClient, scheme: str) -> None:
    assert (await http.get("/v1/models", headers={"Authorization": f"{scheme} {ALICE}"})).status_code == 200


def test_every_route_asks_for_a_key_but_those_of_probes_and_scrapes(text: TextPipeline) -> None:
    app = create_app(FakeEngine(), text, INFO)
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    assert paths - OPEN == {
        endpoints.CHAT_COMPLETIONS, endpoints.COMPLETIONS, endpoints.MODELS, endpoints.MODELS + "/{model:path}",
        endpoints.CACHE_EVENTS,
    }  # fmt: skip
    assert paths >= OPEN


@pytest.mark.parametrize("path", sorted(OPEN))
async def test_probes_and_scrapes_need_no_key(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/tiny", "/cache_events", "/", "/health/"],
)
@pytest.mark.parametrize("host", ["x", "x/health?", "x/health#", "x:1/metrics", "/health"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD"])
async def test_no_host_header_opens_a_path(http: httpx.AsyncClient, path: str, host: str, method: str) -> None:
    assert (await http.request(method, path, headers={"Host": host})).status_code == 401


async def test_a_body_is_not_read_without_a_key(http: httpx.AsyncClient) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("was read")
        yield b""

    assert (await http.post("/v1/completions", content=body())).status_code == 401


def test_a_large_body_without_a_key_is_answered_and_the_next_request_too(serving: str) -> None:
    with httpx.Client(base_url=serving, timeout=WAIT) as client:
        for key, status in (("wrong", 401), ("wrong", 401), (ALICE, 400)):
            body = b"x" * (3 << 20)
            answer = client.post("/v1/completions", content=body, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == status, answer.text


async def test_keys_are_in_no_log_and_no_answer(
    http: httpx.AsyncClient, mounted: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    mounted.write(alice=ALICE, bob=BOB, broken="not one key")
    watched = ApiKeys(mounted.folder)
    mounted.write(bob=BOB)
    watched.look()
    answer = await http.get("/v1/models", headers={"Authorization": f"Bearer {BOB}"})
    assert answer.status_code == 401
    said = caplog.text + answer.text + str(answer.headers)
    assert "no api key in file=broken" in said
    assert not [key for key in (ALICE, BOB, "not one key") if key in said]


@pytest.mark.parametrize("content", ["", "\n", "two words", "ü", "x" * (MAX_KEY + 1)], ids=lambda c: c[:9])
def test_a_folder_without_a_key_starts_no_server(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(KeysError, match="holds no key, want a folder with a key in each file"):
        ApiKeys(tmp_path)


def test_a_folder_that_is_not_there_starts_no_server(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"--api-keys-dir: .*absent cannot be read: No such file or directory"):
        ApiKeys(tmp_path / "absent")


def test_a_folder_that_vanishes_lets_nobody_in_soon(mounted: Mounted) -> None:
    keys = ApiKeys(mounted.folder)
    mounted.folder.rename(mounted.folder.with_name("elsewhere"))
    keys.look()
    assert keys.allow(ALICE.encode()), "a swap is not the end"
    for _ in range(2):
        keys.look()
    assert not keys.allow(ALICE.encode())
    mounted.folder.with_name("elsewhere").rename(mounted.folder)
    keys.look()
    assert keys.allow(ALICE.encode())


def test_keys_are_compared_in_full_and_all_of_them(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted.write(alice=ALICE, bob=BOB)
    compared: list[tuple[int, int]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return a == b

    keys = ApiKeys(mounted.folder)
    monkeypatch.setattr(keys_module.hmac, "compare_digest", compare)
    for given in (ALICE, BOB, "", "x"):
        keys.allow(given.encode())
    assert compared == [(32, 32)] * 8
