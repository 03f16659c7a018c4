"""The figures of one engine, in Prometheus text format. Names are the contract's; labels are vLLM's.

Counters and histograms are added to as things happen; gauges are set from a `Load` taken when the page is asked for.
Whoever tells holds the engine's lock, so each method is called by one thread at a time; `page` by any.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from pinrail_contract import metrics as names
from pinrail_contract.runtime import Runtime

from .core.commit import Outcome
from .core.plan import StepPlan
from .core.request import Finished, Request
from .core.step_time import TERMS
from .core.types import FinishReason
from .metric_families import Buckets, ByLength, Page
from .numerics import runtime_of

_SECONDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 60, 120, 300, 600),
)
_FEW_SECONDS = (*(m * 10.0**p for p in range(-3, 2) for m in (1, 2, 5)), 100, 200, 600)  # of the many classes of length
_GAP_SECONDS = tuple(m * 10.0**p for p in range(-5, 0) for m in (1, 2, 5))  # 10 microseconds to 0.5
_TOKENS = tuple(mantissa * 10**power for power in range(6) for mantissa in (1, 2, 5))  # 1 to 500,000
_TIMES = (0, 1, 2, 3, 5, 10, 20)

_AT_THE_DOOR = ("never_fits", "max_queued", "max_queued_tokens", "not_ready")
_FROM_THE_QUEUE = ("displaced", "waited", "deadline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the engine carries at one moment."""

    running: int  # requests
    waiting: int  # requests
    waiting_deferred: int  # of these, because another one computes their prefix
    waiting_blocks: int  # KV blocks that they will need
    queued_prompt_tokens: int
    live_blocks: int
    cached_blocks: int  # free to take, but holding a prefix
    free_blocks: int  # the others
    evicted_blocks: int  # cached ones taken for something else, since the start
    oldest_waiting: float  # seconds; 0 where none waits
    last_step_age: float  # seconds since progress; 0 while idle
    step_time: Mapping[str, float]  # seconds by term of `core.step_time`
    output_share: float  # 0 to 1, of max_tokens that outputs are expected to take


