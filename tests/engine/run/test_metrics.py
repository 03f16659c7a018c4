"""The page is exactly this list, from the first scrape; every request leaves exactly one record, however it ends."""

import random
import re
from dataclasses import replace
from itertools import count

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pinrail_contract import metrics as names
from pinrail_contract.errors import SampleError
from pinrail_contract.metrics import LoadSample, digest_of, parse, read
from pinrail_engine.core.commit import Outcome
from pinrail_engine.core.plan import Row, StepPlan
from pinrail_engine.core.request import Finished, Request
from pinrail_engine.core.step_time import TERMS
from pinrail_engine.core.types import FinishReason, SamplingParams, Terms, TokenEvent
from pinrail_engine.metrics import NOTHING, Computing, Identity, Load, Metrics

OURS = ("engine", "model_name")

# Users' dashboards and alerts are built on it: a line that goes or changes breaks them.
FAMILIES = {
    "vllm:num_requests_running": ("gauge", ()),
    "vllm:num_requests_waiting": ("gauge", ()),
    "vllm:num_requests_waiting_by_reason": ("gauge", ("reason",)),
    "vllm:kv_cache_usage_perc": ("gauge", ()),
    "vllm:cache_config_info": ("gauge", ("block_size", "num_gpu_blocks")),
    "vllm:prompt_tokens_total": ("counter", ()),
    "vllm:prompt_tokens_by_source_total": ("counter", ("source",)),
    "vllm:prompt_tokens_cached_total": ("counter", ()),
    "vllm:prefix_cache_queries_total": ("counter", ()),
    "vllm:prefix_cache_hits_total": ("counter", ()),
    "vllm:generation_tokens_total": ("counter", ()),
    "vllm:num_preemptions_total": ("counter", ()),
    "vllm:request_success_total": ("counter", ("finished_reason",)),
    "vllm:admission_rejections_total": ("counter", ("reason",)),
    "vllm:corrupted_requests_total": ("counter", ()),
    "vllm:request_prompt_tokens": ("histogram", ()),
    "vllm:request_generation_tokens": ("histogram", ()),
    "vllm:request_params_max_tokens": ("histogram", ()),
    "vllm:request_num_preemptions": ("histogram", ()),
    "vllm:time_to_first_token_seconds": ("histogram", ()),
    "vllm:inter_token_latency_seconds": ("histogram", ()),
    "vllm:request_time_per_output_token_seconds": ("histogram", ()),
    "vllm:e2e_request_latency_seconds": ("histogram", ()),
    "vllm:request_queue_time_seconds": ("histogram", ()),
    "vllm:request_prefill_time_seconds": ("histogram", ()),
    "vllm:request_decode_time_seconds": ("histogram", ()),
    "vllm:request_inference_time_seconds": ("histogram", ()),
    "vllm:iteration_tokens_total": ("histogram", ()),
    "pinrail_waiting_blocks": ("gauge", ()),
    "pinrail_queued_prompt_tokens": ("gauge", ()),
    "pinrail_max_num_seqs": ("gauge", ()),
    "pinrail_kv_blocks": ("gauge", ("state",)),
    "pinrail_last_step_age_seconds": ("gauge", ()),
    "pinrail_oldest_waiting_seconds": ("gauge", ()),
    "pinrail_engine_info": ("gauge", ("backend", "dtype", "instructions", "quantization", "threads")),
    "pinrail_model_manifest_info": (
        "gauge",
        (
            *("backend", "compute_dtype", "digest", "engine_version", "instructions", "kv_cache_dtype"),
            *("verification", "weight_dtype"),
        ),
    ),
    "pinrail_startup_seconds": ("gauge", ("phase",)),
    "pinrail_step_time_seconds_per": ("gauge", ("term",)),
    "pinrail_expected_output_share": ("gauge", ()),
    "pinrail_steps_total": ("counter", ()),
    "pinrail_recomputed_tokens_total": ("counter", ()),
    "pinrail_cancelled_tokens_total": ("counter", ()),
    "pinrail_evicted_blocks_total": ("counter", ()),
    "pinrail_step_seconds": ("histogram", ("kind",)),
    "pinrail_host_gap_seconds": ("histogram", ()),
    "pinrail_cancellation_release_seconds": ("histogram", ("phase",)),
    "pinrail_time_to_first_token_by_prompt_seconds": ("histogram", ("prompt_bucket",)),
    "pinrail_queue_time_by_prompt_seconds": ("histogram", ("prompt_bucket",)),
    "pinrail_prefill_time_by_prompt_seconds": ("histogram", ("prompt_bucket",)),
    "pinrail_e2e_by_output_seconds": ("histogram", ("output_bucket",)),
    "pinrail_decode_time_by_output_seconds": ("histogram", ("output_bucket",)),
    "pinrail_time_per_output_token_by_output_seconds": ("histogram", ("output_bucket",)),
}

