"""The real model: greedy text equals that of transformers, however it is batched and cut. float32, one thread."""

import random
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch
from tokenizers import Tokenizer

from pinrail_contract.launch import Dtype, LaunchSpec
from pinrail_contract.pins import ModelManifest
from pinrail_engine.core.types import SamplingParams, TokenEvent
from pinrail_engine.run.start import engine_for
from pinrail_engine.weights.verify import open_verified

pytestmark = pytest.mark.model

OUTPUT = 16  # tokens
EOS = 2
TEXT = """The lines of a ship are made fast to the pinrail, a strong rack along the inside of the bulwark. Each line has
its own pin, and every sailor knows in the dark which is which. When the wind turns, the crew hauls on the braces, the
yards swing round, and the sails fill on the other side. Question: how many lines does a brig have? Answer: about a
hundred, of which some sixty come down to the rails. import math; def area(r): return math.pi * r ** 2. Il etait une
fois un petit port au bord de la mer. 1, 2, 3, 5, 8, 13, 21, 34. Dear Sir or Madam, I am writing to you because"""
CUTS = {"whole": 512, "by 7": 7, "by 64": 64}  # tokens in a step


@pytest.fixture(scope="module")
def prompts(real_model: tuple[Path, ModelManifest]) -> list[list[int]]:
    """20 windows of the text, 1 to 90 tokens long."""
    ids: list[int] = Tokenizer.from_file(str(real_model[0] / "tokenizer.json")).encode(TEXT).ids
    dice = random.Random(0)
    starts = [dice.randrange(len(ids) - 10) for _ in range(20)]
    return [ids[start : start + 1 + int(89 * (i / 19) ** 2)] for i, start in enumerate(starts)]


@pytest.fixture(scope="module")
def wanted(real_model: tuple[Path, ModelManifest], prompts: list[list[int]]) -> list[list[int]]:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(real_model[0], dtype=torch.float32)
    options = {"max_new_tokens": OUTPUT, "do_sample": False, "eos_token_id": EOS, "pad_token_id": EOS}
    texts = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        texts.append(out[0, len(prompt) :].tolist())
    return texts


def generate(
    model: tuple[Path, ModelManifest], prompts: list[list[int]], budget: int, together: bool
) -> list[list[int]]:
    folder, manifest = model
    spec = LaunchSpec(
        model_dir=str(folder), manifest="", dtype=Dtype.FLOAT32, max_num_batched_tokens=budget, max_model_len=512
    )
    with open_verified(folder, manifest, spec.verification) as opened:
        engine = engine_for(spec, opened)
        engine.start()
        engine.wait_until_loaded()
    texts: list[list[int]] = [[] for _ in prompts]
    ends: SimpleQueue[int] = SimpleQueue()

    def take(i: int, event: TokenEvent) -> None:
        texts[i] += event.token_ids
        if event.finish is not None:
            ends.put(i)

    for i, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=OUTPUT, temperature=0, stop_token_ids=frozenset({EOS}))
        engine.submit(str(i), prompt, params, lambda event, i=i: take(i, event))  # type: ignore[misc]
        if not together:
            ends.get()
    if together:
        for _ in prompts:
            ends.get()
    engine.stop()
    return texts


def test_alone(real_model: tuple[Path, ModelManifest], prompts: list[list[int]], wanted: list[list[int]]) -> None:
    assert generate(real_model, prompts, 512, together=False) == wanted


@pytest.mark.parametrize("budget", CUTS.values(), ids=CUTS.keys())
def test_with_others_and_in_chunks(
    real_model: tuple[Path, ModelManifest], prompts: list[list[int]], wanted: list[list[int]], budget: int
) -> None:
    assert generate(real_model, prompts, budget, together=True) == wanted
