"""The C++ sampler against the definition and against torch's fast path, on every instruction set of this processor."""

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pinrail_engine.core.types import SamplingParams
from pinrail_engine.run import sample as by_torch
from pinrail_engine.run.draw import uniform
from pinrail_engine.run.native_sample import Draw, masked, sample
from pinrail_kernels.native import Native, NativeError, library_path
from pinrail_kernels.native_sampling import Choice

Row = NDArray[np.float32]

INF = math.inf


def library() -> Path | None:
    """The package's, or another build of it that is to be tested."""
    named = os.environ.get("PINRAIL_TEST_LIBRARY")
    return Path(named) if named else library_path()


def isas() -> tuple[str, ...]:
    try:
        return Native(1, path=library()).isas
    except NativeError:
        return ()


ISAS = isas() or [pytest.param("", marks=pytest.mark.skip("no CPU kernels here: the package was built without them"))]

pytestmark = [pytest.mark.native, pytest.mark.parametrize("isa", ISAS)]

PARAMS = {
    "greedy": SamplingParams(max_tokens=1, temperature=0),
    "plain": SamplingParams(max_tokens=1),
    "hot": SamplingParams(max_tokens=1, temperature=1.7),
    "ice": SamplingParams(max_tokens=1, temperature=1e-300),
    "top-k": SamplingParams(max_tokens=1, top_k=5),
    "top-k of one": SamplingParams(max_tokens=1, temperature=2.0, top_k=1),
    "top-k of more than are bounded": SamplingParams(max_tokens=1, top_k=400),
    "top-k of more than there are": SamplingParams(max_tokens=1, top_k=10**12),
    "top-p": SamplingParams(max_tokens=1, top_p=0.9),
    "top-p of nearly all": SamplingParams(max_tokens=1, temperature=2.0, top_p=0.9999),
    "top-p of all but the last bit": SamplingParams(max_tokens=1, top_p=1 - 2.0**-53),
    "tiny top-p": SamplingParams(max_tokens=1, top_p=1e-6),
    "min-p": SamplingParams(max_tokens=1, temperature=1.5, min_p=0.05),
    "min-p of nearly nothing": SamplingParams(max_tokens=1, temperature=2.0, min_p=1e-6),
    "min-p of 1": SamplingParams(max_tokens=1, min_p=1.0),
    "top-k and top-p": SamplingParams(max_tokens=1, temperature=0.7, top_k=50, top_p=0.8),
    "top-k and min-p": SamplingParams(max_tokens=1, top_k=20, min_p=0.01),
    "top-p and min-p": SamplingParams(max_tokens=1, top_p=0.8, min_p=0.02),
    "all cuts": SamplingParams(max_tokens=1, temperature=1.2, top_k=30, top_p=0.9, min_p=0.01),
    "penalties": SamplingParams(
        max_tokens=1, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=-0.3, logit_bias=((0, 1.0),)
    ),
    "all": SamplingParams(
        max_tokens=1, top_k=30, top_p=0.9, min_p=0.01, repetition_penalty=0.8, frequency_penalty=1.0,
        min_tokens=99, stop_token_ids=frozenset({1}), bad_words=((2,), (0, 3)),
    ),
    "greedy with a mask": SamplingParams(max_tokens=1, temperature=0, allowed_token_ids=(0, 4, 5)),
}  # fmt: skip

NAMED = pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())


def opened(isa: str, threads: int = 1) -> Native:
    """Anew in each test: the library computes with what was opened last."""
    return Native(threads, isa, library())


def logits(rows: int, vocab: int, seed: int = 0) -> Row:
    return np.random.default_rng(seed).standard_normal((rows, vocab), np.float32) * np.float32(2)