# Values that are there before anything has happened, so that a rate over the first event is not lost.
VALUES = {
    ("vllm:num_requests_waiting_by_reason", "reason"): "capacity deferred",
    ("vllm:prompt_tokens_by_source_total", "source"): "local_cache_hit local_compute",
    ("vllm:request_success_total", "finished_reason"): "abort error length rejected stop",
    ("vllm:admission_rejections_total", "reason"): (
        "deadline displaced max_queued max_queued_tokens never_fits not_ready waited"
    ),
    ("pinrail_kv_blocks", "state"): "cached free live",
    ("pinrail_step_time_seconds_per", "term"): "pair read sampled step token",
    ("pinrail_step_seconds", "kind"): "decode mixed prefill",
    ("pinrail_cancellation_release_seconds", "phase"): "decode prefill queued",
    ("pinrail_time_to_first_token_by_prompt_seconds", "prompt_bucket"): "1024 16384 256 4096 inf",
    ("pinrail_queue_time_by_prompt_seconds", "prompt_bucket"): "1024 16384 256 4096 inf",
    ("pinrail_prefill_time_by_prompt_seconds", "prompt_bucket"): "1024 16384 256 4096 inf",
    ("pinrail_e2e_by_output_seconds", "output_bucket"): "128 16 2048 512 inf",
    ("pinrail_decode_time_by_output_seconds", "output_bucket"): "128 16 2048 512 inf",
    ("pinrail_time_per_output_token_by_output_seconds", "output_bucket"): "128 16 2048 512 inf",
}

IDENTITY = Identity(
    model_name="m",
    digest="sha256:" + "0" * 64,
    engine_version="1",
    verification="verified",
    block_size=16,
    max_num_seqs=4,
    computing=Computing(backend="fake", instructions="none", dtype="float32", quantization="none", threads=1),
)
IDLE = replace(NOTHING, free_blocks=100, step_time=dict.fromkeys(TERMS, 0.0), output_share=0.1)

_LABEL = re.compile(r'(\w+)="([^"]*)"')

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Told:
    """Metrics, and what a test tells them of requests as the engine's loop does."""

    def __init__(self) -> None:
        self.metrics = Metrics(IDENTITY)
        self.metrics.laid_out(100)
        self._ids = count()

    def request(
        self, prompt: int = 6, max_tokens: int = 8, received: float | None = None, root: bytes = b""
    ) -> Request:
        params, terms = SamplingParams(max_tokens=max_tokens), Terms(received=received)
        return Request.new(str(next(self._ids)), [1] * prompt, params, 100_000, 10.0, terms, root=root)

    def begin(self, request: Request, now: float, cached: int = 0) -> None:
        request.scheduled_at, request.cached, request.computed = now, cached, request.prompt_len
        self.metrics.began(request)

    def token(self, request: Request, now: float) -> None:
        since = None if request.last_token_at is None else now - request.last_token_at
        request.tokens.append(1)
        request.first_token_at = now if request.first_token_at is None else request.first_token_at
        request.last_token_at = now
        self.metrics.outcome(Outcome(request, TokenEvent((1,)), since, None))

    def end(self, request: Request, reason: FinishReason, now: float) -> None:
        self.metrics.finished(Finished(request, reason, now))

    def samples(self, load: Load = IDLE) -> Samples:
        found = {}
        for line in self.metrics.page(load).decode().splitlines():
            if line.startswith(("vllm:", "pinrail_")):
                series, _, value = line.rpartition(" ")
                labels = frozenset((k, v) for k, v in _LABEL.findall(series) if k not in OURS)
                found[series.partition("{")[0], labels] = float(value)
        return found

    def figure(self, name: str, load: Load = IDLE, **labels: str) -> float:
        return self.samples(load)[name, frozenset(labels.items())]

    def counts(self, name: str) -> dict[str, float]:
        """Of a family with one label: observations, or the value, by label; those that are 0 left out."""
        found = {}
        for (sample, labels), value in self.samples().items():
            if sample in (name, f"{name}_count") and value:
                ((_, label),) = labels
                found[label] = value
        return found


