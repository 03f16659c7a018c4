"""Loads out of a real Prometheus: what it makes of bad pages, of its own absence, and of names that would be PromQL."""

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from apiserver_documents import pin, service
from operator_builders import load, pod
from operator_process import until
from prometheus_server import Prometheus as Server
from prometheus_server import prometheus
from scaling_story import NAMES, Story

from pinrail_contract import metrics as names
from pinrail_operator import prometheus as source
from pinrail_operator.load_query import ABSENT, NO_LOAD
from pinrail_operator.prometheus import NO_SERVER, Prometheus
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

FIGURES = {names.RUNNING: "0", names.WAITING: "0", names.KV_USAGE: "0.25", names.WAITING_BLOCKS: "0",
           names.MAX_NUM_SEQS: "10"}  # fmt: skip
KEY = ServiceKey("team", "chat")


def page(blocks: int = 100, labels: str = "", end: str = "", **figures: str) -> str:
    """Of an idle replica, with labels of its own; `end` follows each value."""
    config = f'{names.CACHE_CONFIG}{{block_size="16",num_gpu_blocks="{blocks}"}} 1{end}\n'
    return "".join(f"{name}{{{labels}}} {value}{end}\n" for name, value in (FIGURES | figures).items()) + config


def without(name: str) -> str:
    return "".join(line + "\n" for line in page().splitlines() if not line.startswith(name))


ROWS = {  # the page of the second of three replicas while something is wrong, and the end of the condition's message
    "down": ("500", ABSENT),
    "empty": ("", ABSENT),
    "no page": ("<html>", ABSENT),
    "NaN": (page(**{names.KV_USAGE: "NaN"}),
            f"Prometheus: {names.KV_USAGE}: got NaN, want a finite number, 0 or above"),
    "infinite": (page(**{names.WAITING: "+Inf"}),
                 f"Prometheus: {names.WAITING}: got +Inf, want a finite number, 0 or above"),
    "negative": (page(**{names.RUNNING: "-1"}),
                 f"Prometheus: {names.RUNNING}: got -1, want a finite number, 0 or above"),
    "above 1": (page(**{names.KV_USAGE: "1.5"}), f"Prometheus: {names.KV_USAGE}: got 1.5, want 0 to 1"),
    "one is missing": (without(names.WAITING), f"Prometheus: {names.WAITING}: stands 0 times on the page, want once"),
    "no cache yet": (without(names.CACHE_CONFIG),
                     f"Prometheus: {names.CACHE_CONFIG}: stands 0 times on the page, want once"),
    "two engines": (page() + page(labels='engine="1"'),
                    f"Prometheus: {names.KV_USAGE}: stands 2 times on the page, want once"),
}  # fmt: skip


@dataclass
class Pages:
    """Pages by path, on 127.0.0.1; `500` answers with that status."""

    port: int = 0
    texts: dict[str, str] = field(default_factory=dict)

    def targets(self) -> list[dict[str, Any]]:
        """A path is /NAMESPACE/SERVICE/NUMBER, and its pod is the one of that number."""
        return [self.target(path, *path.split("/")[1:3], pod=NAMES[int(path[-1])]) for path in self.texts]

    def target(self, path: str, namespace: str, service: str, pod: str) -> dict[str, Any]:
        labels = {"__metrics_path__": path, "namespace": namespace, "inference_service": service, "pod": pod}
        return {"targets": [f"127.0.0.1:{self.port}"], "labels": labels}


@pytest.fixture
def pages() -> Iterator[Pages]:
    held = Pages()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = held.texts[self.path]
            self.send_response(500 if text == "500" else 200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    held.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield held
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def serve(tmp_path: Path, free_port: Callable[[], int]) -> Callable[[list[dict[str, Any]]], Any]:
    """Starts Prometheus over targets; the second time it has the data of the first."""
    port = free_port()
    return lambda targets: prometheus(tmp_path, [{"job_name": "engines", "static_configs": targets}], port=port)


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Server], Prometheus]]:
    made: list[Prometheus] = []

    def one(server: Server) -> Prometheus:
        made.append(Prometheus.create(server.url, "", 5.0, lambda _: None))
        return made[-1]

    yield one
    for each in made:
        await each.close()


