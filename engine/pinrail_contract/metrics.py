"""Metric names and units, and how a metrics page becomes one load sample. Pure.

Where vLLM has a figure its name is used, so that gateways, dashboards and the operator read either engine.
What vLLM lacks is `pinrail_…`.
"""

import json
import math
import re
from dataclasses import dataclass

from .errors import SampleError
from .pins import DIGEST
from .runtime import UNSAID, Runtime

# Gauges
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"  # by reason: capacity, deferred (another computes its prefix)
KV_USAGE = "vllm:kv_cache_usage_perc"  # 0 to 1, blocks held by live requests
CACHE_CONFIG = (
    "vllm:cache_config_info"  # labels block_size (tokens), num_gpu_blocks; absent until the cache is laid out
)

# Counters, exposed with _total
PROMPT_TOKENS = "vllm:prompt_tokens"  # of requests that got a first token, as the next two
PROMPT_TOKENS_BY_SOURCE = "vllm:prompt_tokens_by_source"  # by source: local_compute, local_cache_hit
PROMPT_TOKENS_CACHED = "vllm:prompt_tokens_cached"
PREFIX_QUERIES = "vllm:prefix_cache_queries"  # tokens, once per request that looked when it first ran
PREFIX_HITS = "vllm:prefix_cache_hits"  # tokens, as above
GENERATION_TOKENS = "vllm:generation_tokens"
PREEMPTIONS = "vllm:num_preemptions"
REQUEST_SUCCESS = (
    "vllm:request_success"  # requests, once each, by finished_reason: stop, length, abort, error, rejected
)
# by reason: never_fits, max_queued, max_queued_tokens, not_ready (at the door); displaced, waited, deadline (later)
REJECTIONS = "vllm:admission_rejections"
CORRUPTED = "vllm:corrupted_requests"  # whose logits were not finite

# Histograms: seconds, tokens or times
REQUEST_PROMPT_TOKENS = "vllm:request_prompt_tokens"
REQUEST_GENERATION_TOKENS = "vllm:request_generation_tokens"
REQUEST_MAX_TOKENS = "vllm:request_params_max_tokens"
REQUEST_PREEMPTIONS = "vllm:request_num_preemptions"
TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"  # of requests with two output tokens or more
E2E = "vllm:e2e_request_latency_seconds"
QUEUE_TIME = "vllm:request_queue_time_seconds"
PREFILL_TIME = "vllm:request_prefill_time_seconds"
DECODE_TIME = "vllm:request_decode_time_seconds"
INFERENCE_TIME = "vllm:request_inference_time_seconds"  # the two above together
ITERATION_TOKENS = "vllm:iteration_tokens_total"  # tokens in one step

# What vLLM lacks: gauges
WAITING_BLOCKS = "pinrail_waiting_blocks"  # KV blocks that the queued prompts will need
QUEUED_PROMPT_TOKENS = "pinrail_queued_prompt_tokens"
MAX_NUM_SEQS = "pinrail_max_num_seqs"
KV_BLOCKS = "pinrail_kv_blocks"  # by state: live, cached (free to take, but holding a prefix), free
LAST_STEP_AGE = "pinrail_last_step_age_seconds"
OLDEST_WAITING = "pinrail_oldest_waiting_seconds"
ENGINE_INFO = "pinrail_engine_info"  # labels backend, instructions, dtype, quantization, threads
MANIFEST_INFO = "pinrail_model_manifest_info"  # labels digest, verification, and all fields of `runtime.Runtime`
LOAD_SECONDS = "pinrail_startup_seconds"  # by phase: import, verify, load, allocate, warmup
STEP_TIME = "pinrail_step_time_seconds_per"  # seconds by term: step, token, sampled, read, pair; fitted
OUTPUT_SHARE = "pinrail_expected_output_share"  # 0 to 1, of max_tokens that outputs are expected to take

# gauges of a replica that does not serve yet: bytes of its model, while the container that fetches runs
FETCHED_BYTES = "pinrail_model_fetch_bytes"
FETCH_TOTAL_BYTES = "pinrail_model_fetch_total_bytes"