@pytest.fixture
def told() -> Told:
    return Told()


def test_the_page_is_this_list(told: Told) -> None:
    """Read by an independent parser. No series has labels beside these; `le` belongs to the format."""
    told.metrics.started("load", 1.0)
    seen = {}
    for family in text_string_to_metric_families(told.metrics.page(IDLE).decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        assert family.samples, name
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert len(labels) == 1, name
        seen[name] = (family.type, tuple(sorted(next(iter(labels)) - set(OURS))))
        assert name.startswith("process_") or set(OURS) <= next(iter(labels)), name
    process = {name for name in seen if name.startswith("process_")}
    assert "process_start_time_seconds" in process
    assert {name: kind for name, kind in seen.items() if name not in process} == FAMILIES


def test_every_name_of_the_contract_is_a_family() -> None:
    contract = {value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}
    written = {name for name, (kind, _) in FAMILIES.items() if kind != "counter"}
    written |= {name.removesuffix("_total") for name, (kind, _) in FAMILIES.items() if kind == "counter"}
    before_it_runs = {names.FETCHED_BYTES, names.FETCH_TOTAL_BYTES}  # of the container that fetches
    assert {name for name in contract if name.startswith(("vllm:", "pinrail_"))} - before_it_runs == written


def test_label_values_are_there_from_the_first_scrape(told: Told) -> None:
    seen: dict[tuple[str, str], set[str]] = {}
    for name, labels in told.samples():
        for label, value in labels:
            seen.setdefault((name.removesuffix("_count"), label), set()).add(value)
    assert {key: " ".join(sorted(seen[key])) for key in VALUES} == VALUES


@pytest.mark.parametrize("name", [name for name, (kind, _) in FAMILIES.items() if kind == "histogram"])
def test_buckets_reach_far_enough(told: Told, name: str) -> None:
    bounds = sorted(
        {float(dict(labels)["le"]) for sample, labels in told.samples() if sample == f"{name}_bucket"},
    )
    assert bounds[-1] == float("inf")
    if name == names.HOST_GAP:
        assert (bounds[0], bounds[-2]) == (1e-5, 0.5)
    elif name.endswith("_seconds"):
        assert (bounds[0], bounds[-2]) == (0.001, 600)


def test_before_the_cache_is_laid_out_nothing_is_said_of_it() -> None:
    metrics = Metrics(IDENTITY)
    assert names.CACHE_CONFIG + "{" not in metrics.page(IDLE).decode()
    with pytest.raises(SampleError, match="cache_config_info: stands 0 times"):
        parse(metrics.page(IDLE).decode())


def test_the_operator_reads_the_page(told: Told) -> None:
    load = replace(IDLE, running=3, waiting=2, waiting_blocks=7, live_blocks=50, cached_blocks=20, free_blocks=30)
    page = told.metrics.page(load).decode()
    assert parse(page) == LoadSample(
        running=3, waiting=2, kv_usage=0.5, kv_blocks=100, waiting_blocks=7, max_num_seqs=4
    )
    assert digest_of(read(page)) == IDENTITY.digest


def test_gauges_are_those_of_the_load(told: Told) -> None:
    load = Load(
        running=1,
        waiting=9,
        waiting_deferred=2,
        waiting_blocks=3,
        queued_prompt_tokens=4,
        live_blocks=5,
        cached_blocks=6,
        free_blocks=9,
        evicted_blocks=8,
        oldest_waiting=1.5,
        last_step_age=2.5,
        step_time={term: i / 8 for i, term in enumerate(TERMS)},
        output_share=0.25,
    )
    samples = told.samples(load)
    plain = {
        names.RUNNING: 1,
        names.WAITING: 9,
        names.WAITING_BLOCKS: 3,
        names.QUEUED_PROMPT_TOKENS: 4,
        names.KV_USAGE: 0.25,
        names.EVICTED_BLOCKS + "_total": 8,
        names.OLDEST_WAITING: 1.5,
        names.LAST_STEP_AGE: 2.5,
        names.OUTPUT_SHARE: 0.25,
        names.MAX_NUM_SEQS: 4,
    }
    assert {name: samples[name, frozenset()] for name in plain} == plain
    assert told.figure(names.WAITING_BY_REASON, load, reason="capacity") == 7
    assert told.figure(names.WAITING_BY_REASON, load, reason="deferred") == 2
    states = {state: told.figure(names.KV_BLOCKS, load, state=state) for state in ("live", "cached", "free")}
    assert states == {"live": 5, "cached": 6, "free": 9}
    assert [told.figure(names.STEP_TIME, load, term=term) for term in TERMS] == [0, 0.125, 0.25, 0.375, 0.5]


def test_times_of_one_request(told: Told) -> None:
    """Received 9, arrived 10, first step 11, tokens at 13, 15 and 17, told of its end at 17.5."""
    request = told.request(received=9.0)
    told.begin(request, 11.0)
    for now in (13.0, 15.0, 17.0):
        told.token(request, now)
    told.end(request, FinishReason.LENGTH, 17.5)
    sums = {
        names.TTFT: 4,
        names.E2E: 8.5,
        names.QUEUE_TIME: 1,
        names.PREFILL_TIME: 2,
        names.DECODE_TIME: 4,
        names.INFERENCE_TIME: 6,
        names.ITL: 4,
        names.TPOT: 2,
        names.REQUEST_PROMPT_TOKENS: 6,
        names.REQUEST_GENERATION_TOKENS: 3,
        names.REQUEST_MAX_TOKENS: 8,
        names.REQUEST_PREEMPTIONS: 0,
    }
    samples = told.samples()
    assert {name: samples[f"{name}_sum", frozenset()] for name in sums} == sums
    assert {name: samples[f"{name}_count", frozenset()] for name in sums} == {**dict.fromkeys(sums, 1), names.ITL: 2}
    assert told.figure(names.PROMPT_TOKENS + "_total") == 6
    assert told.figure(names.GENERATION_TOKENS + "_total") == 3
    assert told.counts(names.REQUEST_SUCCESS + "_total") == {"length": 1}


def test_an_abort_in_the_queue_counts_with_its_time(told: Told) -> None:
    told.end(told.request(), FinishReason.ABORT, 15.0)
    assert told.figure(names.QUEUE_TIME + "_sum") == told.figure(names.E2E + "_sum") == 5
    assert told.figure(names.TTFT + "_count") == told.figure(names.PREFILL_TIME + "_count") == 0
    assert told.figure(names.CANCELLED_TOKENS + "_total") == 0
    assert told.counts(names.REQUEST_SUCCESS + "_total") == {"abort": 1}


def test_one_output_token_has_no_time_between_tokens(told: Told) -> None:
    request = told.request()
    told.begin(request, 11.0)
    told.token(request, 12.0)
    told.end(request, FinishReason.STOP, 12.0)
    assert told.figure(names.TPOT + "_count") == told.figure(names.ITL + "_count") == 0
    assert told.figure(names.DECODE_TIME + "_count") == 1


def test_an_outcome_without_tokens_is_no_first_token(told: Told) -> None:
    request = told.request()
    told.metrics.outcome(Outcome(request, TokenEvent((), FinishReason.ERROR, "broken"), None, None))
    assert told.figure(names.TTFT + "_count") == 0


@pytest.mark.parametrize(
    ("prompt", "bucket"),
    [(1, "256"), (256, "256"), (257, "1024"), (4096, "4096"), (16384, "16384"), (16385, "inf")],
)
def test_times_by_length_of_prompt(told: Told, prompt: int, bucket: str) -> None:
    request = told.request(prompt)
    told.begin(request, 11.0)
    told.token(request, 13.0)
    told.end(request, FinishReason.STOP, 13.0)
    for name, seconds in [
        (names.TTFT_BY_PROMPT, 3),
        (names.QUEUE_TIME_BY_PROMPT, 1),
        (names.PREFILL_TIME_BY_PROMPT, 2),
    ]:
        assert told.counts(name) == {bucket: 1}
        assert told.figure(f"{name}_sum", prompt_bucket=bucket) == seconds


@pytest.mark.parametrize(("output", "bucket"), [(2, "16"), (16, "16"), (17, "128"), (2048, "2048"), (2049, "inf")])
def test_times_by_length_of_output(told: Told, output: int, bucket: str) -> None:
    request = told.request(max_tokens=5000)
    told.begin(request, 11.0)
    for i in range(output):
        told.token(request, 12.0 + i)
    told.end(request, FinishReason.STOP, 12.0 + output)
    for name, seconds in [
        (names.E2E_BY_OUTPUT, 2 + output),
        (names.DECODE_TIME_BY_OUTPUT, output - 1),
        (names.TPOT_BY_OUTPUT, 1),
    ]:
        assert told.counts(name) == {bucket: 1}
        assert told.figure(f"{name}_sum", output_bucket=bucket) == seconds


def test_what_the_cache_gave(told: Told) -> None:
    """The second does not share its prefix, so the cache was not asked; the third never got a token."""
    for root, cached, ends in [(b"r", 4, True), (b"", 0, True), (b"r", 2, False)]:
        request = told.request(root=root)
        told.begin(request, 11.0, cached)
        if ends:
            told.token(request, 12.0)
    assert told.figure(names.PREFIX_QUERIES + "_total") == 12
    assert told.figure(names.PREFIX_HITS + "_total") == 6
    assert told.figure(names.PROMPT_TOKENS + "_total") == 12
    assert told.figure(names.PROMPT_TOKENS_CACHED + "_total") == 4
    assert told.counts(names.PROMPT_TOKENS_BY_SOURCE + "_total") == {"local_compute": 8, "local_cache_hit": 4}


@pytest.mark.parametrize(
    ("cached", "computed", "reached", "wasted"),
    [(0, 0, 0, 0), (0, 6, 0, 6), (4, 6, 0, 2), (4, 0, 6, 2), (4, 5, 9, 5), (4, 0, 2, 0)],
)
def test_what_an_abort_wastes(told: Told, cached: int, computed: int, reached: int, wasted: int) -> None:
    request = told.request()
    request.cached, request.computed, request.reached = cached, computed, reached
    told.end(request, FinishReason.ABORT, 11.0)
    assert told.figure(names.CANCELLED_TOKENS + "_total") == wasted


def test_what_a_served_request_took_is_not_wasted(told: Told) -> None:
    request = told.request()
    told.begin(request, 11.0)
    told.token(request, 12.0)
    told.end(request, FinishReason.STOP, 12.0)
    assert told.figure(names.CANCELLED_TOKENS + "_total") == 0


@pytest.mark.parametrize(
    ("counts", "kind"),
    [
        ((1, 1, 1), "decode"),
        ((2,), "prefill"),
        ((5,), "prefill"),
        ((5, 2), "prefill"),
        ((1, 5), "mixed"),
        ((5, 1), "mixed"),
    ],
)
def test_steps_by_what_they_compute(told: Told, counts: tuple[int, ...], kind: str) -> None:
    rows = tuple(Row(str(i), i, 8, n, True) for i, n in enumerate(counts))
    told.metrics.step(StepPlan(1, rows, recomputed=3), 0.25, None)
    told.metrics.preempted(2)
    assert told.counts(names.STEP_SECONDS) == {kind: 1}
    assert told.figure(names.STEP_SECONDS + "_sum", kind=kind) == 0.25
    assert told.figure(names.STEPS + "_total") == 1
    assert told.figure(names.ITERATION_TOKENS + "_sum") == sum(counts)
    assert told.figure(names.PREEMPTIONS + "_total") == 2
    assert told.figure(names.RECOMPUTED_TOKENS + "_total") == 3
    assert told.figure(names.HOST_GAP + "_count") == 0


def test_the_gap_between_two_steps(told: Told) -> None:
    """None is no gap, 0 is one that was hidden; a bucket's bound belongs to it."""
    for gap in (None, 0.0, 0.0002, 0.0003):
        told.metrics.step(StepPlan(1, (Row("a", 0, 0, 1, True),)), 0.25, gap)
    assert told.figure(names.HOST_GAP + "_sum") == pytest.approx(0.0005)
    counts = [told.figure(names.HOST_GAP + "_bucket", le=le) for le in ("0.0001", "0.0002", "0.0005", "+Inf")]
    assert counts == [1, 2, 3, 3]


def test_release_by_where_the_request_stood(told: Told) -> None:
    told.metrics.released("prefill", 0.5)
    assert told.counts(names.CANCEL_RELEASE) == {"prefill": 1}
    assert told.figure(names.CANCEL_RELEASE + "_sum", phase="prefill") == 0.5


def test_phases_of_the_start(told: Told) -> None:
    told.metrics.started("verify", 2.5)
    assert told.figure(names.LOAD_SECONDS, phase="verify") == 2.5


def test_corrupted_requests(told: Told) -> None:
    told.metrics.corrupted()
    assert told.figure(names.CORRUPTED + "_total") == 1


@pytest.mark.parametrize(
    ("reason", "counted"),
    [
        ("never_fits", {"rejected": 1}),
        ("max_queued", {"rejected": 1}),
        ("max_queued_tokens", {"rejected": 1}),
        ("not_ready", {"rejected": 1}),
        ("displaced", {}),  # `finished` counts these
        ("waited", {}),
        ("deadline", {}),
    ],
)
def test_who_is_turned_away(told: Told, reason: str, counted: dict[str, float]) -> None:
    told.metrics.rejected(reason)
    assert told.counts(names.REJECTIONS + "_total") == {reason: 1}
    assert told.counts(names.REQUEST_SUCCESS + "_total") == counted


def test_every_submitted_request_ends_once_in_the_figures(told: Told) -> None:
    """Source: vllm#8115, #31503, #55634: first tokens, aborts and prompt tokens that did not add up."""
    dice = random.Random(0)
    submitted = let_in = began_text = prompts = 0
    for _ in range(500):
        submitted += 1
        if dice.random() < 0.2:
            told.metrics.rejected(dice.choice(["never_fits", "max_queued", "max_queued_tokens", "not_ready"]))
            continue
        let_in += 1
        request = told.request(dice.randint(1, 20_000), root=dice.choice([b"", b"r"]))
        if dice.random() < 0.3:
            told.metrics.rejected(reason := dice.choice(["displaced", "waited", "deadline"]))
            told.end(request, FinishReason.REJECTED, 11.0)
            continue
        told.begin(request, 11.0)
        tokens = dice.randint(0, 5)
        for i in range(tokens):
            told.token(request, 12.0 + i)
        began_text += tokens > 0
        prompts += request.prompt_len * (tokens > 0)
        told.end(request, dice.choice([r for r in FinishReason if r is not FinishReason.REJECTED]), 20.0)
    assert reason
    assert sum(told.counts(names.REQUEST_SUCCESS + "_total").values()) == submitted
    for name in (names.E2E, names.QUEUE_TIME, names.REQUEST_PROMPT_TOKENS, names.REQUEST_GENERATION_TOKENS):
        assert told.figure(f"{name}_count") == let_in
    assert told.figure(names.TTFT + "_count") == told.figure(names.PREFILL_TIME + "_count") == began_text
    assert told.figure(names.PROMPT_TOKENS + "_total") == prompts
    for name in (names.TTFT_BY_PROMPT, names.PREFILL_TIME_BY_PROMPT, names.DECODE_TIME_BY_OUTPUT):
        assert sum(told.counts(name).values()) == began_text
    for name in (names.QUEUE_TIME_BY_PROMPT, names.E2E_BY_OUTPUT):
        assert sum(told.counts(name).values()) == let_in


def test_names_that_need_escaping_are_read_back() -> None:
    metrics = Metrics(replace(IDENTITY, model_name='a "b"\\c\nd'))
    families = text_string_to_metric_families(metrics.page(IDLE).decode())
    labels = [s.labels for f in families if f.name == names.RUNNING for s in f.samples]
    assert labels == [{"model_name": 'a "b"\\c\nd', "engine": "0"}]