def draw(params: SamplingParams, position: int, seed: int = 0, vocab: int = 1) -> Draw:
    """For a sequence of `position` tokens, half of them the prompt; `vocab` bounds their ids."""
    tokens = np.arange(position, dtype=np.int32) ** 2 % vocab
    return Draw(replace(params, seed=seed), tokens, position // 2)


def chosen(native: Native, rows: Row, draws: Sequence[Draw]) -> list[int]:
    tokens: list[int] = sample(native, np.ascontiguousarray(rows), draws).tolist()
    return tokens


def in_torch(d: Draw) -> by_torch.Draw:
    return by_torch.Draw(d.params, torch.from_numpy(d.tokens), d.prompt_len)


def is_right(token: int, row: Row, d: Draw) -> bool:
    """Whether a token is the definition's, or a neighbour of it and the random number within 1e-6 of their boundary."""
    p = by_torch.distribution_ref(torch.from_numpy(row), in_torch(d))
    if token == -1:
        return bool(p.isnan().any())
    end = float(p[: token + 1].sum())
    u = uniform(d.params.seed, d.position) if d.params.temperature else end - 0.5
    return float(p[token]) > 0 and end - float(p[token]) - 1e-6 <= u < end + 1e-6


def params_of(data: st.DataObject, vocab: int) -> SamplingParams:
    ids = st.integers(0, vocab - 1)
    return SamplingParams(
        max_tokens=1,
        min_tokens=data.draw(st.integers(0, 6)),
        temperature=data.draw(st.sampled_from([0, 0.01, 0.5, 1.0, 2.0])),
        top_k=data.draw(st.integers(0, 80)),
        top_p=data.draw(st.sampled_from([1.0, 0.999, 0.77, 0.31, 1e-9])),
        min_p=data.draw(st.sampled_from([0.0, 1e-4, 0.123, 1.0])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 0.5, 1.37])),
        presence_penalty=data.draw(st.sampled_from([0.0, -0.71, 1.03])),
        frequency_penalty=data.draw(st.sampled_from([0.0, -0.29, 0.57])),
        logit_bias=tuple(data.draw(st.lists(st.tuples(ids, st.floats(-9, 9, width=16)), max_size=3))),
        bad_words=tuple(map(tuple, data.draw(st.lists(st.lists(ids, min_size=1, max_size=3), max_size=3)))),
        allowed_token_ids=tuple(data.draw(st.sets(ids, max_size=5))),
        stop_token_ids=frozenset(data.draw(st.sets(ids | st.just(10**6), max_size=2))),
        seed=data.draw(st.integers(0, 9)),
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_asked_for_is_as_defined(isa: str, data: st.DataObject) -> None:
    native = opened(isa)
    vocab = data.draw(st.integers(1, 70) | st.sampled_from([1023, 1025, 2050]), label="vocab")
    scale = np.float32(data.draw(st.sampled_from([0.1, 1.0, 5.0])))
    row = logits(1, vocab, data.draw(st.integers(0, 99), label="logits"))[0] * scale
    row = data.draw(st.sampled_from([row, row.round()]), label="row")
    params = params_of(data, vocab)
    tokens = np.array(data.draw(st.lists(st.integers(-1, vocab - 1), min_size=1, max_size=12)), np.int32)
    d = Draw(params, tokens, data.draw(st.integers(1, len(tokens))))
    rows = np.stack([logits(1, vocab, 7)[0], row, logits(1, vocab, 8)[0]])
    before = rows.copy()
    (_, token, _) = chosen(native, rows, [draw(PARAMS["plain"], 3), d, draw(PARAMS["greedy"], 3)])
    assert np.array_equal(rows, before)
    if params.temperature == 0 and token >= 0:  # float32's rounding may make equals of neighbours, or the reverse
        warm = replace(params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        p = by_torch.distribution_ref(torch.from_numpy(row), in_torch(replace(d, params=warm)))
        assert p[token] >= p.max() * (1 - 1e-5)
    else:
        assert is_right(token, row, d)


@dataclass(frozen=True)
class Case:
    """Rows and how their tokens are to be chosen; torch's answers are kept from one instruction set to the next."""

    params: SamplingParams
    vocab: int
    n: int
    seed: int

    def rows(self) -> Row:
        rows = logits(self.n, self.vocab, self.seed)
        return rows.round() if self.seed % 2 else rows  # with equals

    def draws(self) -> list[Draw]:
        return [draw(self.params, 3 + i, seed=i, vocab=self.vocab) for i in range(self.n)]

    @cache  # noqa: B019  there are some two hundred
    def of_torch(self) -> list[int]:
        tokens: list[int] = by_torch.sample(torch.from_numpy(self.rows()), list(map(in_torch, self.draws()))).tolist()
        return tokens


@NAMED
@pytest.mark.parametrize(("vocab", "n"), [(1, 20), (2, 40), (15, 200), (1000, 200), (49_152, 3)])
def test_tokens_are_those_of_torch(isa: str, params: SamplingParams, vocab: int, n: int) -> None:
    """Of two that differ, both are as defined: the random number is at their boundary."""
    of_few = {"logit_bias": (), "bad_words": (), "allowed_token_ids": (), "stop_token_ids": frozenset()}
    params = replace(params, **of_few) if vocab < 6 else params  # type: ignore[arg-type]
    for seed in (1, 2):
        case = Case(params, vocab, n, seed)
        rows, draws, theirs = case.rows(), case.draws(), case.of_torch()
        ours = chosen(opened(isa), rows, draws)
        different = [i for i in range(n) if ours[i] != theirs[i]]
        assert len(different) <= n // 100
        for i in different:
            assert is_right(ours[i], rows[i], draws[i])
            assert is_right(theirs[i], rows[i], draws[i])


@cache
def by_definition(params: SamplingParams, row: tuple[float, ...], n: int) -> list[int]:
    of_row = torch.tensor(row)
    return [by_torch.sample_ref(of_row, in_torch(draw(params, position, vocab=7))) for position in range(n)]


@NAMED
def test_thirty_draws_of_one_row_are_the_definitions(isa: str, params: SamplingParams) -> None:
    """Of 2,500 equally likely logits too: thousands of candidates, and most cuts are among equals."""
    for row in (logits(1, 2500)[0], logits(1, 2500)[0].round(), np.zeros(2500, np.float32)):
        draws = [draw(params, position, vocab=7) for position in range(30)]
        assert chosen(opened(isa), np.tile(row, (30, 1)), draws) == by_definition(params, tuple(row.tolist()), 30)


@pytest.mark.parametrize("vocab", [1, 2, 15, 1000, 1024, 1025, 4099])
def test_a_token_does_not_depend_on_its_neighbours(isa: str, vocab: int) -> None:
    """Each row alone, then among up to 33 of all kinds, from either end, with one thread to three."""
    table = [replace(p, allowed_token_ids=(), logit_bias=(), bad_words=()) for p in PARAMS.values()]
    draws = [draw(table[i % len(table)], 5 + i, seed=i, vocab=vocab) for i in range(33)]
    rows = logits(33, vocab)
    native = opened(isa, 1)
    alone = [chosen(native, rows[i : i + 1], [d])[0] for i, d in enumerate(draws)]
    for threads in (1, 2, 3):
        native = opened(isa, threads)
        for n in (1, 2, 5, 8, 17, 32, 33):
            assert chosen(native, rows[:n], draws[:n]) == alone[:n]
            assert chosen(native, rows[-n:][::-1], draws[-n:][::-1]) == alone[-n:][::-1]


@NAMED
def test_a_broken_row_is_minus_one_and_its_neighbours_are_not_affected(isa: str, params: SamplingParams) -> None:
    native = opened(isa, 2)
    draws = [draw(params, 8, seed=i, vocab=50) for i in range(5)]
    whole = logits(5, 3000)
    tokens = chosen(native, whole, draws)
    for bad, at in [(math.nan, 1234), (INF, 1234), (math.nan, 2999), (math.nan, 1), (-INF, slice(None))]:
        rows = whole.copy()
        rows[2, at] = bad  # also where a mask lies on it
        assert chosen(native, rows, draws) == [*tokens[:2], -1, *tokens[3:]]


def test_a_row_that_is_allowed_nothing_is_minus_one(isa: str) -> None:
    params = SamplingParams(max_tokens=1, allowed_token_ids=(3,), bad_words=((3,),))
    rows = np.zeros((2, 9), np.float32)
    assert chosen(opened(isa), rows, [draw(params, 2), draw(PARAMS["greedy"], 2)]) == [-1, 0]


@pytest.mark.parametrize("places", [[1099, 1100, 4999], [63, 127], [1023, 1024], [16, 17], [4999]], ids=str)
def test_greedy_takes_the_lower_id_of_equals(isa: str, places: list[int]) -> None:
    row = np.full((1, 5000), -0.5, np.float32)
    row[0, places] = 0.0
    row[0, places[0]] = -0.0  # which equals 0
    for params in (PARAMS["greedy"], PARAMS["top-k of one"], PARAMS["tiny top-p"]):
        assert chosen(opened(isa), row, [draw(params, 0)]) == places[:1]


@pytest.mark.parametrize("name", ["plain", "top-k", "top-p of nearly all", "min-p"])
def test_a_token_that_cannot_be_is_never_drawn(isa: str, name: str) -> None:
    row = np.full(2000, -INF, np.float32)
    row[[3, 1500]] = 0.0
    tokens = chosen(opened(isa), np.tile(row, (100, 1)), [draw(PARAMS[name], i) for i in range(100)])
    assert set(tokens) == {3, 1500}


def test_the_last_ids_of_a_vocabulary_are_reached(isa: str) -> None:
    rows = np.zeros((5, 3000), np.float32)
    rows[:, 2999] = 30.0
    kinds = ("greedy", "plain", "top-k", "top-p", "min-p")
    assert chosen(opened(isa), rows, [draw(PARAMS[name], 0) for name in kinds]) == [2999] * 5


def test_what_reaches_top_p_exactly_is_enough(isa: str) -> None:
    params = SamplingParams(max_tokens=1, top_p=0.5)
    for n, kept in ((2, 1), (4096, 2048)):
        tokens = chosen(opened(isa), np.zeros((50, n), np.float32), [draw(params, i) for i in range(50)])
        assert max(tokens) < kept
        assert tokens == [int(uniform(0, i) * kept) for i in range(50)]


def test_min_p_is_applied_before_top_p(isa: str) -> None:
    """Of 0.5, 0.3, 0.1, 0.1 min_p keeps two; the first has 0.6 of their 0.8, but not of the whole."""
    row = np.log(np.array([0.5, 0.3, 0.1, 0.1], np.float32))
    params = SamplingParams(max_tokens=1, min_p=0.5, top_p=0.6)
    assert set(chosen(opened(isa), np.tile(row, (50, 1)), [draw(params, i) for i in range(50)])) == {0}


@pytest.mark.parametrize(("u", "place"), [(0.0, 1), (0.5 - 2.0**-39, 1), (0.5, 3), (1 - 2.0**-53, 3)])
@pytest.mark.parametrize("at", [0, 61, 1022, 5000])
@pytest.mark.parametrize("top_k", [0, 3])
def test_a_boundary_belongs_to_the_token_above_it(isa: str, at: int, u: float, place: int, top_k: int) -> None:
    """Two of equal weight, on either side of the end of a group or a span too."""
    row = np.full((1, 6000), -INF, np.float32)
    row[0, [at + 1, at + 3]] = 2.0
    assert opened(isa).sample(row, [Choice(1.0, top_k, 1.0, 0.0, u)]).tolist() == [at + place]


@pytest.mark.parametrize("token", [0, 8, 9, 1000, 2047])
@pytest.mark.parametrize("kept", [0, 2048])
def test_of_thousands_each_has_its_own_part_of_the_numbers(isa: str, token: int, kept: int) -> None:
    """Of equal weights 2**40, from the first number that gives the token to the last."""
    share = (kept or 4096) * 2.0**40
    for units in (token * 2**40, (token + 1) * 2**40 - 1):
        choice = Choice(1.0, kept, 1.0, 0.0, units / share)
        assert opened(isa).sample(np.zeros((1, 4096), np.float32), [choice]).tolist() == [token]


@pytest.mark.parametrize("name", ["plain", "top-k", "top-p", "min-p", "all cuts"])
def test_frequencies_are_the_probabilities(isa: str, name: str) -> None:
    """In 4,000 draws, each token within 4 standard deviations of its share, and none of share 0."""
    row, n = logits(1, 12, seed=3), 4000
    p = by_torch.distribution_ref(torch.from_numpy(row[0]), in_torch(draw(PARAMS[name], 1))).numpy()
    tokens = chosen(opened(isa), np.tile(row, (n, 1)), [draw(PARAMS[name], 1, seed=seed) for seed in range(n)])
    share = np.bincount(tokens, minlength=12) / n
    assert np.all(np.abs(share - p) <= 4 * np.sqrt(p * (1 - p) / n))


def test_no_rows_need_no_logits(isa: str) -> None:
    assert chosen(opened(isa), np.zeros((0, 5), np.float32), []) == []


def test_what_is_masked_is_decided_from_the_output_alone(isa: str) -> None:
    """Heads of bad words begin in no prompt; a broken step's -1 counts as 0; stop tokens outside are left out."""
    params = SamplingParams(
        max_tokens=9,
        min_tokens=3,
        stop_token_ids=frozenset({4, 99}),
        bad_words=((5,), (1, 2, 7), (2, 8), (0, 3), (2, 0, 6)),
    )
    tokens = np.array([1, 2, -1], np.int32)
    assert masked(Draw(params, tokens[:2], 1), 10) == [4, 5, 8]
    assert masked(Draw(params, tokens[:2], 0), 10) == [4, 5, 7, 8]
    assert masked(Draw(params, tokens[:2], 2), 10) == [4, 5]
    assert masked(Draw(params, tokens, 0), 10) == [5, 3, 6]


def test_what_does_not_fit_is_refused(isa: str) -> None:
    native, row, plain = opened(isa), np.zeros((1, 9), np.float32), Choice(1.0, 0, 1.0, 0.0, 0.5)
    with pytest.raises(ValueError, match=r"^there are 2 choices for 1 rows of logits, want one each$"):
        native.sample(row, [plain, plain])
    for wrong in (row.astype(np.float64), row[0], np.zeros((1, 18), np.float32)[:, ::2]):
        with pytest.raises(ValueError, match=r"^logits are float.*, want float32 \[s, vocab\], contiguous$"):
            native.sample(wrong, [plain])
    for field in ("allowed", "masked", "biased"):
        for ids in ([0, 9], [-1, 3]):
            choice = plain._replace(**{field: np.array(ids, np.int32), "biases": np.zeros(2, np.float32)})
            with pytest.raises(ValueError, match=rf"^token ids are {min(ids)} to {max(ids)}, want 0 to 8$"):
                native.sample(row, [choice])


def test_torch_is_not_imported(isa: str) -> None:
    said = "import sys; import pinrail_engine.run.native_sample as a, pinrail_engine.run.native_logprobs as b; "
    said += "print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True).stdout == "False\n"
