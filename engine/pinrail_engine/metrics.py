"""The figures of one engine, in Prometheus text format. Names are the contract's; labels are vLLM's.

Counters and histograms are added to as things happen; gauges are set from a `Load` taken when the page is asked for.
"""

import threading
from dataclasses import dataclass

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from pinrail_contract import metrics as names

from .core.commit import Outcome
from .core.plan import StepPlan
from .core.request import Finished
from .core.types import FinishReason

_SECONDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 60, 120, 300, 600),
)
_TOKENS = tuple(mantissa * 10**power for power in range(6) for mantissa in (1, 2, 5))  # 1 to 500,000
_LABELS = ("model_name", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the engine carries at one moment."""

    running: int  # requests
    waiting: int  # requests
    waiting_blocks: int  # KV blocks that they will need
    live_blocks: int
    free_blocks: int
    oldest_waiting: float  # seconds; 0 where none waits
    last_step_age: float  # seconds since progress; 0 while idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What does not change while the engine lives."""

    model_name: str
    digest: str
    engine_version: str
    verification: str
    kv_blocks: int
    block_size: int  # tokens
    max_num_seqs: int


class Metrics:
    def __init__(self, identity: Identity) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # process_start_time_seconds, memory, processor time
        self._identity, self._rendering = identity, threading.Lock()
        self._phases = self._gauge(names.LOAD_SECONDS, "Seconds of start-up, by phase.", "phase")
        self._add_gauges()
        self._add_counters()
        self._add_histograms()
        self._set_identity(identity)

    def started(self, phase: str, seconds: float) -> None:
        """Note how long a phase of the start took: import, verify, load or warmup."""
        self._phases.labels(*self._values, phase).set(seconds)

    def step(self, plan: StepPlan) -> None:
        self._steps.inc()
        self._iteration_tokens.observe(plan.tokens)
        self._preemptions.inc(len(plan.preempted))

    def outcome(self, outcome: Outcome) -> None:
        """One request's new token, if it has one."""
        if not outcome.event.token_ids:
            return
        request = outcome.request
        self._generation_tokens.inc(len(outcome.event.token_ids))
        if outcome.since_last is not None:
            self._itl.observe(outcome.since_last)
        elif request.first_token_at is not None:
            self._prompt_tokens.inc(request.prompt_len)
            self._ttft.observe(request.first_token_at - request.arrival)

    def finished(self, finished: Finished) -> None:
        """A request that was let in has ended, in whichever way."""
        request = finished.request
        self._finished[finished.reason].inc()
        self._request_prompt_tokens.observe(request.prompt_len)
        self._request_generation_tokens.observe(request.output_len)
        self._e2e.observe(finished.at - request.arrival)
        if request.scheduled_at is None:
            self._queue_time.observe(finished.at - request.arrival)
            return
        self._queue_time.observe(request.scheduled_at - request.arrival)
        if request.first_token_at is not None and request.last_token_at is not None:
            self._prefill_time.observe(request.first_token_at - request.scheduled_at)
            self._decode_time.observe(request.last_token_at - request.first_token_at)

    def rejected(self) -> None:
        """A request was refused at the door."""
        self._finished[FinishReason.REJECTED].inc()

    def released(self, seconds: float) -> None:
        """An aborted request's blocks are free, so long after the abort was asked for."""
        self._release.observe(seconds)

    def page(self, load: Load) -> bytes:
        """The whole page, with gauges as in `load`. Thread-safe."""
        with self._rendering:
            self._running.set(load.running)
            self._waiting.set(load.waiting)
            self._waiting_blocks.set(load.waiting_blocks)
            self._usage.set(load.live_blocks / max(1, load.live_blocks + load.free_blocks))
            self._live.set(load.live_blocks)
            self._free.set(load.free_blocks)
            self._oldest.set(load.oldest_waiting)
            self._age.set(load.last_step_age)
            return prometheus_client.generate_latest(self._registry)

    @property
    def _values(self) -> tuple[str, str]:
        return self._identity.model_name, "0"

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, (*_LABELS, *labels), registry=self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, _LABELS, registry=self._registry).labels(*self._values)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        return Histogram(name, text, _LABELS, buckets=buckets, registry=self._registry).labels(*self._values)

    def _add_gauges(self) -> None:
        values = self._values
        self._running = self._gauge(names.RUNNING, "Requests that hold KV blocks.").labels(*values)
        self._waiting = self._gauge(names.WAITING, "Requests in the queue.").labels(*values)
        self._usage = self._gauge(names.KV_USAGE, "Share of KV blocks that requests hold, 0 to 1.").labels(*values)
        self._waiting_blocks = self._gauge(names.WAITING_BLOCKS, "KV blocks that the queue will need.").labels(*values)
        blocks = self._gauge(names.KV_BLOCKS, "KV blocks, by state.", "state")
        self._live, self._free = blocks.labels(*values, "live"), blocks.labels(*values, "free")
        self._oldest = self._gauge(names.OLDEST_WAITING, "Age of the oldest request in the queue.").labels(*values)
        self._age = self._gauge(names.LAST_STEP_AGE, "Since the last step ended; 0 while idle.").labels(*values)

    def _add_counters(self) -> None:
        self._steps = self._counter(names.STEPS, "Steps computed, or failed.")
        self._prompt_tokens = self._counter(names.PROMPT_TOKENS, "Prompt tokens of requests that got a first token.")
        self._generation_tokens = self._counter(names.GENERATION_TOKENS, "Tokens generated.")
        self._preemptions = self._counter(names.PREEMPTIONS, "Times that a request gave its blocks up.")
        ended = Counter(
            names.REQUEST_SUCCESS,
            "Requests that ended, by reason.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._finished = {reason: ended.labels(*self._values, str(reason)) for reason in FinishReason}

    def _add_histograms(self) -> None:
        self._ttft = self._histogram(names.TTFT, "Arrival to first token.")
        self._itl = self._histogram(names.ITL, "Between two tokens of a request.")
        self._e2e = self._histogram(names.E2E, "Arrival to end.")
        self._queue_time = self._histogram(names.QUEUE_TIME, "Arrival to first time in a step, or to the end.")
        self._prefill_time = self._histogram(names.PREFILL_TIME, "First time in a step to first token.")
        self._decode_time = self._histogram(names.DECODE_TIME, "First token to last.")
        self._release = self._histogram(names.CANCEL_RELEASE, "Abort to blocks freed.")
        self._request_prompt_tokens = self._histogram(names.REQUEST_PROMPT_TOKENS, "Prompt tokens.", _TOKENS)
        self._request_generation_tokens = self._histogram(names.REQUEST_GENERATION_TOKENS, "Output tokens.", _TOKENS)
        self._iteration_tokens = self._histogram(names.ITERATION_TOKENS, "Tokens in one step.", _TOKENS)

    def _set_identity(self, identity: Identity) -> None:
        values = self._values
        config = self._gauge(names.CACHE_CONFIG, "The KV cache.", "block_size", "num_gpu_blocks")
        config.labels(*values, str(identity.block_size), str(identity.kv_blocks)).set(1)
        info = self._gauge(names.MANIFEST_INFO, "What is served.", "digest", "engine_version", "verification")
        info.labels(*values, identity.digest, identity.engine_version, identity.verification).set(1)
        seqs = self._gauge(names.MAX_NUM_SEQS, "Requests that may run at once.")
        seqs.labels(*values).set(identity.max_num_seqs)
