"""The CPU kernels' network against transformers, on tiny random models: the logits are equal. They are the same bits
however a text is cut and whatever else is in its batch."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from pinrail_contract.launch import Dtype, Quantization
from pinrail_engine.core.plan import Begin, Grown, Row, StepPlan
from pinrail_engine.core.types import SamplingParams
from pinrail_engine.model.arch import Arch
from pinrail_engine.run.native_backend import NativeOptions, shape_of, storage_of
from pinrail_engine.run.native_batch import build_batch
from pinrail_engine.run.native_table import NativeTable
from pinrail_engine.weights.pack import pack
from pinrail_kernels.native import Kind, Native, room

pytestmark = pytest.mark.native

PARAMS = SamplingParams(max_tokens=1)
LENGTH, BLOCKS = 100, 33  # tokens, blocks
VOCAB = 131  # no multiple of what is packed together
# Of logits, whose deviation is about 1.4. float32 differs by the order of summation. With bfloat16 the definition
# rounds keys and values as the cache does, so what is left are the few numbers that lie between two roundings.
# avx512_bf16 also rounds whatever a matrix is multiplied with to 8 bits, avx512_fp16 to 11, and sums of 32 products.
TOLERANCES = {Dtype.FLOAT32: 1e-4, Dtype.BFLOAT16: 0.02}
ROUNDED = {"avx512_bf16": 0.3, "avx512_fp16": 0.15}


@dataclass(frozen=True)
class Case:
    group: int  # query heads of a KV head
    head_dim: int
    block_size: int
    tied: bool = True
    kv_heads: int = 2
    hidden: int = 48
    intermediate: int = 80

    @property
    def config(self) -> dict[str, Any]:
        return {
            "vocab_size": VOCAB,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": 2,
            "num_attention_heads": self.group * self.kv_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 256,
            "initializer_range": 0.2,  # large enough that attention is far from uniform
        }

    def __str__(self) -> str:
        return f"groups of {self.group}, heads of {self.head_dim}, blocks of {self.block_size}"


CASES = [
    Case(group=1, head_dim=16, block_size=16),
    Case(group=2, head_dim=32, block_size=32, tied=False),
    Case(group=3, head_dim=64, block_size=48),
    Case(group=4, head_dim=80, block_size=64, kv_heads=1),
    Case(group=5, head_dim=128, block_size=16, tied=False, hidden=40),
    Case(group=6, head_dim=24, block_size=32, kv_heads=3, hidden=72),
    Case(group=7, head_dim=16, block_size=64, tied=False, hidden=56),
    Case(group=8, head_dim=96, block_size=48, kv_heads=1),
]


@dataclass(frozen=True)
class Part:
    """Positions of one text that a step computes, and where its blocks lie."""

    tokens: list[int]
    start: int
    end: int
    line: int


class Ours:
    """Up to three texts at a time, at scattered blocks."""

    def __init__(self, folder: Path, options: NativeOptions) -> None:
        arch = Arch.from_config(json.loads((folder / "config.json").read_text()))
        self.native, shape = Native(options.threads), shape_of(arch, options)
        handle = os.open(folder / "model.safetensors", os.O_RDONLY)
        try:
            weights = pack(self.native, {"model.safetensors": handle}, arch, storage_of(options))
        finally:
            os.close(handle)
        self.decoder = self.native.decoder(shape, weights.layers, weights.embed, weights.head, weights.norm)
        nbytes = shape.layers * BLOCKS * shape.block_elements * shape.kv_type.itemsize
        self.kv = room(nbytes).view(shape.kv_type)
        self.kv = self.kv.reshape(shape.layers, BLOCKS, shape.block_elements)
        self.size = shape.block_size

    def run(self, *parts: Part) -> NDArray[np.float32]:
        """Logits of every row of the batch: [n, vocab]."""
        table = NativeTable(len(parts), LENGTH + 1, self.size)
        plan = StepPlan(
            1,
            tuple(Row(str(i), i, part.start, part.end - part.start, True) for i, part in enumerate(parts)),
            tuple(Begin(str(i), i, part.tokens[: part.end], part.end, PARAMS) for i, part in enumerate(parts)),
            tuple(Grown(i, 0, self._blocks(part.line)) for i, part in enumerate(parts)),
        )
        table.apply(plan)
        self.decoder.forward(build_batch(plan, table, self.kv))
        return self.decoder.logits(np.arange(plan.tokens, dtype=np.int32)).copy()

    def in_chunks(self, tokens: list[int], size: int, line: int = 0) -> NDArray[np.float32]:
        cuts = [*range(0, len(tokens), size), len(tokens)]
        return np.concatenate([self.run(Part(tokens, a, b, line)) for a, b in pairwise(cuts)])

    def _blocks(self, line: int) -> tuple[int, ...]:
        """Backwards, and those of three texts by turns."""
        return tuple(range(BLOCKS - 3 + line, -1, -3))[: -(-(LENGTH + 1) // self.size)]


def options(dtype: Dtype, block_size: int, quantization: Quantization = Quantization.NONE) -> NativeOptions:
    return NativeOptions(dtype=dtype, quantization=quantization, block_size=block_size, threads=2)


def save(case: Case, dtype: Dtype, folder: Path) -> None:
    """A random model whose weights are of the type."""
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**case.config)).to(getattr(torch, dtype)).save_pretrained(folder)


class RoundingCache(DynamicCache):
    """Keeps keys and values as bfloat16."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, *rest: Any, **more: Any) -> Any:
        return super().update(keys.bfloat16().float(), values.bfloat16().float(), *rest, **more)