NOTHING = Load(  # while loading
    running=0,
    waiting=0,
    waiting_deferred=0,
    waiting_blocks=0,
    queued_prompt_tokens=0,
    live_blocks=0,
    cached_blocks=0,
    free_blocks=0,
    evicted_blocks=0,
    oldest_waiting=0.0,
    last_step_age=0.0,
    step_time={},
    output_share=0.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """What computes, and in which numbers."""

    backend: str
    instructions: str  # a processor's instruction set, or an accelerator's name
    dtype: str
    quantization: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What does not change while the engine lives."""

    model_name: str
    digest: str
    engine_version: str
    verification: str
    block_size: int  # tokens
    max_num_seqs: int
    computing: Computing

    @property
    def runtime(self) -> Runtime:
        c = self.computing
        return runtime_of(
            self.engine_version,
            backend=c.backend,
            dtype=c.dtype,
            quantization=c.quantization,
            instructions=c.instructions,
        )


class Metrics:
    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._page = Page({"model_name": identity.model_name, "engine": "0"})
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)  # process_start_time_seconds, memory, processor time
        self._block_size, self._rendering = identity.block_size, threading.Lock()
        self._phases = self._page.gauge(names.LOAD_SECONDS, "Seconds of start-up, by phase.", "phase")
        self._cache_config = self._page.gauge(names.CACHE_CONFIG, "The KV cache.", "block_size", "num_gpu_blocks")
        self._set_identity(identity)
        self._add_gauges()
        self._add_counters()
        self._add_histograms()
        self._add_histograms_by_length()

    def started(self, phase: str, seconds: float) -> None:
        """Note how long a phase of the start took: import, verify, load, allocate or warmup."""
        self._phases.series(phase).value = seconds

    def laid_out(self, kv_blocks: int) -> None:
        """The cache has so many blocks. To be told once."""
        self._cache_config.series(str(self._block_size), str(kv_blocks)).value = 1

    def step(self, plan: StepPlan, seconds: float, host_gap: float | None) -> None:
        """A step ended, or failed.

        Args:
            seconds: That it took.
            host_gap: Seconds that the device had been idle before it, with work there; None where there was none.
        """
        self._steps.value += 1
        self._iteration_tokens.observe(plan.tokens)
        self._step_seconds[_kind(plan)].observe(seconds)
        self._recomputed.value += plan.recomputed
        if host_gap is not None:
            self._host_gap.observe(host_gap)

    def preempted(self, requests: int) -> None:
        """So many gave their blocks up in a plan, whether or not there was anything left to compute in it."""
        self._preemptions.value += requests

    def began(self, request: Request) -> None:
        """A request runs for the first time, so what the cache holds of it is known."""
        if request.root:
            self._prefix_queries.value += request.prompt_len
            self._prefix_hits.value += request.cached

    def outcome(self, outcome: Outcome) -> None:
        """One request's new tokens, if it has any. Cost: 0.4 microseconds, 1 for a first token."""
        n = len(outcome.event.token_ids)
        if n == 0:
            return
        self._generation_tokens.value += n
        if outcome.since_last is not None:
            self._itl.observe(outcome.since_last)
        else:
            self._first_token(outcome.request)

    def finished(self, finished: Finished) -> None:
        """A request that was let in has ended, in whichever way. To be told once, after its last outcome."""
        request = finished.request
        self._ended[finished.reason].value += 1
        self._request_prompt_tokens.observe(request.prompt_len)
        self._request_generation_tokens.observe(request.output_len)
        self._request_max_tokens.observe(request.params.max_tokens)
        self._request_preemptions.observe(request.preemptions)
        whole = finished.at - request.received
        self._e2e.observe(whole)
        self._e2e_by_output.observe(request.output_len, whole)
        queued = (finished.at if request.scheduled_at is None else request.scheduled_at) - request.arrival
        self._queue_time.observe(queued)
        self._queue_time_by_prompt.observe(request.prompt_len, queued)
        self._times_of_text(request)
        if finished.reason is FinishReason.ABORT:
            self._cancelled_tokens.value += _computed(request)

    def rejected(self, reason: str) -> None:
        """A request was turned away.

        | reason            | where          | also told to `finished` |
        |-------------------|----------------|-------------------------|
        | never_fits        | at the door    | no                      |
        | max_queued        | at the door    | no                      |
        | max_queued_tokens | at the door    | no                      |
        | not_ready         | at the door    | no                      |
        | displaced         | from the queue | yes, with REJECTED      |
        | waited            | from the queue | yes, with REJECTED      |
        | deadline          | from the queue | yes, with REJECTED      |
        """
        self._rejections[reason].value += 1
        if reason in _AT_THE_DOOR:
            self._ended[FinishReason.REJECTED].value += 1

    def corrupted(self) -> None:
        """A request's logits were not finite; how it ended is told to `finished` all the same."""
        self._corrupted.value += 1

    def released(self, phase: str, seconds: float) -> None:
        """An aborted request's blocks are free, so long after the abort was asked for.

        Args:
            phase: queued, prefill or decode: where it stood.
        """
        self._release[phase].observe(seconds)

    def page(self, load: Load) -> bytes:
        """The whole page, with gauges as in `load`. Thread-safe."""
        with self._rendering:
            self._set_queue(load)
            self._set_blocks(load)
            self._age.value = load.last_step_age
            self._output_share.value = load.output_share
            for term, seconds in load.step_time.items():
                self._step_time[term].value = seconds
            return self._page.text().encode() + generate_latest(self._process)

    def _first_token(self, request: Request) -> None:
        assert request.first_token_at is not None
        self._prompt_tokens.value += request.prompt_len
        self._prompt_computed.value += request.prompt_len - request.cached
        self._prompt_hit.value += request.cached
        self._prompt_cached.value += request.cached
        seconds = request.first_token_at - request.received
        self._ttft.observe(seconds)
        self._ttft_by_prompt.observe(request.prompt_len, seconds)

    def _times_of_text(self, request: Request) -> None:
        scheduled, first, last = request.scheduled_at, request.first_token_at, request.last_token_at
        if scheduled is None or first is None or last is None:
            return
        self._prefill_time.observe(first - scheduled)
        self._prefill_time_by_prompt.observe(request.prompt_len, first - scheduled)
        self._decode_time.observe(last - first)
        self._decode_time_by_output.observe(request.output_len, last - first)
        self._inference_time.observe(last - scheduled)
        if request.output_len > 1:
            each = (last - first) / (request.output_len - 1)
            self._tpot.observe(each)
            self._tpot_by_output.observe(request.output_len, each)

    def _set_queue(self, load: Load) -> None:
        self._running.value = load.running
        self._waiting.value = load.waiting
        self._waiting_deferred.value = load.waiting_deferred
        self._waiting_capacity.value = load.waiting - load.waiting_deferred
        self._waiting_blocks.value = load.waiting_blocks
        self._queued_prompt_tokens.value = load.queued_prompt_tokens
        self._oldest.value = load.oldest_waiting

    def _set_blocks(self, load: Load) -> None:
        total = load.live_blocks + load.cached_blocks + load.free_blocks
        self._usage.value = load.live_blocks / max(1, total)
        self._live.value = load.live_blocks
        self._cached.value = load.cached_blocks
        self._free.value = load.free_blocks
        self._evicted.value = load.evicted_blocks

    def _set_identity(self, identity: Identity) -> None:
        runs = identity.runtime.labels()
        info = self._page.gauge(names.MANIFEST_INFO, "What is served.", "digest", "verification", *runs)
        info.series(identity.digest, identity.verification, *runs.values()).value = 1
        c = identity.computing
        engine = self._page.gauge(
            names.ENGINE_INFO, "What computes.", "backend", "instructions", "dtype", "quantization", "threads"
        )
        engine.series(c.backend, c.instructions, c.dtype, c.quantization, str(c.threads)).value = 1
        seqs = self._page.gauge(names.MAX_NUM_SEQS, "Requests that may run at once.")
        seqs.series().value = identity.max_num_seqs

    def _add_gauges(self) -> None:
        gauge = self._page.gauge
        self._running = gauge(names.RUNNING, "Requests that hold KV blocks.").series()
        self._waiting = gauge(names.WAITING, "Requests in the queue.").series()
        why = gauge(names.WAITING_BY_REASON, "Requests in the queue, by what they wait for.", "reason")
        self._waiting_capacity, self._waiting_deferred = why.series("capacity"), why.series("deferred")
        self._waiting_blocks = gauge(names.WAITING_BLOCKS, "KV blocks that the queue will need.").series()
        self._queued_prompt_tokens = gauge(names.QUEUED_PROMPT_TOKENS, "Prompt tokens in the queue.").series()
        self._oldest = gauge(names.OLDEST_WAITING, "Age of the oldest request in the queue.").series()
        self._usage = gauge(names.KV_USAGE, "Share of KV blocks that requests hold, 0 to 1.").series()
        blocks = gauge(names.KV_BLOCKS, "KV blocks, by state.", "state")
        self._live, self._cached, self._free = (blocks.series(state) for state in ("live", "cached", "free"))
        self._age = gauge(names.LAST_STEP_AGE, "Since the last step ended; 0 while idle.").series()
        self._step_time = gauge(names.STEP_TIME, "Fitted time of a step, by what it grows with.", "term").each(TERMS)
        self._output_share = gauge(names.OUTPUT_SHARE, "Share of max_tokens that outputs should take.").series()

    def _add_counters(self) -> None:
        counter = self._page.counter
        self._steps = counter(names.STEPS, "Steps computed, or failed.").series()
        self._prompt_tokens = counter(names.PROMPT_TOKENS, "Prompt tokens of requests with a first token.").series()
        source = counter(names.PROMPT_TOKENS_BY_SOURCE, "The same, by where they came from.", "source")
        self._prompt_computed, self._prompt_hit = source.series("local_compute"), source.series("local_cache_hit")
        self._prompt_cached = counter(names.PROMPT_TOKENS_CACHED, "The same, from the cache.").series()
        self._prefix_queries = counter(names.PREFIX_QUERIES, "Prompt tokens that the cache was asked for.").series()
        self._prefix_hits = counter(names.PREFIX_HITS, "Prompt tokens that the cache had.").series()
        self._generation_tokens = counter(names.GENERATION_TOKENS, "Tokens generated.").series()
        self._preemptions = counter(names.PREEMPTIONS, "Times that a request gave its blocks up.").series()
        self._recomputed = counter(names.RECOMPUTED_TOKENS, "Tokens computed again after that.").series()
        self._cancelled_tokens = counter(
            names.CANCELLED_TOKENS, "Tokens computed for requests that were then aborted."
        ).series()
        self._evicted = counter(names.EVICTED_BLOCKS, "Cached KV blocks taken for something else.").series()
        ended = counter(names.REQUEST_SUCCESS, "Requests that ended, by reason.", "finished_reason")
        self._ended = ended.each(tuple(FinishReason))
        turned_away = counter(names.REJECTIONS, "Requests that were turned away, by reason.", "reason")
        self._rejections = turned_away.each((*_AT_THE_DOOR, *_FROM_THE_QUEUE))
        self._corrupted = counter(names.CORRUPTED, "Requests whose logits were not finite.").series()

    def _add_histograms(self) -> None:
        self._ttft = self._seconds(names.TTFT, "Received to first token.")
        self._itl = self._seconds(names.ITL, "Between two tokens of a request.")
        self._tpot = self._seconds(names.TPOT, "Mean of these, of a request with two tokens or more.")
        self._e2e = self._seconds(names.E2E, "Received to end.")
        self._queue_time = self._seconds(names.QUEUE_TIME, "Arrival to first time in a step, or to the end.")
        self._prefill_time = self._seconds(names.PREFILL_TIME, "First time in a step to first token.")
        self._decode_time = self._seconds(names.DECODE_TIME, "First token to last.")
        self._inference_time = self._seconds(names.INFERENCE_TIME, "First time in a step to last token.")
        histogram = self._page.histogram
        self._request_prompt_tokens = histogram(names.REQUEST_PROMPT_TOKENS, "Prompt tokens.", _TOKENS).series()
        self._request_generation_tokens = histogram(names.REQUEST_GENERATION_TOKENS, "Output tokens.", _TOKENS).series()
        self._request_max_tokens = histogram(names.REQUEST_MAX_TOKENS, "Output tokens allowed.", _TOKENS).series()
        self._request_preemptions = histogram(names.REQUEST_PREEMPTIONS, "Preemptions.", _TIMES).series()
        self._iteration_tokens = histogram(names.ITERATION_TOKENS, "Tokens in one step.", _TOKENS).series()
        kinds = histogram(names.STEP_SECONDS, "Of a step, by what it computes.", _SECONDS, "kind")
        self._step_seconds = kinds.each(("prefill", "decode", "mixed"))
        self._host_gap = histogram(names.HOST_GAP, "Device idle between two steps.", _GAP_SECONDS).series()
        phases = histogram(names.CANCEL_RELEASE, "Abort to blocks freed.", _SECONDS, "phase")
        self._release = phases.each(("queued", "prefill", "decode"))

    def _add_histograms_by_length(self) -> None:
        self._ttft_by_prompt = self._by_prompt(names.TTFT_BY_PROMPT, "Received to first token.")
        self._queue_time_by_prompt = self._by_prompt(names.QUEUE_TIME_BY_PROMPT, "Arrival to first step, or end.")
        self._prefill_time_by_prompt = self._by_prompt(names.PREFILL_TIME_BY_PROMPT, "First step to first token.")
        self._e2e_by_output = self._by_output(names.E2E_BY_OUTPUT, "Received to end.")
        self._decode_time_by_output = self._by_output(names.DECODE_TIME_BY_OUTPUT, "First token to last.")
        self._tpot_by_output = self._by_output(names.TPOT_BY_OUTPUT, "Mean between two tokens of a request.")

    def _seconds(self, name: str, text: str) -> Buckets:
        return self._page.histogram(name, text, _SECONDS).series()

    def _by_prompt(self, name: str, text: str) -> ByLength:
        return self._by_length(name, text, "prompt_bucket", names.PROMPT_BUCKETS)

    def _by_output(self, name: str, text: str) -> ByLength:
        return self._by_length(name, text, "output_bucket", names.OUTPUT_BUCKETS)

    def _by_length(self, name: str, text: str, label: str, lengths: Sequence[int]) -> ByLength:
        family = self._page.histogram(name, text, _FEW_SECONDS, label)
        return ByLength(lengths, [family.series(str(length)) for length in (*lengths, "inf")])


def _kind(plan: StepPlan) -> str:
    """A row of one token is decode, even where it is the last of a prompt: that is what it costs."""
    if plan.tokens == len(plan.rows):
        return "decode"
    return "mixed" if any(count == 1 for _, _, _, count, _ in plan.rows) else "prefill"


def _computed(request: Request) -> int:
    """Tokens whose KV was computed for it, each once: not those that the cache gave."""
    return max(request.computed, request.reached, request.cached) - request.cached
