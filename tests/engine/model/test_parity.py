"""The decoder against transformers, in float32, on tiny random models: however a text is cut, the logits are equal."""

import json
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from pinrail_engine.core.plan import Begin, Grown, Row, StepPlan
from pinrail_engine.core.types import SamplingParams
from pinrail_engine.model.arch import Arch
from pinrail_engine.model.decoder import Weights, forward, logits
from pinrail_engine.run.batch import build_batch
from pinrail_engine.run.table import Table
from pinrail_engine.weights.load import load

TOLERANCE = 1e-4  # logits, float32: two orders of summation
PARAMS = SamplingParams(max_tokens=1)
BLOCK, BLOCKS, LENGTH = 8, 64, 100  # tokens, blocks, tokens
BASE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # large enough that attention is far from uniform
}
MODELS: dict[str, dict[str, Any]] = {
    "every head its own": {"num_key_value_heads": 6},
    "grouped heads, tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "one KV head, untied": {"num_key_value_heads": 1, "tie_word_embeddings": False},
    "wide heads": {"num_key_value_heads": 2, "head_dim": 24},
    "slow rotation": {"num_key_value_heads": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "mistral": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": None},
}


@dataclass(frozen=True)
class Part:
    """Positions of one text that a step computes."""

    tokens: list[int]
    start: int
    end: int
    table: tuple[int, ...]


class Ours:
    """One text at a time, at scattered blocks."""

    def __init__(self, folder: Path) -> None:
        self.arch = Arch.from_config(json.loads((folder / "config.json").read_text()))
        handle = os.open(folder / "model.safetensors", os.O_RDONLY)
        try:
            self.weights: Weights = load({"model.safetensors": handle}, self.arch, torch.float32, torch.device("cpu"))
        finally:
            os.close(handle)
        shape = (self.arch.layers, 2, BLOCKS, BLOCK, self.arch.kv_heads, self.arch.head_dim)
        self.cache = torch.zeros(shape)

    @torch.inference_mode()
    def run(self, *texts: Part) -> Tensor:
        """Logits of every row of the batch: [n, vocab]."""
        begins = tuple(Begin(str(i), i, text.tokens[: text.end], text.end, PARAMS) for i, text in enumerate(texts))
        grown = tuple(Grown(i, 0, text.table) for i, text in enumerate(texts))
        rows = tuple(Row(str(i), i, text.start, text.end - text.start, True) for i, text in enumerate(texts))
        plan = StepPlan(1, rows, begins, grown)
        table = Table(len(texts), LENGTH + 1, BLOCK, torch.device("cpu"))
        table.apply(plan)
        batch = build_batch(plan, table, torch.float32)
        return logits(self.weights, forward(self.arch, self.weights, batch, self.cache))

    def in_chunks(self, tokens: list[int], size: int, table: tuple[int, ...]) -> Tensor:
        cuts = [*range(0, len(tokens), size), len(tokens)]
        return torch.cat([self.run(row(tokens, a, b, table)) for a, b in pairwise(cuts)])


def row(tokens: list[int], start: int, end: int, table: tuple[int, ...]) -> Part:
    return Part(tokens, start, end, table)


# Block tables of three texts, backwards and interleaved.
SCATTERED = [tuple(range(k + 60 - 3, k - 1, -3))[:13] for k in range(3)]


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys(), scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ours, Any]:
    torch.manual_seed(1)
    changes = BASE | request.param
    mistral = "sliding_window" in changes
    made = MistralForCausalLM(MistralConfig(**changes)) if mistral else LlamaForCausalLM(LlamaConfig(**changes))
    folder = tmp_path_factory.mktemp("model")
    made.save_pretrained(folder)
    return Ours(folder), made.eval()


@torch.inference_mode()
def theirs(model: Any, tokens: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def text(seed: int, length: int = LENGTH) -> list[int]:
    dice = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, BASE["vocab_size"], (length,), generator=dice).tolist()
    return tokens


@pytest.mark.parametrize("chunk", [1, 7, 64, LENGTH], ids=["decode", "by 7", "by 64", "whole"])
def test_logits_are_equal_however_a_text_is_cut(pair: tuple[Ours, Any], chunk: int) -> None:
    ours, model = pair
    tokens = text(0)
    out = ours.in_chunks(tokens, chunk, SCATTERED[0])
    torch.testing.assert_close(out, theirs(model, tokens), atol=TOLERANCE, rtol=0)


def test_texts_in_one_batch_do_not_touch_each_other(pair: tuple[Ours, Any]) -> None:
    ours, model = pair
    a, b, c = text(1), text(2, 60), text(3, 40)
    ours.in_chunks(a[:-1], 64, SCATTERED[0])
    ours.in_chunks(b[:30], 64, SCATTERED[1])
    rows = row(a, 99, 100, SCATTERED[0]), row(b, 30, 60, SCATTERED[1]), row(c, 0, 40, SCATTERED[2])
    out = ours.run(*rows)
    wanted = torch.cat([theirs(model, a)[-1:], theirs(model, b)[30:], theirs(model, c)])
    torch.testing.assert_close(out, wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("chunk", [1, 7], ids=["decode", "by 7"])
def test_a_block_used_before_hands_nothing_on(pair: tuple[Ours, Any], chunk: int) -> None:
    """Not even NaN, which no mask stops: what a broken text left behind must not break the next one."""
    ours, model = pair
    ours.cache.fill_(float("nan"))
    tokens = text(4, 20)
    out = ours.in_chunks(tokens, chunk, SCATTERED[0])
    torch.testing.assert_close(out, theirs(model, tokens), atol=TOLERANCE, rtol=0)