# counters, exposed with _total
STEPS = "pinrail_steps"
RECOMPUTED_TOKENS = "pinrail_recomputed_tokens"  # computed again after a preemption
CANCELLED_TOKENS = "pinrail_cancelled_tokens"  # computed for requests that were then aborted
EVICTED_BLOCKS = "pinrail_evicted_blocks"  # cached ones that were taken for something else

# histograms, in seconds
STEP_SECONDS = "pinrail_step_seconds"  # by kind: prefill, decode, mixed
HOST_GAP = "pinrail_host_gap_seconds"  # the device was idle between two steps while there was work
CANCEL_RELEASE = "pinrail_cancellation_release_seconds"  # disconnect to blocks freed; by phase: queued, prefill, decode
TTFT_BY_PROMPT = "pinrail_time_to_first_token_by_prompt_seconds"  # by prompt_bucket, as the next two
QUEUE_TIME_BY_PROMPT = "pinrail_queue_time_by_prompt_seconds"
PREFILL_TIME_BY_PROMPT = "pinrail_prefill_time_by_prompt_seconds"
E2E_BY_OUTPUT = "pinrail_e2e_by_output_seconds"  # by output_bucket, as the next two
DECODE_TIME_BY_OUTPUT = "pinrail_decode_time_by_output_seconds"
TPOT_BY_OUTPUT = "pinrail_time_per_output_token_by_output_seconds"

PROMPT_BUCKETS = (256, 1024, 4096, 16384)  # tokens, values of prompt_bucket: the most in each; and inf
OUTPUT_BUCKETS = (16, 128, 512, 2048)  # tokens, values of output_bucket: the most in each; and inf

VERIFIED = "verified"  # label of MANIFEST_INFO: every file is the one that the manifest names
MISMATCHED = "mismatched"  # label of MANIFEST_INFO: some are not, and are served all the same
ENGINE_DIFFERS = "engine_differs"  # label of MANIFEST_INFO: all files are; engine or numerics are not, and serve
FILES_DIFFER = "files differ"
"""Stands where a verified digest would, for a replica that serves other files, as Verification.WARN lets it."""


LOAD_SERIES = (
    *(RUNNING, WAITING, KV_USAGE, CACHE_CONFIG, WAITING_BLOCKS, MAX_NUM_SEQS),
    *(f"{REQUEST_PROMPT_TOKENS}_count", f"{REQUEST_PROMPT_TOKENS}_sum"),
)
"""All that a load sample is read from."""

Series = dict[str, list[tuple[dict[str, str], str]]]
"""Name -> its samples: labels, and the value as it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """What one replica said of its load at one moment."""

    running: int  # requests
    waiting: int  # requests
    kv_usage: float  # 0 to 1
    kv_blocks: int  # blocks in all
    waiting_blocks: float  # blocks that the queue will need
    max_num_seqs: int  # 0 where the engine does not say

    @property
    def used_blocks(self) -> float:
        return self.kv_usage * self.kv_blocks


_LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse(text: str) -> LoadSample:
    """One load sample from a metrics page of Pinrail or vLLM.

    Raises SampleError where a figure is missing, NaN, infinite, negative, out of range, or stands twice.
    """
    return load_of(read(text))


def read(text: str) -> Series:
    """All samples of a metrics page, for those who ask it for more than one thing; what is no sample is passed over."""
    samples: Series = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match and not line.startswith("#"):
            labels = dict(_LABEL.findall(match["labels"] or ""))
            samples.setdefault(match["name"], []).append((labels, match["value"]))
    return samples


def load_of(samples: Series) -> LoadSample:
    """`parse` of samples that are read already: those of LOAD_SERIES count."""
    page = _Page(samples)
    usage = page.number(KV_USAGE)
    if usage > 1.0 + 1e-6:
        raise SampleError(f"{KV_USAGE}: got {usage:g}, want 0 to 1")
    config = page.labels(CACHE_CONFIG)
    blocks, block_size = _whole(config, "num_gpu_blocks"), _whole(config, "block_size")
    waiting = page.number(WAITING)
    queued = (
        page.number(WAITING_BLOCKS) if page.has(WAITING_BLOCKS) else waiting * _mean_prompt_blocks(page, block_size)
    )
    return LoadSample(
        running=int(page.number(RUNNING)),
        waiting=int(waiting),
        kv_usage=min(usage, 1.0),
        kv_blocks=blocks,
        waiting_blocks=queued,
        max_num_seqs=int(page.number(MAX_NUM_SEQS)) if page.has(MAX_NUM_SEQS) else 0,
    )


def digest_of(samples: Series) -> str:
    """The digest of the manifest that a replica's files were found to be, FILES_DIFFER, or '' where it says neither."""
    labels = _manifest_labels(samples)
    digest = labels.get("digest", "")
    if not DIGEST.fullmatch(digest):
        return ""
    said = {VERIFIED: digest, ENGINE_DIFFERS: digest, MISMATCHED: FILES_DIFFER}
    return said.get(labels.get("verification", ""), "")


