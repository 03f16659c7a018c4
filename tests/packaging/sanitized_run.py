"""Drives the CPU kernels over shapes drawn at random, in a process of its own that sanitizers watch.

    sanitized_run.py LIBRARY ROUNDS

Torch stays out of it, which takes long under sanitizers. What the kernels compute is held against their definitions in
tests/kernels; here it is compared as far as numpy's own operations go.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinrail_kernels import native as kernels
from pinrail_kernels.native import GATE, Batch, Kind, Native, Packed, PackedLayer, Shape
from pinrail_kernels.native_sampling import NO_IDS, Choice

Floats = NDArray[np.float32]


class Draw:
    """Random shapes, and arrays of them."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def among(self, first: int, last: int) -> int:
        return int(self._rng.integers(first, last + 1))

    def one_of(self, *values: Any) -> Any:
        return values[self.among(0, len(values) - 1)]

    def floats(self, *shape: int) -> Floats:
        return self._rng.standard_normal(shape, np.float32)

    def weights(self, *shape: int) -> NDArray[Any]:
        """As a checkpoint may have them: float32, float16, or bfloat16 in its upper half."""
        drawn = self.floats(*shape)
        return self.one_of(drawn, drawn.astype(np.float16), (drawn.view(np.uint32) >> 16).astype(np.uint16))

    def order(self, n: int) -> NDArray[np.int32]:
        return self._rng.permutation(n).astype(np.int32)


def linear(native: Native, draw: Draw) -> None:
    for kind in (Kind.F32, Kind.BF16, Kind.INT8, Kind.INT4):
        group = 8 * draw.among(1, 5)
        k = group * draw.among(1, 9)
        parts = [draw.weights(draw.among(1, 70), k) for _ in range(draw.among(1, 3))]
        _check_linear(native, draw, native.pack(kind, *parts, group=group))
        rows = GATE * draw.among(1, 4)
        _check_linear(
            native, draw, native.pack(kind, draw.weights(rows, k), draw.weights(rows, k), group=group, by_turns=True)
        )


def _check_linear(native: Native, draw: Draw, matrix: Packed) -> None:
    x = draw.floats(draw.one_of(1, 2, draw.among(3, 40), draw.among(120, 150)), matrix.k)
    want = x @ native.unpack(matrix, 0, matrix.n).T
    rounds = matrix.kind is Kind.BF16 and native.isa in ("avx512_bf16", "avx512_fp16")  # the rows too, or the sums
    np.testing.assert_allclose(native.linear(matrix, x), want, rtol=0, atol=(0.05 if rounds else 1e-4) * matrix.k**0.5)


def rows(native: Native, draw: Draw) -> None:
    m, n = draw.among(1, 40), draw.among(1, 200)
    x = draw.floats(m, n)
    normed = native.rms_norm(x, draw.floats(n), 1e-5)
    assert np.isfinite(normed).all()
    gate, up = draw.floats(m, n), draw.floats(m, n)
    want = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(native.silu_mul(np.hstack([gate, up])), want, rtol=1e-4, atol=1e-5)
    heads = draw.floats(m, draw.among(1, 5), 2 * draw.among(1, 40))
    length = np.square(heads).sum()
    native.rope(heads, np.arange(m, dtype=np.int32), 10000.0)
    np.testing.assert_allclose(np.square(heads).sum(), length, rtol=1e-4)


def attention(native: Native, draw: Draw) -> None:
    kv_heads = draw.among(1, 3)
    shape = Shape(
        heads=kv_heads * draw.one_of(1, 2, 3, 8, 48),
        kv_heads=kv_heads,
        head_dim=2 * draw.among(1, 70),
        block_size=16 * draw.among(1, 3),
        kv_kind=draw.one_of(Kind.F32, Kind.BF16),
        window=draw.one_of(0, draw.among(1, 700)),
        soft_cap=draw.one_of(0.0, 30.0),
    )
    texts = [(draw.one_of(0, draw.among(1, 60), draw.among(400, 1300)), draw.one_of(1, draw.among(2, 70)))]
    texts += [(draw.among(0, 40), draw.among(1, 5)) for _ in range(draw.among(0, 3))]
    batch = _batch(shape, texts, draw)
    whole = _batch(shape, [(0, start + count) for start, count in texts], draw, like=batch)
    keys, values = (draw.floats(len(whole.tokens), kv_heads, shape.head_dim) for _ in range(2))
    native.store_kv(shape, whole, keys, values)
    out = native.attention(shape, batch, draw.floats(len(batch.tokens), shape.heads, shape.head_dim))
    assert np.isfinite(out).all()
    assert np.abs(out).max() <= np.abs(values).max() * 1.01  # a mean of values


