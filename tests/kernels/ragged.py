"""Batches for tests of attention: sequences of any length at scattered blocks, and a cache."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pinrail_kernels.paged_attention import CAUSAL, Queries, Rule, paged_attention, paged_attention_ref, plan_attention

Shape = Sequence[tuple[int, int]]
"""(start, count) of each sequence."""

# float32 differs by the order of sums; the others by the rounding of weights, to 11 and 8 bits, and of the result
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Heads:
    count: int
    kv: int
    dim: int


@dataclass(frozen=True)
class Case:
    q: Tensor  # [n, heads, d]
    k: Tensor  # [n_blocks, block_size, kv_heads, d]
    v: Tensor
    sequences: list[Queries]
    tables: Tensor  # [lines, m]; behind its own blocks, each names that of no one

    def attend(self, rule: Rule = CAUSAL) -> Tensor:
        plan = plan_attention(self.sequences, self.tables, self.k.shape[1], self.q.dtype, rule)
        return paged_attention(self.q, self.k, self.v, plan)

    def wanted(self, rule: Rule = CAUSAL) -> Tensor:
        return paged_attention_ref(self.q, (self.k, self.v), self.sequences, self.tables, rule)

    def only(self, sequence: int, start: int | None = None) -> "Case":
        """One of its sequences, from a position on, with the same numbers in the same blocks."""
        s = self.sequences[sequence]
        skipped = 0 if start is None else start - s.start
        rows = self.q[s.row + skipped : s.row + s.count].contiguous()
        alone = Queries(0, s.start + skipped, s.count - skipped, s.line)
        return Case(rows, self.k, self.v, [alone], self.tables)

    def spoil(self, wanted: float) -> None:
        """Overwrite every slot that no sequence has filled, in place."""
        size, heads, d = self.k.shape[1:]
        held = {int(self.tables[s.line, p // size]) * size + p % size for s in self.sequences for p in range(s.context)}
        free = sorted(set(range(self.k.shape[0] * size)) - held)
        self.k.view(-1, heads, d)[free] = self.v.view(-1, heads, d)[free] = wanted


def case(shape: Shape, heads: Heads, block_size: int, dtype: torch.dtype = torch.float32) -> Case:
    needed = [-(-(start + count) // block_size) for start, count in shape]
    blocks = sum(needed) + 3
    free = random.Random(0).sample(range(blocks - 1), blocks - 1)
    tables = torch.full((len(shape), max(needed) + 1), blocks - 1)
    sequences, row = [], 0
    for line, ((start, count), n) in enumerate(zip(shape, needed, strict=True)):
        sequences.append(Queries(row, start, count, line))
        tables[line, :n] = torch.tensor([free.pop() for _ in range(n)])
        row += count
    q = torch.randn(row, heads.count, heads.dim).to(dtype)
    k, v = (torch.randn(blocks, block_size, heads.kv, heads.dim).to(dtype) for _ in range(2))
    return Case(q, k, v, sequences, tables)
