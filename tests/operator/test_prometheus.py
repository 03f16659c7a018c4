"""A Prometheus that answers, one that does not, and how often it is asked; the real one is in tests/apiserver."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from operator_builders import load, pod
from scaling_story import NAMES, Story

from pinrail_contract import metrics as names
from pinrail_operator import prometheus
from pinrail_operator.load_query import ABSENT, NO_LOAD, SAMPLED
from pinrail_operator.prometheus import NO_ANSWER, NO_SERVER, NoServer, Prometheus
from pinrail_operator.types import ServiceKey

KEY = ServiceKey("team", "chat")
PODS = tuple(pod(name) for name in NAMES)
AT = 1_700_000_000.0


def series(pod_name: str, age: float = 1.0, namespace: str = "team", service: str = "chat") -> list[dict[str, Any]]:
    """What Prometheus has of an idle replica."""
    labels = {"namespace": namespace, "inference_service": service, "pod": pod_name}
    values = {names.RUNNING: 0, names.WAITING: 0, names.KV_USAGE: 0.25, names.CACHE_CONFIG: 1, names.WAITING_BLOCKS: 0,
              names.MAX_NUM_SEQS: 10}  # fmt: skip
    config = {"num_gpu_blocks": "100", "block_size": "16"}
    found = [{"__name__": name, **(config if name == names.CACHE_CONFIG else {})} for name in values]
    samples = [{"metric": labels | own, "value": [AT, str(value)]}
               for own, value in zip(found, values.values(), strict=True)]  # fmt: skip
    return [*samples, {"metric": labels | {SAMPLED: "at"}, "value": [AT, str(AT - age)]}]


def vector(*samples: dict[str, Any]) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": list(samples)}}).encode()


GOOD = vector(*(sample for name in NAMES for sample in series(name)))


@dataclass
class FakeServer:
    """A query API on 127.0.0.1 that behaves as `answer` says."""

    answer: bytes | str = GOOD
    queries: list[dict[str, str]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    url: str = ""

    async def query(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict((await request.post()).items()))  # type: ignore[arg-type]
        self.headers.append(request.headers.get("Authorization", ""))
        if isinstance(self.answer, bytes):
            return web.Response(body=self.answer)
        if self.answer.isdecimal():
            return web.Response(status=int(self.answer), headers={"Location": "http://127.0.0.1:1/"})
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(10_000):
            await response.write(b"[" * (1 if self.answer == "slow" else 1 << 20))
            await asyncio.sleep(0.05 if self.answer == "slow" else 0)
        return response


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake, app = FakeServer(), web.Application()
    app.router.add_post("/prefix/api/v1/query", fake.query)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}/prefix/"
    yield fake
    await runner.cleanup()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "TOGETHER", 0.001)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def source(server: FakeServer) -> AsyncIterator[Prometheus]:
    made = Prometheus.create(server.url, "", 5.0, lambda _: None)
    made.clock = Clock()
    yield made
    await made.close()


def spoiled(name: str, value: str) -> bytes:
    """One replica's figure is another."""
    samples = [dict(s) for s in json.loads(GOOD)["data"]["result"]]
    hit = next(s for s in samples if s["metric"].get("__name__") == name and s["metric"]["pod"] == NAMES[1])
    hit["value"] = [AT, value]
    return vector(*samples)


HELD, NONE = "MetricsIncomplete", "NoMetrics"
FIRST, LAST = series(NAMES[0]), [*series(NAMES[0]), *series(NAMES[2])]