async def scraped(server: Server) -> None:
    """Every target has been scraped since now."""
    began = time.time()

    def is_new(target: dict[str, Any]) -> bool:
        return datetime.fromisoformat(target["lastScrape"]).timestamp() > began

    deadline = time.monotonic() + 20
    while not ((targets := server.targets()) and all(is_new(t) for t in targets)):
        assert time.monotonic() < deadline, server.targets()
        await asyncio.sleep(0.1)


def story_from(loads: Prometheus, key: ServiceKey = KEY) -> Story:
    async def settled() -> None:
        if loads._round is not None:
            await loads._round

    story = Story(key, settled=settled).with_loads_from(loads)
    loads.clock = story.clock
    return story


async def test_a_bad_page_removes_no_replica_and_a_whole_window_is_awaited_after_it(
    pages: Pages, serve: Callable[..., Any], connect: Callable[[Server], Prometheus], caplog: pytest.LogCaptureFixture
) -> None:
    keys = {name: ServiceKey(f"team-{i}", "chat") for i, name in enumerate(ROWS)}
    pages.texts = {f"/{key.namespace}/{key.name}/{i}": page() for key in keys.values() for i in range(3)}
    with serve(pages.targets()) as server:
        await scraped(server)
        stories = {name: story_from(connect(server), key) for name, key in keys.items()}
        for story in stories.values():
            await story.begin()
        for name, key in keys.items():
            pages.texts[f"/{key.namespace}/{key.name}/1"] = ROWS[name][0]
        await scraped(server)
        for story in stories.values():
            await story.be_wrong()
        kinds = {name: ABSENT if why == ABSENT else NO_LOAD for name, (_, why) in ROWS.items()}
        assert {n: s.told for n, s in stories.items()} == {n: {("MetricsIncomplete", k)} for n, k in kinds.items()}
        assert [why for _, why in ROWS.values() if why not in caplog.text] == []
        pages.texts = dict.fromkeys(pages.texts, page())
        await scraped(server)
        for story in stories.values():
            await story.recover()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
async def test_while_prometheus_is_away_no_replica_is_removed_and_a_whole_window_is_awaited_after_it(
    pages: Pages, serve: Callable[..., Any], connect: Callable[[Server], Prometheus],
    monkeypatch: pytest.MonkeyPatch, how: signal.Signals,
) -> None:  # fmt: skip
    monkeypatch.setattr(source, "TIMEOUT", 0.5)
    pages.texts = {f"/team/chat/{i}": page() for i in range(3)}
    with serve(pages.targets()) as server:
        await scraped(server)
        loads = connect(server)
        story = story_from(loads)
        await story.begin()
        server.child.send_signal(how)
        await story.be_wrong()
        ((reason, why),) = story.told
        assert reason == "NoMetrics"
        assert why.startswith("Prometheus: got no answer")
        if how is signal.SIGSTOP:
            server.child.send_signal(signal.SIGCONT)
            await scraped(server)
            await story.recover()
    if how is signal.SIGKILL:
        with serve(pages.targets()) as again:
            await scraped(again)
            await story.recover()


async def test_a_figure_is_as_old_as_its_scrape(
    pages: Pages, serve: Callable[..., Any], connect: Callable[[Server], Prometheus]
) -> None:
    """Prometheus returns what is up to five minutes old as if it were of now."""
    a_minute_ago = int((time.time() - 60) * 1000)
    pages.texts = {"/team/chat/0": page(), "/team/chat/1": page(end=f" {a_minute_ago}")}
    with serve(pages.targets()) as server:
        await scraped(server)
        answers = await connect(server).loads(KEY, (pod(NAMES[0]), pod(NAMES[1])))
        assert [a.load for a in answers.values()] == [load(0.25), load(0.25)]
        assert 0 <= answers[NAMES[0]].age < 5
        assert 59 < answers[NAMES[1]].age < 80


