"""One span per request, sent to an OpenTelemetry collector: OTLP over HTTP. Imported only where a collector is named.

A span is made when its request has ended, from the times that the request carries, and put into a bounded queue; a
thread of the SDK's sends what is in it. So whoever ends requests never waits for the network: a collector that is slow
or away costs spans, which are dropped when the queue is full, and a line in the log each minute.

The SDK's own environment variables hold: OTEL_TRACES_SAMPLER (its default: what the caller's trace says, else all),
OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_HEADERS and those for certificates.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ (names), and vLLM's `vllm/tracing` for what the
conventions lack: gen_ai.latency.…, in seconds, and gen_ai.request.id.
"""

import logging
import threading
import time
from collections.abc import Callable
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from .core.request import Finished, Request
from .core.types import FinishReason

_QUEUED = 2048  # spans that wait to be sent
_BATCH = 32  # spans in one message: 4 ms of encoding, which the engine's thread may have to wait for
_DELAY = 1000  # milliseconds until a span is sent
_TIMEOUT = 10.0  # seconds for one message, all its tries together
_QUIET = 60.0  # seconds until the log says the same again
_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace",
    "opentelemetry.trace.propagation.tracecontext",
)
_FAILED = (FinishReason.ERROR, FinishReason.REJECTED)


class Seldom(logging.Filter):
    """Lets each message through once in a while, whatever its arguments.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[str, float] = {}  # message -> when

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now - self._said.get(str(record.msg), -_QUIET) < _QUIET:
            return False
        self._said[str(record.msg)] = now
        return True


_seldom = Seldom()


class Tracer:
    """Makes and sends spans.

    Args:
        offset: Nanoseconds from the engine's clock to the time since 1970.
    """

    def __init__(self, provider: TracerProvider, exporter: SpanExporter, model_name: str, offset: int) -> None:
        self._provider, self._exporter, self._model_name, self._offset = provider, exporter, model_name, offset
        self._spans = provider.get_tracer("pinrail", version("pinrail"))
        self._callers = TraceContextTextMapPropagator()

    @classmethod
    def from_settings(cls, endpoint: str, service_name: str, model_name: str) -> "Tracer":
        """Args: endpoint: URL with the path, as http://collector:4318/v1/traces."""
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_seldom)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT)
        provider = TracerProvider(resource=Resource.create({"service.name": service_name}), shutdown_on_exit=False)
        provider.add_span_processor(
            BatchSpanProcessor(
                exporter, max_queue_size=_QUEUED, max_export_batch_size=_BATCH, schedule_delay_millis=_DELAY
            )
        )
        return cls(provider, exporter, model_name, time.time_ns() - time.monotonic_ns())

    def ended(self, finished: Finished) -> None:
        """Queue the span of a request. Cost: 60 microseconds, 10 where the caller's trace is not sampled."""
        request = finished.request
        span = self._spans.start_span(
            "llm_request",
            self._callers.extract({"traceparent": request.terms.traceparent}, Context()),
            SpanKind.SERVER,
            start_time=self._nanoseconds(request.received),
        )
        if span.is_recording():
            span.set_attributes(_asked(request, self._model_name) | _answered(finished) | _latencies(finished))
            if finished.reason in _FAILED:
                span.set_attribute("error.type", str(finished.reason))
                span.set_status(Status(StatusCode.ERROR, finished.error))
        span.end(self._nanoseconds(finished.at))

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, for so many seconds at most; what is left then is lost. To be called once."""
        ending = threading.Thread(target=self._provider.shutdown, name="last-traces", daemon=True)
        ending.start()
        ending.join(timeout)
        if ending.is_alive():
            self._exporter.shutdown()  # ends the wait between two tries

    def _nanoseconds(self, seconds: float) -> int:
        return round(seconds * 1e9) + self._offset


def _asked(request: Request, model_name: str) -> dict[str, AttributeValue]:
    params = request.params
    return {
        "gen_ai.operation.name": "text_completion",  # of tokens, chat or not
        "gen_ai.provider.name": "pinrail",
        "gen_ai.request.id": request.id,
        "gen_ai.request.model": model_name,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
    }


def _answered(finished: Finished) -> dict[str, AttributeValue]:
    request = finished.request
    return {
        "gen_ai.response.id": request.id,
        "gen_ai.response.finish_reasons": (str(finished.reason),),
        "gen_ai.usage.input_tokens": request.prompt_len,
        "gen_ai.usage.cache_read.input_tokens": request.cached,
        "gen_ai.usage.output_tokens": request.output_len,
    }


def _latencies(finished: Finished) -> dict[str, AttributeValue]:
    """In seconds, as in the metrics; what never began is left out."""
    request = finished.request
    scheduled, first, last = request.scheduled_at, request.first_token_at, request.last_token_at
    found: dict[str, AttributeValue] = {
        "gen_ai.latency.time_in_queue": (finished.at if scheduled is None else scheduled) - request.arrival,
        "gen_ai.latency.e2e": finished.at - request.received,
    }
    if scheduled is not None and first is not None and last is not None:
        found["gen_ai.latency.time_to_first_token"] = first - request.received
        found["gen_ai.latency.time_in_model_prefill"] = first - scheduled
        found["gen_ai.latency.time_in_model_decode"] = last - first
    return found
