"""The operator's metrics page: what stands on it, and that no label grows without bound."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from aiohttp import web
from operator_builders import pod
from prometheus_client.parser import text_string_to_metric_families

from pinrail_operator import health
from pinrail_operator.errors import Conflict, NotLeader, OperatorError, Refused, Unavailable
from pinrail_operator.metrics import Scrape
from pinrail_operator.queue import KeyQueue
from pinrail_operator.telemetry import MOST_REASONS, Request, Telemetry
from pinrail_operator.types import ServiceKey

KEY = ServiceKey("team", "chat")
Page = dict[tuple[str, ...], float]


class Lease:
    """What health asks of leadership."""

    tried_at = 1.0

    def __init__(self) -> None:
        self.leads = True

    def is_leader(self) -> bool:
        return self.leads


class Operator:
    """Telemetry behind the real endpoint."""

    def __init__(self) -> None:
        self.lease, self.queue = Lease(), KeyQueue[ServiceKey](1)
        self.telemetry = Telemetry(self.lease.is_leader, self.queue)
        self.url = ""

    def application(self) -> web.Application:
        return health.application(self.queue, self.lease, self.telemetry.registry)  # type: ignore[arg-type]

    async def page(self) -> Page:
        """Values by name and the labels' values, in the order of their names."""
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(self.url)
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = text_string_to_metric_families(answer.text)
        return {(s.name, *(s.labels[k] for k in sorted(s.labels))): s.value for f in families for s in f.samples}


@pytest.fixture
async def operator(free_port: Callable[[], int]) -> AsyncIterator[Operator]:
    made, port = Operator(), free_port()
    runner = await health.serve(made.application(), port)
    made.url = f"http://127.0.0.1:{port}/metrics"
    yield made
    await runner.cleanup()


def status(*conditions: tuple[str, str, str]) -> dict[str, Any]:
    since = {"lastTransitionTime": "2026-01-02T03:04:05Z"}
    return {"conditions": [{"type": t, "status": s, "reason": r, **since} for t, s, r in conditions]}


@pytest.mark.parametrize(
    ("method", "path", "request_"),
    [
        ("GET", "/api/v1/namespaces/team/pods", Request("list", "Pod", False)),
        ("GET", "/apis/apps/v1/namespaces/team/deployments/chat", Request("get", "Deployment", False)),
        ("PATCH", "/apis/apps/v1/namespaces/team/deployments/chat", Request("apply", "Deployment", False)),
        (
            "PUT",
            "/apis/pinrail.dev/v1alpha1/namespaces/a/inferenceservices/b/status",
            Request("update", "InferenceService", True),
        ),
        ("POST", "/api/v1/namespaces/team/events", Request("create", "Event", False)),
        ("DELETE", "/api/v1/namespaces/team/configmaps/c", Request("delete", "ConfigMap", False)),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/p/leases/operator", Request("get", "Lease", False)),
        ("GET", "/api/v1/namespaces/team/secrets/s", Request("get", "Other", False)),
        ("GET", "/apis/pinrail.dev/v1alpha1", Request("get", "Other", False)),
    ],
)
def test_a_request_is_named_by_verb_and_kind(method: str, path: str, request_: Request) -> None:
    assert Request.of(method, f"https://10.0.0.1:6443{path}?fieldManager=x") == request_


async def test_writes_are_told_apart_from_statuses_leases_and_what_failed(operator: Operator) -> None:
    deployments = "https://k/apis/apps/v1/namespaces/team/deployments/chat"
    told = operator.telemetry.requested
    told("PATCH", deployments, 200)
    told("PATCH", deployments, 409)
    told("PATCH", deployments, 0)
    told("GET", deployments, 200)
    told("PUT", "https://k/apis/pinrail.dev/v1alpha1/namespaces/team/inferenceservices/chat/status", 200)
    told("PUT", "https://k/apis/coordination.k8s.io/v1/namespaces/p/leases/operator", 200)
    page = await operator.page()
    writes = {key: n for key, n in page.items() if key[0] == "pinrail_operator_objects_written_total"}
    assert writes == {("pinrail_operator_objects_written_total", "Deployment"): 1}
    assert page["pinrail_operator_status_writes_total",] == 1
    requests = {key[1:]: n for key, n in page.items() if key[0] == "pinrail_operator_api_requests_total"}
    assert requests == {
        ("2xx", "Deployment", "apply"): 1,
        ("4xx", "Deployment", "apply"): 1,
        ("none", "Deployment", "apply"): 1,
        ("2xx", "Deployment", "get"): 1,
        ("2xx", "InferenceService", "update"): 1,
        ("2xx", "Lease", "update"): 1,
    }


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (Conflict("c"), "conflict"),
        (Refused("r"), "refused"),
        (Unavailable("u"), "unavailable"),
        (KeyError("bug"), "error"),
        (OperatorError("o"), "error"),
        (None, "ok"),
    ],
    ids=str,
)
async def test_a_reconcile_counts_once_by_its_outcome(
    operator: Operator, raised: Exception | None, outcome: str
) -> None:
    async def work(_: ServiceKey) -> float:
        if raised is not None:
            raise raised
        return 5.0

    done = await asyncio.gather(operator.telemetry.measured(work)(KEY), return_exceptions=True)
    assert done == [raised or 5.0]
    page = await operator.page()
    counted = {key[1]: n for key, n in page.items() if key[0] == "pinrail_operator_reconciles_total" and n}
    assert counted == {outcome: 1}
    assert page["pinrail_operator_reconcile_seconds_count",] == 1