async def test_a_pod_that_calls_itself_another_counts_as_itself(
    pages: Pages, serve: Callable[..., Any], connect: Callable[[Server], Prometheus]
) -> None:
    claims = f'namespace="team",inference_service="chat",pod="{NAMES[0]}"'
    pages.texts = {"/team/chat/0": page(), "/other/chat/1": page(labels=claims, **{names.KV_USAGE: "0"})}
    with serve(pages.targets()) as server:
        await scraped(server)
        answers = await connect(server).loads(KEY, (pod(NAMES[0]), pod(NAMES[1])))
        assert (answers[NAMES[0]].load, answers[NAMES[0]].error) == (load(0.25), "")
        assert (answers[NAMES[1]].load, answers[NAMES[1]].error) == (None, ABSENT)


HOSTILE = ("a.b", "axb", ".*", 'a"} or vector(1) #', "a\\", "a|b", "(a", "$1", "", "a\nb", "ü")


async def test_a_name_that_would_be_promql_is_a_name(
    pages: Pages, serve: Callable[..., Any], connect: Callable[[Server], Prometheus]
) -> None:
    """Kubernetes takes no such names; a query would be right about them all the same."""
    found = [name for name in HOSTILE if name]
    pages.texts = {f"/{i}": page(blocks=i + 1) for i in range(len(found))}
    targets = [pages.target(f"/{i}", name, name, name) for i, name in enumerate(found)]
    with serve(targets) as server:
        await scraped(server)
        loads = connect(server)
        for i, name in enumerate(found):
            answers = await loads.loads(ServiceKey(name, name), tuple(pod(n) for n in found))
            assert {n: a.load.kv_blocks for n, a in answers.items() if a.load is not None} == {name: i + 1}
            assert {a.error for n, a in answers.items() if n != name} == {ABSENT}


def scaling_active(kube: Any) -> tuple[str, str, str]:
    found = {c["type"]: c for c in kube.get("infs", "chat").get("status", {}).get("conditions", [])}
    told = found.get("ScalingActive", {})
    return told.get("status", ""), told.get("reason", ""), told.get("message", "")


def with_a_ready_pod(kube: Any) -> None:
    """A service that follows Prometheus, and a pod that is ready, whose own page nobody can read."""
    scaling = {"maxReplicas": 3, "metrics": {"source": "Prometheus"}}
    kube.apply(pin(), service(replicas=None, scaling=scaling))
    until(lambda: kube.exists("deployment", "chat"), "the Deployment")
    template = kube.get("deployment", "chat")["spec"]["template"]
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAMES[0], **template["metadata"]},
                "spec": template["spec"]})  # fmt: skip
    ready = {"type": "Ready", "status": "True"}
    kube.patch_status("pod", NAMES[0], {"phase": "Running", "podIP": "127.0.0.9", "conditions": [ready]})


def test_an_operator_scales_on_what_prometheus_has(
    kube: Any, start: Any, pages: Pages, serve: Callable[..., Any]
) -> None:
    path = f"/{kube.namespace}/chat/0"
    pages.texts = {path: page(**{names.KV_USAGE: "1.0"})}
    with serve(pages.targets()) as server:
        until(start(PINRAIL_PROMETHEUS_URL=server.url).leads, "leading")
        with_a_ready_pod(kube)
        until(lambda: kube.get("deployment", "chat")["spec"]["replicas"] == 2, "two replicas")
        last = kube.get("infs", "chat")["status"]["scaling"]["lastScale"]
        assert (last["from"], last["to"], last["reason"]) == (1, 2, "CacheDemand")


def test_an_operator_without_an_address_says_what_to_set(kube: Any, start: Any) -> None:
    until(start().leads, "leading")
    with_a_ready_pod(kube)
    until(lambda: NO_SERVER in scaling_active(kube)[2], "the condition")
    assert scaling_active(kube)[:2] == ("False", "NoMetrics")
    assert kube.get("deployment", "chat")["spec"]["replicas"] == 1
