"""Attention over the paged cache equals the definition, for ragged batches; a row knows nothing of its batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pinrail_kernels.native import Batch, Kind, Native, NativeError, Shape
from pinrail_kernels.paged_attention import Queries, Rule, paged_attention_ref

Spans = list[tuple[int, int]]  # of each sequence: position of its first row, rows


def shape(
    heads: int = 4,
    kv_heads: int = 2,
    d: int = 64,
    block_size: int = 16,
    kind: Kind = Kind.F32,
    rule: Rule | None = None,
) -> Shape:
    rule = rule or Rule()
    return Shape(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=d,
        block_size=block_size,
        kv_kind=kind,
        window=rule.window or 0,
        soft_cap=rule.soft_cap or 0.0,
        scale=rule.scale or 0.0,
    )


class World:
    """Sequences whose keys and values are in both caches: the definition's, and the kernels' with garbage around."""

    def __init__(self, native: Native, shape: Shape, spans: Spans, seed: int = 0) -> None:
        self.native, self.shape, self.spans = native, shape, spans
        rng = np.random.default_rng(seed)
        self.contexts = [start + count for start, count in spans]
        width = max(-(-context // shape.block_size) for context in self.contexts)
        blocks = len(spans) * width
        self.tables = rng.permutation(blocks).astype(np.int32).reshape(len(spans), width)
        self.q = rng.normal(size=(sum(c for _, c in spans), shape.heads, shape.head_dim)).astype(np.float32)
        self.kv = np.full((1, blocks, shape.block_elements), 0xFFFF if shape.kv_kind is Kind.BF16 else np.nan)
        self.kv = self.kv.astype(shape.kv_type)
        self.caches = torch.zeros(2, blocks, shape.block_size, shape.kv_heads, shape.head_dim)
        for line, context in enumerate(self.contexts):
            self._fill(line, rng.normal(size=(2, context, shape.kv_heads, shape.head_dim)).astype(np.float32))

    def _fill(self, line: int, kv: np.ndarray) -> None:
        context = kv.shape[1]
        sequences = np.array([[0, 0, context, line]], np.int32)
        positions = np.arange(context, dtype=np.int32)
        batch = Batch(positions, positions, sequences, self.tables, self.kv)
        self.native.store_kv(self.shape, batch, np.ascontiguousarray(kv[0]), np.ascontiguousarray(kv[1]))
        rounded = torch.from_numpy(kv)
        if self.shape.kv_kind is Kind.BF16:
            rounded = rounded.bfloat16().float()
        for p in range(context):
            block, offset = self.tables[line, p // self.shape.block_size], p % self.shape.block_size
            self.caches[:, block, offset] = rounded[:, p]

    def definition(self, rule: Rule) -> np.ndarray:
        row, queries = 0, []
        for line, (start, count) in enumerate(self.spans):
            queries.append(Queries(row, start, count, line))
            row += count
        caches = (self.caches[0], self.caches[1])
        tables = torch.from_numpy(self.tables).long()
        return paged_attention_ref(torch.from_numpy(self.q), caches, queries, tables, rule).numpy()

    def attention(self, native: Native, lines: list[int] | None = None) -> np.ndarray:
        """Of some sequences alone, or of all."""
        lines = list(range(len(self.spans))) if lines is None else lines
        firsts = np.cumsum([0, *(count for _, count in self.spans)])
        parts = [(firsts[line], *self.spans[line], line) for line in lines]
        return self.of_rows(native, parts)

    def of_rows(self, native: Native, parts: list[tuple[int, int, int, int]]) -> np.ndarray:
        """Args: parts: (row of q, its position, rows, line)."""
        q = np.concatenate([self.q[row : row + count] for row, _, count, _ in parts])
        ends = np.cumsum([count for _, _, count, _ in parts])
        sequences = [
            (end - count, start, count, line) for end, (_, start, count, line) in zip(ends, parts, strict=True)
        ]
        positions = np.concatenate([np.arange(start, start + count) for _, start, count, _ in parts]).astype(np.int32)
        batch = Batch(positions, positions, np.array(sequences, np.int32), self.tables, self.kv)
        return native.attention(self.shape, batch, q)


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    """Weights are sums and exponentials in float32: a few units in the sixth place."""
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.BF16])
@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
def test_a_ragged_batch(native: Native, kind: Kind, block_size: int) -> None:
    world = World(
        native, shape(block_size=block_size, kind=kind), [(0, 1), (0, 70), (63, 1), (64, 3), (200, 1), (5, 40)]
    )
    close(world.attention(native), world.definition(Rule()))


@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize("d", [8, 16, 64, 80, 96, 128, 256])
def test_groups_and_head_sizes(native: Native, group: int, d: int) -> None:
    world = World(native, shape(heads=2 * group, d=d), [(37, 1), (0, 33)])
    close(world.attention(native), world.definition(Rule()))


RULES = [
    Rule(window=1),
    Rule(window=20),
    Rule(window=64),
    Rule(window=600),
    Rule(soft_cap=0.5),
    Rule(soft_cap=30.0, window=10),
    Rule(scale=0.3),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_windows_caps_and_scales(native: Native, rule: Rule) -> None:
    world = World(native, shape(rule=rule), [(0, 90), (700, 1), (515, 20)])
    close(world.attention(native), world.definition(rule))


@given(
    spans=st.lists(st.tuples(st.integers(0, 180), st.integers(1, 70)), min_size=1, max_size=5),
    group=st.integers(1, 4),
    window=st.none() | st.integers(1, 200),
    kind=st.sampled_from([Kind.F32, Kind.BF16]),
    seed=st.integers(0, 5),
)
@settings(max_examples=25, deadline=None)
def test_any_batch(native: Native, spans: Spans, group: int, window: int | None, kind: Kind, seed: int) -> None:
    rule = Rule(window=window)
    world = World(native, shape(heads=2 * group, d=32, kind=kind, rule=rule), spans, seed)
    close(world.attention(native), world.definition(rule))


@pytest.mark.parametrize("rule", [Rule(), Rule(window=300)], ids=str)
def test_a_sequence_is_the_same_alone_and_in_any_batch(native: Native, rule: Rule) -> None:
    world = World(native, shape(heads=6, rule=rule), [(0, 100), (1300, 1), (40, 1), (511, 3), (900, 60)])
    whole = world.attention(native)
    firsts = np.cumsum([0, *(count for _, count in world.spans)])
    for line, (_, count) in enumerate(world.spans):
        np.testing.assert_array_equal(world.attention(native, [line]), whole[firsts[line] : firsts[line] + count])


@pytest.mark.parametrize("rule", [Rule(), Rule(window=300)], ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_prompt_is_the_same_in_chunks_of_any_length(native: Native, rule: Rule, chunk: int) -> None:
    """Among them chunks of one, which are what a decoding step computes."""
    world = World(native, shape(heads=6, rule=rule), [(0, 1100)])
    whole = world.attention(native)
    for first in [0, 60, 505, 511, 512, 1023, 1024, 1099]:
        count = min(chunk, 1100 - first)
        part = world.of_rows(native, [(first, first, count, 0)])
        np.testing.assert_array_equal(part, whole[first : first + count])


def test_what_other_sequences_hold_does_not_matter(native: Native) -> None:
    """Their blocks, and slots behind a context, are full of what is no number: see World."""
    world = World(native, shape(), [(0, 5), (17, 1)])
    assert np.isfinite(world.attention(native)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 8}, "block_size is 8, want a multiple of 16"),
        ({"heads": 5}, "kv_heads is 2, want a divisor of heads, 5"),
        ({"d": 9}, "head_dim is 9, want an even number"),
        ({"heads": 98, "kv_heads": 1}, "heads is 98, want at most 48 for each of kv_heads"),
        ({"kind": Kind.INT8}, "kv_kind is .*, want F32 or BF16"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(NativeError, match=message):
        shape(**changes)  # type: ignore[arg-type]
