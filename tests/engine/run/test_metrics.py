"""Every name of the contract is on the page, with vLLM's labels and type, from the first scrape."""

from typing import Any

import pytest

from pinrail_contract import metrics as names
from pinrail_contract.metrics import verified_digest
from pinrail_engine.core.types import FinishReason, SamplingParams

TYPES = {
    names.RUNNING: "gauge",
    names.WAITING: "gauge",
    names.KV_USAGE: "gauge",
    names.CACHE_CONFIG: "gauge",
    names.PROMPT_TOKENS + "_total": "counter",
    names.GENERATION_TOKENS + "_total": "counter",
    names.PREEMPTIONS + "_total": "counter",
    names.REQUEST_SUCCESS + "_total": "counter",
    names.REQUEST_PROMPT_TOKENS: "histogram",
    names.REQUEST_GENERATION_TOKENS: "histogram",
    names.TTFT: "histogram",
    names.ITL: "histogram",
    names.E2E: "histogram",
    names.QUEUE_TIME: "histogram",
    names.PREFILL_TIME: "histogram",
    names.DECODE_TIME: "histogram",
    names.ITERATION_TOKENS: "histogram",
    names.WAITING_BLOCKS: "gauge",
    names.MAX_NUM_SEQS: "gauge",
    names.KV_BLOCKS: "gauge",
    names.STEPS + "_total": "counter",
    names.LAST_STEP_AGE: "gauge",
    names.OLDEST_WAITING: "gauge",
    names.CANCEL_RELEASE: "histogram",
    names.MANIFEST_INFO: "gauge",
    names.LOAD_SECONDS: "gauge",
    "process_start_time_seconds": "gauge",
}


@pytest.mark.parametrize(("name", "kind"), TYPES.items())
def test_a_name_is_there_before_any_request(rig: Any, name: str, kind: str) -> None:
    lines = rig.engine.metrics_page().decode().splitlines()
    assert f"# TYPE {name} {kind}" in lines
    samples = [line for line in lines if line.startswith((name + "{", name + "_count{", name + " "))]
    assert samples
    assert name.startswith("process_") or all('engine="0"' in s and 'model_name="m"' in s for s in samples)


def test_the_served_manifest_is_named(rig: Any) -> None:
    assert verified_digest(rig.engine.metrics_page().decode()) == "sha256:" + "0" * 64


def test_times_of_one_request(make_rig: Any) -> None:
    rig = make_rig(budget=4).load()
    rig.engine.submit("a", [1] * 6, SamplingParams(max_tokens=3), lambda _: None)
    rig.clock.now += 1  # waits 1 s for its first step
    for _ in range(4):  # two steps of prompt, two of text
        rig.engine._turn()
        rig.clock.now += 2
    assert rig.figure(names.QUEUE_TIME + "_sum") == 1
    assert rig.figure(names.PREFILL_TIME + "_sum") == 2
    assert rig.figure(names.TTFT + "_sum") == 3
    assert (rig.figure(names.ITL + "_sum"), rig.figure(names.ITL + "_count")) == (4, 2)
    assert rig.figure(names.DECODE_TIME + "_sum") == 4
    assert rig.figure(names.E2E + "_sum") == 7
    assert rig.figure(names.PROMPT_TOKENS + "_total") == 6
    assert rig.figure(names.GENERATION_TOKENS + "_total") == 3
    assert rig.figure(names.STEPS + "_total") == 4
    assert rig.figure(names.ITERATION_TOKENS + "_sum") == 4 + 2 + 1 + 1


def test_an_abort_in_the_queue_counts_with_its_time(rig: Any) -> None:
    rig.engine.submit("a", [1] * 6, SamplingParams(max_tokens=3), lambda _: None)
    rig.clock.now += 5
    rig.engine.finish("a", FinishReason.ABORT)
    assert rig.figure(names.QUEUE_TIME + "_sum") == 5
    assert rig.figure(names.E2E + "_sum") == 5
    assert rig.figure(names.TTFT + "_count") == 0
    assert rig.figure(names.REQUEST_SUCCESS + '_total{finished_reason="abort"}') == 1
