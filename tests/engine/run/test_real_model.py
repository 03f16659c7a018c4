"""The real model, float32: greedy text equals that of transformers, and a text is the same however it is made."""

import random
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from pinrail_contract.launch import BackendName, Dtype, LaunchSpec, Switch
from pinrail_contract.metrics import PREEMPTIONS, PREFIX_HITS, total
from pinrail_contract.pins import ModelManifest
from pinrail_engine.core.types import SamplingParams, TokenEvent
from pinrail_engine.run.start import engine_for
from pinrail_engine.weights.verify import open_verified

pytestmark = pytest.mark.model

OUTPUT = 16  # tokens
EOS = 2
BLOCK_BYTES = 16 * 30 * 2 * 3 * 64 * 4  # tokens, layers, keys and values, KV heads, numbers, bytes
TEXT = """The lines of a ship are made fast to the pinrail, a strong rack along the inside of the bulwark. Each line has
its own pin, and every sailor knows in the dark which is which. When the wind turns, the crew hauls on the braces, the
yards swing round, and the sails fill on the other side. Question: how many lines does a brig have? Answer: about a
hundred, of which some sixty come down to the rails. import math; def area(r): return math.pi * r ** 2. Il etait une
fois un petit port au bord de la mer. 1, 2, 3, 5, 8, 13, 21, 34. Dear Sir or Madam, I am writing to you because"""
GREEDY = 20  # requests: windows of the text, 1 to 90 tokens long
SEEDED = {  # another 12: each of these with three lengths of the same beginning
    "plain": {"temperature": 1.0},
    "cut": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "least probability": {"temperature": 1.5, "min_p": 0.05},
    "penalties": {"temperature": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
}


@dataclass(frozen=True)
class Job:
    prompt: list[int]
    params: SamplingParams


@pytest.fixture(scope="module")
def jobs(real_model: tuple[Path, ModelManifest]) -> list[Job]:
    ids: list[int] = Tokenizer.from_file(str(real_model[0] / "tokenizer.json")).encode(TEXT).ids
    dice = random.Random(0)
    starts = [dice.randrange(len(ids) - 10) for _ in range(GREEDY)]
    prompts = [ids[start : start + 1 + int(89 * (i / 19) ** 2)] for i, start in enumerate(starts)]
    greedy = [Job(prompt, params(temperature=0)) for prompt in prompts]
    lengths = (20, 37, 70)
    return [*greedy, *(Job(ids[:n], params(seed=n, **how)) for how in SEEDED.values() for n in lengths)]


def params(**how: Any) -> SamplingParams:
    return SamplingParams(max_tokens=OUTPUT, stop_token_ids=frozenset({EOS}), **how)


@dataclass(frozen=True)
class Made:
    texts: list[list[int]]
    events: list[list[TokenEvent]]
    page: str  # of metrics


def make(model: tuple[Path, ModelManifest], jobs: list[Job], *, together: bool, **flags: Any) -> Made:
    folder, manifest = model
    flags = {"max_model_len": 512, "kv_cache_memory": 2**28} | flags
    spec = LaunchSpec(model_dir=str(folder), manifest="", dtype=Dtype.FLOAT32, **flags)
    with open_verified(folder, manifest, spec.verification) as opened:
        engine = engine_for(spec, opened)
        engine.start()
        engine.wait_until_loaded()
    events: list[list[TokenEvent]] = [[] for _ in jobs]
    ends: SimpleQueue[int] = SimpleQueue()

    def take(i: int, event: TokenEvent) -> None:
        events[i].append(event)
        if event.finish is not None:
            ends.put(i)

    for i, job in enumerate(jobs):
        engine.submit(str(i), job.prompt, job.params, lambda event, i=i: take(i, event))  # type: ignore[misc]
        if not together:
            ends.get()
    if together:
        for _ in jobs:
            ends.get()
    page = engine.metrics_page().decode()
    engine.stop()
    return Made([[token for e in of_one for token in e.token_ids] for of_one in events], events, page)


@pytest.fixture(scope="module")
def alone(real_model: tuple[Path, ModelManifest], jobs: list[Job]) -> list[list[int]]:
    """One after the other, each prompt in one step, nothing shared."""
    return make(real_model, jobs, together=False, prefix_cache=Switch.OFF, steps_in_flight=1).texts


@pytest.fixture(scope="module")
def theirs(real_model: tuple[Path, ModelManifest]) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(real_model[0], dtype=torch.float32)


def test_greedy_text_is_that_of_transformers(theirs: Any, jobs: list[Job], alone: list[list[int]]) -> None:
    options = {"max_new_tokens": OUTPUT, "do_sample": False, "eos_token_id": EOS, "pad_token_id": EOS}
    for job, text in zip(jobs[:GREEDY], alone, strict=False):
        ids = torch.tensor([job.prompt])
        out = theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert text == out[0, len(job.prompt) :].tolist()


@pytest.mark.native
def test_greedy_text_of_the_cpu_kernels_is_that_of_the_torch_definition(
    real_model: tuple[Path, ModelManifest], jobs: list[Job], alone: list[list[int]]
) -> None:
    of_torch, of_kernels = (
        make(real_model, jobs[:GREEDY], together=True, backend=backend).texts
        for backend in (BackendName.TORCH, BackendName.NATIVE)
    )
    assert of_kernels == of_torch == alone[:GREEDY]


@torch.inference_mode()
def test_logprobs_are_those_of_transformers(
    real_model: tuple[Path, ModelManifest], theirs: Any, jobs: list[Job]
) -> None:
    """Of prompt and output, in chunks of 7; raw: temperature and penalties do not change them."""
    prompt = jobs[12].prompt
    how = params(temperature=1.5, repetition_penalty=1.3, logprobs=3, prompt_logprobs=3)
    (events,) = make(real_model, [Job(prompt, how)], together=True, max_num_batched_tokens=7).events
    told = [*events[0].prompt_logprobs, *(one for e in events for one in e.logprobs)]
    tokens = [*prompt, *(token for e in events for token in e.token_ids)]
    wanted = theirs(torch.tensor([tokens])).logits[0].log_softmax(-1)
    assert len(told) == len(tokens) - 1
    for position, one in enumerate(told):
        row, token = wanted[position], tokens[position + 1]
        assert one.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert one.rank == 1 + int((row > row[token]).sum())
        assert [i for i, _ in one.top] == row.topk(3).indices.tolist()
        assert [x for _, x in one.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-3)


TINY = {"kv_cache_memory": 26 * BLOCK_BYTES, "max_model_len": 128}


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({}, id="in a batch of 32"),
        pytest.param({"steps_in_flight": 2}, id="two steps in flight"),
        pytest.param({"steps_in_flight": 3, "prefix_cache": Switch.OFF}, id="three, nothing shared"),
        pytest.param({"max_num_batched_tokens": 7}, id="in chunks of 7"),
        pytest.param({"max_num_batched_tokens": 64, "steps_in_flight": 2}, id="in chunks of 64, two in flight"),
        pytest.param(TINY, id="preempted"),
        pytest.param(TINY | {"steps_in_flight": 2, "prefix_cache": Switch.OFF}, id="preempted, two in flight"),
        pytest.param(TINY | {"steps_in_flight": 3, "max_num_batched_tokens": 40}, id="preempted, three in flight"),
    ],
)
def test_a_text_is_the_same_in_whatever_way_it_is_made(
    real_model: tuple[Path, ModelManifest], jobs: list[Job], alone: list[list[int]], flags: dict[str, Any]
) -> None:
    made = make(real_model, jobs, together=True, **flags)
    assert made.texts == alone
    shares = flags.get("prefix_cache", Switch.ON) is Switch.ON
    assert (total(made.page, PREFIX_HITS) > 0) == shares
    assert (total(made.page, PREEMPTIONS) > 0) == ("kv_cache_memory" in flags)