async def test_what_a_follower_leaves_to_the_leader_is_no_reconcile(operator: Operator) -> None:
    async def work(_: ServiceKey) -> float:
        raise NotLeader("another leads")

    with pytest.raises(NotLeader):
        await operator.telemetry.measured(work)(KEY)
    assert (await operator.page())["pinrail_operator_reconcile_seconds_count",] == 0


async def test_services_are_counted_by_condition_while_this_process_leads(operator: Operator) -> None:
    ready, held = ("Ready", "True", "Serving"), ("ScalingActive", "False", "NoMetrics")
    operator.telemetry.told(KEY, status(ready, held), None)
    operator.telemetry.told(ServiceKey("team", "other"), status(ready), None)
    operator.telemetry.standings.clock = lambda: 1767323045.0 + 60  # a minute after 2026-01-02T03:04:05Z
    page = await operator.page()
    assert page["pinrail_operator_services", "Ready", "Serving", "True"] == 2
    assert page["pinrail_operator_services", "ScalingActive", "NoMetrics", "False"] == 1
    assert page["pinrail_operator_condition_oldest_seconds", "Ready", "Serving", "True"] == 60
    assert page["pinrail_operator_leader",] == 1
    operator.lease.leads = False
    page = await operator.page()
    assert page["pinrail_operator_leader",] == 0
    assert not [key for key in page if key[0] == "pinrail_operator_services"]


async def test_a_service_that_is_gone_is_counted_no_more(operator: Operator) -> None:
    async def gone(_: ServiceKey) -> None:
        return None

    operator.telemetry.told(KEY, status(("Ready", "True", "Serving")), None)
    await operator.telemetry.measured(gone)(KEY)
    page = await operator.page()
    assert not [key for key in page if key[0] == "pinrail_operator_services"]
    assert page["pinrail_operator_reconciles_total", "gone"] == 1


async def test_a_thousand_reasons_are_a_bounded_number_of_series(operator: Operator) -> None:
    for i in range(1000):
        reason = "CrashLoopBackOff" if i % 2 else f"Odd{i}"
        operator.telemetry.told(ServiceKey("team", f"s{i}"), status(("Ready", "False", reason)), None)
    page = await operator.page()
    series = {key[2]: n for key, n in page.items() if key[0] == "pinrail_operator_services"}
    assert len(series) == MOST_REASONS + 1
    assert (series["CrashLoopBackOff"], sum(series.values())) == (500, 1000)
    assert series["Other"] == 500 - (MOST_REASONS - 1)


async def test_the_queue_tells_its_length_and_its_oldest_wait(operator: Operator) -> None:
    operator.queue.add(KEY, delay=-7.0)
    operator.queue.add(ServiceKey("team", "later"), delay=600.0)
    page = await operator.page()
    assert page["pinrail_operator_queue_length",] == 1
    assert 7.0 <= page["pinrail_operator_queue_oldest_seconds",] < 60.0


async def test_replicas_that_do_not_answer_are_counted(operator: Operator) -> None:
    class Answers:
        async def scrape(self, pods: tuple[Any, ...]) -> dict[str, Scrape]:
            return {p.name: Scrape(error="status 500, want 200") if p.name == "b" else Scrape() for p in pods}

        async def fetched(self, pods: tuple[Any, ...]) -> dict[str, float]:
            return {"a": 0.5}

    answers = await operator.telemetry.counted(Answers()).scrape((pod("a"), pod("b"), pod("c")))
    assert sorted(answers) == ["a", "b", "c"]
    assert await operator.telemetry.counted(Answers()).fetched((pod("a"), pod("b"))) == {"a": 0.5}
    page = await operator.page()
    assert page["pinrail_operator_engine_scrapes_total", "ok"] == 2
    assert page["pinrail_operator_engine_scrapes_total", "failed"] == 1


async def test_the_page_says_which_build_answers(operator: Operator) -> None:
    assert [key for key in await operator.page() if key[0] == "pinrail_operator_build_info"]


async def test_questions_to_prometheus_are_counted_from_the_first_page_on(operator: Operator) -> None:
    operator.telemetry.queried("failed")
    page = await operator.page()
    assert page["pinrail_operator_prometheus_queries_total", "ok"] == 0
    assert page["pinrail_operator_prometheus_queries_total", "failed"] == 1