BAD: dict[str, tuple[bytes | str, str, str]] = {  # what is answered, the reason, and what is logged
    "500": ("500", NONE, "Prometheus: got the status 500, want 200"),
    "503": ("503", NONE, "Prometheus: got the status 503, want 200"),
    "no right": ("401", NONE, "Prometheus: got the status 401, want 200"),
    "a redirect": ("302", NONE, "Prometheus: got the status 302, want 200"),
    "endless": ("endless", NONE, "Prometheus: got more than 4194304 bytes, want an answer for 500 pods"),
    "a byte now and then": ("slow", NONE, "Prometheus: got no answer within 0.1 s"),
    "no JSON": (b"<html>", NONE, "Prometheus: got something else, want JSON of Prometheus' query API"),
    "other JSON": (b"[1]", NONE, "Prometheus: got something else, want JSON of Prometheus' query API"),
    "very deep": (b"[" * 100_000, NONE, "Prometheus: got something else, want JSON of Prometheus' query API"),
    "an error": (b'{"status": "error"}', NONE, "Prometheus: got the status 'error', want success"),
    "a matrix": (vector().replace(b"vector", b"matrix"), NONE, "Prometheus: got a 'matrix', want a vector"),
    "no value": (vector({"metric": {}, "value": [AT]}), NONE,
                 "Prometheus: got something else, want JSON of Prometheus' query API"),
    "a label that is none": (vector({"metric": {"pod": []}, "value": [AT, "1"]}), NONE,
                             "Prometheus: got something else, want JSON of Prometheus' query API"),
    "labels that are none": (vector({"metric": "pod", "value": [AT, "1"]}), NONE,
                             "Prometheus: got something else, want JSON of Prometheus' query API"),
    "a time without end": (vector().replace(b"[]", b'[{"metric":{},"value":[1' + b"0" * 400 + b',"1"]}]'), NONE,
                           "Prometheus: got something else, want JSON of Prometheus' query API"),
    "a value that is none": (spoiled(names.RUNNING, "many"), NONE,
                             "Prometheus: got something else, want JSON of Prometheus' query API"),
    "nothing": (vector(), NONE, ABSENT),
    "one of three": (vector(*FIRST), HELD, ABSENT),
    "two of three": (vector(*LAST), HELD, ABSENT),
    "another namespace": (vector(*LAST, *series(NAMES[1], namespace="other")), HELD, ABSENT),
    "another service": (vector(*LAST, *series(NAMES[1], service="other")), HELD, ABSENT),
    "twice": (vector(*LAST, *series(NAMES[1]), *series(NAMES[1])), HELD,
              f"Prometheus: {names.KV_USAGE}: stands 2 times on the page, want once"),
    "old": (vector(*LAST, *series(NAMES[1], age=10.1)), HELD, ""),
    "of a time to come": (vector(*LAST, *series(NAMES[1], age=-1.0)), HELD,
                          "Prometheus: got 1 times of its page, want one that is not to come"),
    "without a time": (vector(*LAST, *series(NAMES[1])[:-1]), HELD,
                       "Prometheus: got 0 times of its page, want one that is not to come"),
    "a figure is missing": (vector(*LAST, *series(NAMES[1])[1:]), HELD,
                            f"Prometheus: {names.RUNNING}: stands 0 times on the page, want once"),
    "NaN": (spoiled(names.KV_USAGE, "NaN"), HELD,
            f"Prometheus: {names.KV_USAGE}: got NaN, want a finite number, 0 or above"),
    "infinite": (spoiled(names.WAITING, "+Inf"), HELD,
                 f"Prometheus: {names.WAITING}: got +Inf, want a finite number, 0 or above"),
    "negative": (spoiled(names.RUNNING, "-1"), HELD,
                 f"Prometheus: {names.RUNNING}: got -1, want a finite number, 0 or above"),
    "above 1": (spoiled(names.KV_USAGE, "1.5"), HELD, f"Prometheus: {names.KV_USAGE}: got 1.5, want 0 to 1"),
}  # fmt: skip


def kind_of(reason: str, why: str) -> str:
    """How the condition's message ends."""
    if why in ("", ABSENT):
        return why
    return NO_ANSWER if reason == NONE else NO_LOAD