@dataclass(frozen=True)
class Known:
    """A saved model, and what transformers computes with it in float32."""

    case: Case
    dtype: Dtype
    folder: Path
    logits: torch.Tensor  # [LENGTH, VOCAB], of text(0)


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=[Dtype.FLOAT32, Dtype.BFLOAT16])
def dtype(request: pytest.FixtureRequest) -> Dtype:
    return Dtype(request.param)


@pytest.fixture(scope="module")
@torch.inference_mode()
def known(case: Case, dtype: Dtype, tmp_path_factory: pytest.TempPathFactory) -> Known:
    folder = tmp_path_factory.mktemp("model")
    save(case, dtype, folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    cache = RoundingCache() if dtype is Dtype.BFLOAT16 else None
    return Known(case, dtype, folder, model(torch.tensor([text(0)]), cache=cache).logits[0])


@pytest.fixture(params=("none",) if os.environ.get("PINRAIL_ISA") == "none" else Native(1).isas)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PINRAIL_ISA", request.param)
    return str(request.param)


@pytest.fixture
def make_ours(tmp_path: Path, isa: str) -> Iterator[Any]:
    made: list[Ours] = []

    def make(case: Case, chosen: NativeOptions) -> Ours:
        save(case, chosen.dtype, tmp_path)
        made.append(Ours(tmp_path, chosen))
        return made[-1]

    yield make
    for ours in made:
        ours.decoder.close()


def text(seed: int, length: int = LENGTH) -> list[int]:
    return [int(n) for n in np.random.default_rng(seed).integers(0, VOCAB, length)]


def test_logits_are_those_of_transformers(known: Known, isa: str) -> None:
    ours = Ours(known.folder, options(known.dtype, known.case.block_size))
    out = torch.from_numpy(ours.in_chunks(text(0), 64))
    ours.decoder.close()
    atol = TOLERANCES[known.dtype]
    if known.dtype is Dtype.BFLOAT16:
        atol = ROUNDED.get(isa, atol)
    torch.testing.assert_close(out, known.logits, atol=atol, rtol=0)


@pytest.mark.parametrize("quantization", list(Quantization))
def test_a_row_is_the_same_bits_however_its_text_is_cut_and_whatever_else_is_in_the_batch(
    make_ours: Any, dtype: Dtype, quantization: Quantization
) -> None:
    case = Case(group=3, head_dim=64, block_size=16, kv_heads=1, hidden=96, intermediate=96)
    ours = make_ours(case, options(dtype, 16, quantization))
    a, b, c = text(1), text(2, 60), text(3, 40)
    alone = [ours.in_chunks(tokens, LENGTH) for tokens in (a, b, c)]
    for size in (1, 7, 64):
        assert np.array_equal(ours.in_chunks(a, size), alone[0]), f"in chunks of {size}"
    ours.in_chunks(a[:-1], 64, 0)
    ours.in_chunks(b[:30], 64, 1)
    together = ours.run(Part(a, 99, 100, 0), Part(b, 30, 60, 1), Part(c, 0, 40, 2))
    assert np.array_equal(together, np.concatenate([alone[0][99:], alone[1][30:], alone[2]]))


@pytest.mark.parametrize("chunk", [1, 7], ids=["decode", "by 7"])
def test_a_block_used_before_hands_nothing_on(make_ours: Any, dtype: Dtype, chunk: int) -> None:
    """Not even NaN, which no mask stops: what a broken text left behind must not break the next one."""
    ours = make_ours(CASES[1], options(dtype, 16))
    tokens = text(4, 20)
    clean = ours.in_chunks(tokens, chunk)
    ours.kv.fill(0x7FC0 if ours.kv.dtype == np.uint16 else np.nan)
    assert np.array_equal(ours.in_chunks(tokens, chunk), clean)


@pytest.mark.parametrize(
    ("quantization", "kinds"),
    [
        pytest.param(Quantization.NONE, (Kind.BF16, Kind.BF16), id="none"),
        pytest.param(Quantization.INT8, (Kind.INT8, Kind.INT8), id="int8"),
        pytest.param(Quantization.INT4, (Kind.INT4, Kind.INT8), id="int4"),
    ],
)
def test_how_weights_are_kept(quantization: Quantization, kinds: tuple[Kind, Kind]) -> None:
    storage = storage_of(options(Dtype.BFLOAT16, 16, quantization))
    assert (storage.layers, storage.head) == kinds
