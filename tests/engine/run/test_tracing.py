"""Spans as a collector receives them, over HTTP; and that nobody waits for a collector that is not there."""

import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from pinrail_engine.core.request import Finished, Request
from pinrail_engine.core.types import FinishReason, SamplingParams, Terms
from pinrail_engine.tracing import Seldom, Tracer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes what is posted to it; answers only while `gate` is open."""

    def __init__(self) -> None:
        self.received: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.gate.wait(10)
                collector.paths.append(self.path)
                collector.received.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def spans(self) -> list[Span]:
        return [s for r in self.received for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def nowhere() -> str:
    """An endpoint that refuses connections."""
    gone = Collector()
    gone.close()
    return gone.endpoint


def served(now: float, traceparent: str = "") -> Finished:
    """Received at `now`; queued after 1 s, first step after 2, tokens after 4 and 7, ended after 8."""
    params = SamplingParams(max_tokens=20, temperature=0.5, top_p=0.9)
    terms = Terms(received=now, traceparent=traceparent)
    request = Request.new("cmpl-1", [1] * 6, params, 100, now + 1, terms)
    request.tokens += [1, 1]
    request.cached = 4
    request.scheduled_at, request.first_token_at, request.last_token_at = now + 2, now + 4, now + 7
    return Finished(request, FinishReason.LENGTH, now + 8)


def queued(now: float, reason: FinishReason, error: str = "") -> Finished:
    return Finished(Request.new("cmpl-2", [1] * 6, SamplingParams(max_tokens=20), 100, now), reason, now + 3, error)


def sent(collector: Collector, *ended: Finished) -> list[Span]:
    tracer = Tracer.from_settings(collector.endpoint, "pinrail-test", "smollm")
    for finished in ended:
        tracer.ended(finished)
    tracer.close()
    return collector.spans


def attributes(span: Span) -> dict[str, Any]:
    found = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        assert kind is not None
        value = getattr(pair.value, kind)
        found[pair.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return found


def test_a_served_request_is_one_span(collector: Collector) -> None:
    (span,) = sent(collector, served(time.monotonic()))
    assert (span.name, span.kind, span.parent_span_id) == ("llm_request", Span.SPAN_KIND_SERVER, b"")
    assert len(span.trace_id) == 16
    assert span.status.code == Status.STATUS_CODE_UNSET
    latencies = {key: value for key, value in attributes(span).items() if ".latency." in key}
    assert latencies == pytest.approx(
        {
            "gen_ai.latency.time_in_queue": 1,
            "gen_ai.latency.time_to_first_token": 4,
            "gen_ai.latency.time_in_model_prefill": 2,
            "gen_ai.latency.time_in_model_decode": 3,
            "gen_ai.latency.e2e": 8,
        }
    )
    assert {key: value for key, value in attributes(span).items() if key not in latencies} == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "pinrail",
        "gen_ai.request.id": "cmpl-1",
        "gen_ai.request.model": "smollm",
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.response.id": "cmpl-1",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 2,
    }


def test_it_comes_from_this_service(collector: Collector) -> None:
    sent(collector, served(time.monotonic()))
    assert collector.paths == ["/v1/traces"]
    (resource,) = [rs.resource for r in collector.received for rs in r.resource_spans]
    assert ("service.name", "pinrail-test") in {(a.key, a.value.string_value) for a in resource.attributes}


def test_times_are_those_of_the_wall_clock(collector: Collector) -> None:
    began = time.time_ns()
    (span,) = sent(collector, served(time.monotonic()))
    assert span.start_time_unix_nano == pytest.approx(began, abs=5e9)
    assert span.end_time_unix_nano - span.start_time_unix_nano == pytest.approx(8e9, abs=10)


def test_the_caller_is_its_parent(collector: Collector) -> None:
    (span,) = sent(collector, served(time.monotonic(), f"00-{TRACE}-{PARENT}-01"))
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.span_id.hex() != PARENT


@pytest.mark.parametrize(
    ("traceparent", "spans"),
    [
        (f"00-{TRACE}-{PARENT}-00", 0),  # the caller's trace is not sampled
        (f"00-{'0' * 32}-{PARENT}-00", 1),  # what follows names no trace, so this is one of its own
        ("00-xyz", 1),
        ("0" * 5000, 1),
        ("", 1),
    ],
)
def test_whose_span_is_sent(collector: Collector, traceparent: str, spans: int) -> None:
    found = sent(collector, served(time.monotonic(), traceparent))
    assert len(found) == spans
    assert all(span.parent_span_id == b"" for span in found)


@pytest.mark.parametrize(
    ("reason", "error", "code", "kind"),
    [
        (FinishReason.ABORT, "", Status.STATUS_CODE_UNSET, None),
        (FinishReason.REJECTED, "it waited too long", Status.STATUS_CODE_ERROR, "rejected"),
        (FinishReason.ERROR, "the step failed", Status.STATUS_CODE_ERROR, "error"),
    ],
)
def test_a_request_that_never_ran(
    collector: Collector, reason: FinishReason, error: str, code: int, kind: str | None
) -> None:
    (span,) = sent(collector, queued(time.monotonic(), reason, error))
    found = attributes(span)
    assert (span.status.code, span.status.message, found.get("error.type")) == (code, error, kind)
    assert found["gen_ai.response.finish_reasons"] == [str(reason)]
    latencies = {key: value for key, value in found.items() if ".latency." in key}
    assert latencies == pytest.approx({"gen_ai.latency.time_in_queue": 3, "gen_ai.latency.e2e": 3})


def test_spans_are_sent_without_being_asked_to(collector: Collector) -> None:
    tracer = Tracer.from_settings(collector.endpoint, "pinrail-test", "smollm")
    tracer.ended(served(time.monotonic()))
    deadline = time.monotonic() + 10
    while not collector.spans and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert len(collector.spans) == 1
    tracer.close()


def test_nobody_waits_for_a_collector_that_is_away(nowhere: str, caplog: pytest.LogCaptureFixture) -> None:
    """4,000 spans are more than the queue holds."""
    tracer = Tracer.from_settings(nowhere, "pinrail-test", "smollm")
    ended = served(time.monotonic())
    began = time.perf_counter()
    for _ in range(4000):
        tracer.ended(ended)
    assert (time.perf_counter() - began) / 4000 < 1e-3
    began = time.perf_counter()
    tracer.close(0.5)
    assert time.perf_counter() - began < 2
    for thread in threading.enumerate():
        if thread.name == "last-traces":
            thread.join(5)
            assert not thread.is_alive(), "it still tries"
    said = [record.msg for record in caplog.records]
    assert len(said) == len(set(said)) < 10


def test_nobody_waits_for_a_collector_that_hangs(collector: Collector) -> None:
    collector.gate.clear()
    tracer = Tracer.from_settings(collector.endpoint, "pinrail-test", "smollm")
    tracer.ended(served(time.monotonic()))
    began = time.perf_counter()
    tracer.close(0.3)
    assert time.perf_counter() - began < 2


def test_a_message_is_let_through_once_in_a_while() -> None:
    now = 1.0
    seldom = Seldom(lambda: now)

    def passes(message: str) -> bool:
        return seldom.filter(logging.LogRecord("x", logging.WARNING, "", 0, message, (1,), None))

    assert [passes("a %s"), passes("b %s"), passes("a %s"), passes("b %s")] == [True, True, False, False]
    now += 60
    assert passes("a %s")