def runtime_of(samples: Series) -> Runtime:
    """The engine and the numerics that a replica says it runs, as far as it does.

    Raises SampleError where it says so twice.
    """
    return Runtime.from_labels(_manifest_labels(samples))


def version_runtime(answer: str) -> Runtime:
    """What vLLM's answer to `/version` says of it; UNSAID where it is another kind of answer."""
    try:
        version = json.loads(answer)["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return UNSAID
    return Runtime.from_labels({"engine_version": version}) if isinstance(version, str) else UNSAID


def _manifest_labels(samples: Series) -> dict[str, str]:
    page = _Page(samples)
    return page.labels(MANIFEST_INFO) if page.has(MANIFEST_INFO) else {}


def fetched_share(text: str) -> float:
    """How much of its model a replica has fetched, 0 to 1.

    Raises SampleError where the page does not say, or says what cannot be.
    """
    page = _Page(read(text))
    done, whole = page.number(FETCHED_BYTES), page.number(FETCH_TOTAL_BYTES)
    if done > whole or whole == 0:
        raise SampleError(f"{FETCHED_BYTES}: got {done:g} of {whole:g}, want at most all of a model that is not empty")
    return done / whole


def fetch_page(done: int, whole: int) -> str:
    """What `fetched_share` reads: bytes that are there, and bytes of the whole model."""
    return f"# TYPE {FETCHED_BYTES} gauge\n{FETCHED_BYTES} {done}\n" + (
        f"# TYPE {FETCH_TOTAL_BYTES} gauge\n{FETCH_TOTAL_BYTES} {whole}\n"
    )


def total(text: str, name: str) -> float:
    """The value of a counter, by its name without `_total`; raises SampleError as `parse` does."""
    return _Page(read(text)).number(f"{name}_total")


@dataclass(frozen=True, slots=True)
class _Page:
    samples: Series

    def has(self, name: str) -> bool:
        return name in self.samples

    def number(self, name: str) -> float:
        _, written = self._only(name)
        try:
            value = float(written)
        except ValueError:
            raise SampleError(f"{name}: got {written!r}, want a number") from None
        if not math.isfinite(value) or value < 0:
            raise SampleError(f"{name}: got {written}, want a finite number, 0 or above")
        return value

    def labels(self, name: str) -> dict[str, str]:
        return self._only(name)[0]

    def _only(self, name: str) -> tuple[dict[str, str], str]:
        found = self.samples.get(name, [])
        if len(found) != 1:
            raise SampleError(f"{name}: stands {len(found)} times on the page, want once")
        return found[0]


def _mean_prompt_blocks(page: _Page, block_size: int) -> float:
    count_name, sum_name = f"{REQUEST_PROMPT_TOKENS}_count", f"{REQUEST_PROMPT_TOKENS}_sum"
    if not page.has(count_name) or (count := page.number(count_name)) == 0:
        return 1.0  # nothing has finished yet: every prompt takes at least one block
    return max(1.0, page.number(sum_name) / count / block_size)


def _whole(labels: dict[str, str], name: str) -> int:
    written = labels.get(name, "")
    if not re.fullmatch(r"[1-9][0-9]{0,14}", written):
        raise SampleError(f"{CACHE_CONFIG}.{name}: got {written!r}, want a whole number above 0")
    return int(written)
