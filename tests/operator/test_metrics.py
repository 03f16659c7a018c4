"""Pods that answer, pods that misbehave, and pages that lie: each becomes one value."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from operator_builders import DIGEST, pod

from pinrail_contract import metrics as names
from pinrail_contract.runtime import UNSAID, Runtime
from pinrail_operator import metrics
from pinrail_operator.metrics import Scrape, Scraper, read_page

PAGE = f"""
{names.RUNNING}{{model_name="tiny"}} 2
{names.WAITING}{{model_name="tiny"}} 1
{names.KV_USAGE}{{model_name="tiny"}} 0.25
{names.CACHE_CONFIG}{{block_size="16",num_gpu_blocks="100"}} 1
{names.WAITING_BLOCKS} 3
{names.MAX_NUM_SEQS} 8
{names.MANIFEST_INFO}{{digest="{DIGEST}",engine_version="0.1.0",weight_dtype="int8",verification="verified"}} 1
"""


@dataclass
class FakePod:
    """A metrics endpoint on 127.0.0.1 that behaves as `answer` says."""

    answer: str = "good"
    port: int = 0

    asked: list[str] = field(default_factory=list)  # paths

    async def version(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        statuses = {"no version": 404, "version 500": 500, "version 503": 503, "version 302": 302}
        status = statuses.get(self.answer, 200)
        return web.json_response({"version": "0.32.0"}) if status == 200 else web.Response(status=status)

    async def page(self, _: web.Request) -> web.StreamResponse:
        if self.answer == "hang":
            await asyncio.sleep(60)
        if self.answer == "error":
            return web.Response(status=500)
        if self.answer == "redirect":
            raise web.HTTPFound("http://127.0.0.1:1/")
        if self.answer == "fetching":
            return web.Response(text=names.fetch_page(108, 271))
        if self.answer == "foreign" or "version" in self.answer:
            return web.Response(text="\n".join(line for line in PAGE.splitlines() if names.MANIFEST_INFO not in line))
        return web.Response(text=PAGE if self.answer == "good" else "x" * (metrics.MAX_PAGE + 1))


@pytest.fixture
async def server() -> AsyncIterator[FakePod]:
    fake, app = FakePod(), web.Application()
    app.router.add_get("/metrics", fake.page)
    app.router.add_get("/version", fake.version)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.port = runner.addresses[0][1]
    yield fake
    await runner.cleanup()


async def scrape(fake: FakePod, answer: str, ip: str = "127.0.0.1", **of_pod: str) -> dict[str, Scrape]:
    fake.answer = answer
    made = Scraper.create()
    try:
        return await Scraper(made.session, fake.port).scrape([pod("a", ip=ip, **of_pod)])
    finally:
        await made.close()


async def test_a_page_is_read(server: FakePod) -> None:
    answers = await scrape(server, "good")
    assert answers["a"].digest == DIGEST
    assert answers["a"].load is not None
    assert answers["a"].load.used_blocks == 25.0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("error", "status 500, want 200"),
        ("redirect", "status 302, want 200"),
        ("huge", f"got more than {metrics.MAX_PAGE} bytes, want a metrics page"),
    ],
)
async def test_another_answer_is_an_error(server: FakePod, answer: str, error: str) -> None:
    assert await scrape(server, answer) == {"a": Scrape(error=error)}


async def test_a_pod_that_hangs_is_given_up(server: FakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "TIMEOUT", 0.1)
    answers = await scrape(server, "hang")
    assert answers["a"].error.startswith("TimeoutError")


async def test_a_pod_that_refuses_the_connection(server: FakePod) -> None:
    answers = await scrape(server, "good", ip="127.0.0.9")
    assert "Connect" in answers["a"].error


async def test_a_pod_without_an_address_is_not_asked(server: FakePod) -> None:
    assert await scrape(server, "good", ip="") == {}


async def test_an_engine_that_an_init_container_verifies_for_is_asked_for_its_version(server: FakePod) -> None:
    answers = await scrape(server, "foreign", verified=DIGEST)
    assert answers["a"].runtime == Runtime(engine_version="0.32.0")
    assert answers["a"].load is not None


async def test_an_engine_that_does_not_say_its_version_says_nothing(server: FakePod) -> None:
    answers = await scrape(server, "no version", verified=DIGEST)
    assert (answers["a"].runtime, answers["a"].error) == (UNSAID, "")


@pytest.mark.parametrize("answer", ["version 500", "version 503", "version 302"])
async def test_an_engine_whose_version_page_fails_has_said_nothing_yet(server: FakePod, answer: str) -> None:
    """Silence would take the place of the version that it told before."""
    answers = await scrape(server, answer, verified=DIGEST)
    assert (answers["a"].runtime, answers["a"].error) == (None, "")
    assert answers["a"].load is not None


async def test_ours_is_not_asked_twice(server: FakePod) -> None:
    assert (await scrape(server, "good"))["a"].runtime == Runtime(engine_version="0.1.0", weight_dtype="int8")
    assert (await scrape(server, "foreign"))["a"].runtime == UNSAID
    assert server.asked == []


async def test_one_that_answers_nothing_has_said_nothing_yet(server: FakePod) -> None:
    assert (await scrape(server, "error"))["a"].runtime is None


@pytest.mark.parametrize("answer", ["", "[]", "{}", "null", '{"version": 1}', "[" * 100_000, "<html>"])
def test_what_is_no_version_is_silence(answer: str) -> None:
    assert names.version_runtime(answer) == UNSAID


def test_a_page_without_a_load_still_tells_the_digest() -> None:
    answer = read_page(f'{names.MANIFEST_INFO}{{digest="{DIGEST}",verification="verified"}} 1\n'.encode())
    assert (answer.load, answer.digest, answer.runtime) == (None, DIGEST, UNSAID)
    assert names.KV_USAGE in answer.error


def test_a_page_that_is_no_text_is_an_error() -> None:
    assert read_page(b"\xff\xfe").error


async def fetched(fake: FakePod, answer: str) -> dict[str, float]:
    fake.answer = answer
    made = Scraper.create()
    try:
        return await Scraper(made.session, fake.port).fetched([pod("a", ip="127.0.0.1"), pod("b", ip="")])
    finally:
        await made.close()


async def test_a_pod_that_fetches_says_how_far_it_is(server: FakePod) -> None:
    assert await fetched(server, "fetching") == {"a": 108 / 271}


@pytest.mark.parametrize("answer", ["error", "redirect", "huge", "good"])
async def test_a_page_that_says_nothing_of_a_fetch_is_passed_over(server: FakePod, answer: str) -> None:
    assert await fetched(server, answer) == {}


async def test_a_pod_that_hangs_while_it_fetches_is_given_up(server: FakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "TIMEOUT", 0.1)
    assert await fetched(server, "hang") == {}