@pytest.mark.parametrize(("answer", "reason", "why"), BAD.values(), ids=BAD)
async def test_a_bad_answer_removes_no_replica_and_a_whole_window_is_awaited_after_it(
    server: FakeServer, source: Prometheus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    answer: bytes | str, reason: str, why: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(prometheus, "TIMEOUT", 0.1)
    source.session._timeout = prometheus.aiohttp.ClientTimeout(total=0.1 if answer == "slow" else 5.0)
    story = story_from(source)
    await story.begin()
    server.answer = answer
    await story.be_wrong()
    assert story.told == {(reason, kind_of(reason, why))}
    assert why in caplog.text
    server.answer = GOOD
    await story.recover()


@pytest.mark.parametrize("wrong", [
    ["500", "503", b"<html>", "gone"],
    [spoiled(names.KV_USAGE, value) for value in ("1.37", "1.38", "-1")],
], ids=["no answer", "no load"])  # fmt: skip
async def test_the_condition_stays_the_same_while_what_is_wrong_only_changes_its_figures(
    server: FakeServer, source: Prometheus, wrong: list[bytes | str]
) -> None:
    """Else each tick would write the status."""
    story, there = story_from(source), source.url
    await story.begin()
    for answer in wrong * 12:
        server.answer, source.url = answer, "http://127.0.0.9:9" if answer == "gone" else there
        condition = await story.look()
        story.told.add((condition["status"], condition["message"]))
    assert len([message for status, message in story.told if status == "False"]) == 1


def story_from(source: Prometheus) -> Story:
    """A tick passes at once, but not before a query has ended."""

    async def settled() -> None:
        if source._round is not None:
            await source._round

    story = Story(settled=settled).with_loads_from(source)
    source.clock = story.clock
    return story


async def test_a_server_that_is_gone_removes_no_replica_and_its_address_is_not_told(
    server: FakeServer, source: Prometheus
) -> None:
    story = story_from(source)
    await story.begin()
    there, source.url = source.url, "http://127.0.0.9:9"
    await story.be_wrong()
    assert story.told == {("NoMetrics", NO_ANSWER)}
    source.url = there
    await story.recover()


async def test_without_an_address_the_scaler_holds_and_says_what_to_set() -> None:
    story = Story().with_loads_from(NoServer())
    condition = await story.look()
    assert (condition["status"], condition["reason"]) == ("False", "NoMetrics")
    assert condition["message"] == f"no ready replica reports its load: nothing is scaled; {NO_SERVER}"
    for word in ("spec.scaling.metrics.source", "got Prometheus", "want PINRAIL_PROMETHEUS_URL", "next:"):
        assert word in condition["message"]
    assert story.cluster.replicas == 3


async def test_loads_have_the_age_of_their_scrape(server: FakeServer, source: Prometheus) -> None:
    answers = await source.loads(KEY, PODS)
    assert answers.keys() == set(NAMES)
    assert answers["chat-a"].load == load(0.25)
    assert answers["chat-a"].age == 1.0
    source.clock.now += 2.4  # type: ignore[attr-defined]
    assert (await source.loads(KEY, PODS))["chat-a"].age == pytest.approx(3.4)
    assert len(server.queries) == 1


async def test_a_thousand_services_make_eight_queries_a_tick(server: FakeServer, source: Prometheus) -> None:
    """One for each 500 pods, twice a tick; in their first tick, one for each eight services that come together."""
    clock: Any = source.clock
    keys = [ServiceKey(f"team-{i % 10}", f"s{i}") for i in range(1000)]
    together = [keys[first : first + 8] for first in range(0, len(keys), 8)]
    pods = {k: tuple(replace(PODS[0], name=f"{k.name}-{end}") for end in "ab") for k in keys}
    counts = []
    for _ in range(5):
        before = len(server.queries)
        for some in together:
            clock.now += source.tick / len(together)
            await asyncio.gather(*(source.loads(k, pods[k]) for k in some))
        counts.append(len(server.queries) - before)
    assert counts[0] <= 2 * len(together)
    assert counts[-1] == 8, counts
    assert max(len(q["query"]) for q in server.queries[-8:]) < 64_000


async def test_a_service_that_stopped_asking_is_no_longer_asked_for(server: FakeServer, source: Prometheus) -> None:
    clock: Any = source.clock
    await source.loads(ServiceKey("team", "gone"), (pod("gone-a"),))
    clock.now += 16.0
    await source.loads(KEY, PODS)
    assert "gone-a" not in server.queries[-1]["query"]
    assert "gone-a" in server.queries[0]["query"]


async def test_a_new_pod_is_asked_for_at_once(server: FakeServer, source: Prometheus) -> None:
    await source.loads(KEY, PODS[:2])
    await source.loads(KEY, PODS)
    assert ["chat-c" in q["query"] for q in server.queries] == [False, True]


async def test_nobody_waits_for_a_server_that_fails(server: FakeServer, source: Prometheus) -> None:
    """After the first time: a hung server must not hold up the operator's other work."""
    clock: Any = source.clock
    server.answer = "500"
    await source.loads(KEY, PODS)
    clock.now += 5.0
    server.answer = "slow"
    async with asyncio.timeout(0.5):
        answers = await source.loads(KEY, PODS)
    assert answers["chat-a"].error == "Prometheus: got the status 500, want 200"


async def test_the_token_is_read_for_each_query(server: FakeServer, source: Prometheus, tmp_path: Path) -> None:
    clock: Any = source.clock
    source.token_file = str(tmp_path / "token")
    for token in ("first\n", "second"):
        Path(source.token_file).write_text(token)
        await source.loads(KEY, PODS)
        clock.now += 5.0
    assert server.headers == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize("token", [None, b"", b"two\nlines", b"\xff"], ids=["no file", "empty", "two lines", "no text"])
async def test_a_token_that_is_none_is_said_and_nothing_is_sent(
    server: FakeServer, source: Prometheus, tmp_path: Path, token: bytes | None
) -> None:
    source.token_file = str(tmp_path / "token")
    if token is not None:
        Path(source.token_file).write_bytes(token)
    answers = await source.loads(KEY, PODS)
    assert answers["chat-a"].error == (
        "Prometheus: got no token from PINRAIL_PROMETHEUS_TOKEN_FILE, want one line of ASCII"
    )
    assert server.queries == []


async def test_each_query_is_counted_by_its_outcome(server: FakeServer) -> None:
    counted: list[str] = []
    source = Prometheus.create(server.url, "", 5.0, counted.append)
    await source.loads(KEY, PODS)
    server.answer = "503"
    await source.loads(ServiceKey("team", "other"), (pod("other-a"),))
    await source.close()
    assert counted == ["ok", "failed"]