def _batch(shape: Shape, texts: list[tuple[int, int]], draw: Draw, like: Batch | None = None, vocab: int = 1) -> Batch:
    """Rows of texts, each its first position and how many; blocks in any order, what is in them yet no number."""
    width = max(-(-(start + count) // shape.block_size) for start, count in texts)
    tables = like.tables if like else draw.order(len(texts) * width).reshape(len(texts), width)
    unset = np.float32("nan") if shape.kv_kind is Kind.F32 else np.uint16(0x7FC0)
    size = (shape.layers, tables.size, shape.block_elements)
    kv = like.kv if like else np.full(size, unset, shape.kv_type)
    firsts = np.cumsum([0, *(count for _, count in texts)])
    lines = [(firsts[i], start, count, i) for i, (start, count) in enumerate(texts)]
    positions = [np.arange(start, start + count, dtype=np.int32) for start, count in texts]
    tokens = np.array([draw.among(0, vocab - 1) for _ in range(firsts[-1])], np.int32)
    return Batch(tokens, np.concatenate(positions), np.array(lines, np.int32), tables, kv)


def sampling(native: Native, draw: Draw) -> None:
    vocab = draw.one_of(1, draw.among(2, 40), draw.among(1000, 3000))
    choices = [_choice(draw, vocab) for _ in range(draw.among(1, 7))]
    chosen = native.sample(draw.floats(len(choices), vocab) * 5, choices)
    for token, choice in zip(chosen, choices, strict=True):
        assert 0 <= token < vocab
        assert not choice.allowed.size or token in choice.allowed


def _choice(draw: Draw, vocab: int) -> Choice:
    order = draw.order(vocab)
    biased = order[: draw.among(0, vocab)]
    masked = order[: draw.among(0, vocab // 4)]
    written = draw.among(0, 50)
    return Choice(
        temperature=draw.one_of(0.0, 1.0, 0.01),
        top_k=draw.one_of(0, 1, draw.among(1, 2 * vocab)),
        top_p=draw.one_of(1.0, 0.5),
        min_p=draw.one_of(0.0, 0.2),
        u=draw.one_of(0.0, 0.5, 1 - 2**-53),
        repetition=draw.one_of(1.0, 1.3),
        frequency=draw.one_of(0.0, 0.5),
        presence=draw.one_of(0.0, -0.5),
        tokens=np.array([draw.among(-1, vocab - 1) for _ in range(written)], np.int32),
        prompt_len=draw.among(0, written),
        allowed=draw.one_of(NO_IDS, order[len(masked) :]),
        masked=masked,
        biased=biased,
        biases=draw.floats(len(biased)),
    )


def decoder(native: Native, draw: Draw) -> None:
    shape = Shape(
        hidden=8 * draw.among(1, 9),
        intermediate=GATE * draw.among(1, 5),
        layers=draw.among(1, 3),
        heads=2 * draw.one_of(1, 3),
        kv_heads=2,
        head_dim=8 * draw.among(1, 5),
        vocab=draw.among(1, 100),
        block_size=16,
        kv_kind=draw.one_of(Kind.F32, Kind.BF16),
        eps=1e-5,
    )
    kind = draw.one_of(Kind.F32, Kind.BF16, Kind.INT8, Kind.INT4)
    embed = native.pack(Kind.F32, draw.floats(shape.vocab, shape.hidden))
    layers = [_layer(native, draw, shape, kind) for _ in range(shape.layers)]
    network = native.decoder(shape, layers, embed, embed, draw.floats(shape.hidden))
    texts = [(0, draw.among(1, 40)) for _ in range(draw.among(1, 4))]
    prompts = _batch(shape, [(0, count + 16) for _, count in texts], draw, vocab=shape.vocab)  # room for what follows
    for batch in _steps(shape, texts, draw, prompts):
        network.forward(batch)
        chosen = draw.order(len(batch.tokens))[: draw.among(1, len(batch.tokens))]
        assert np.isfinite(network.logits(chosen)).all()
    network.close()


def _steps(shape: Shape, texts: list[tuple[int, int]], draw: Draw, room: Batch) -> Iterator[Batch]:
    yield _batch(shape, texts, draw, like=room, vocab=shape.vocab)
    for step in range(3):
        following = [(count + step, 1) for _, count in texts]
        yield _batch(shape, following, draw, like=room, vocab=shape.vocab)


def _layer(native: Native, draw: Draw, shape: Shape, kind: Kind) -> PackedLayer:
    def packed(*rows: int, k: int, by_turns: bool = False) -> Packed:
        return native.pack(kind, *(draw.weights(n, k) for n in rows), group=8, by_turns=by_turns)

    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return PackedLayer(
        attention_norm=draw.floats(shape.hidden),
        qkv=packed(q, kv, kv, k=shape.hidden),
        o=packed(shape.hidden, k=q),
        mlp_norm=draw.floats(shape.hidden),
        gate_up=packed(shape.intermediate, shape.intermediate, k=shape.hidden, by_turns=True),
        down=packed(shape.hidden, k=shape.intermediate),
    )


def main(library: Path, rounds: int) -> None:
    kernels.room = lambda nbytes: np.zeros(
        nbytes, np.uint8
    )  # sanitizers know the ends of malloc's memory, not of mmap's
    isas = Native(1, path=library).isas
    for number in range(rounds):
        for isa in isas:
            native = Native(1 + number % 3, isa, library)
            for drive in (linear, rows, attention, sampling, decoder):
                drive(native, Draw(number))
    print(f"{rounds} rounds of {', '.join(isas)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
