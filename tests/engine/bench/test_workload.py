"""Jobs and their recipes: the same beginning gives the same tokens, and scaling and cutting keep that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinrail_engine.bench.workload import Job, Piece, Shape, Workload, at_rate, shaped

LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=6)


def job(arrival: float, *prompt: int, output: int = 4, key: int = 0) -> Job:
    """One whose pieces have the keys `key`, `key` + 1 …"""
    return Job(arrival, tuple(Piece(key + i, n) for i, n in enumerate(prompt)), Piece(-1, output))


def test_tokens_follow_from_the_seed_and_the_key_alone() -> None:
    assert Piece(7, 50).tokens(1000, 0) == Piece(7, 50).tokens(1000, 0)
    assert Piece(7, 50).tokens(1000, 0) != Piece(8, 50).tokens(1000, 0)
    assert Piece(7, 50).tokens(1000, 0) != Piece(7, 50).tokens(1000, 1)


@given(length=st.integers(1, 300), shorter=st.integers(1, 300), vocab=st.integers(1, 200_000), key=st.integers())
def test_a_shorter_piece_is_the_beginning_of_a_longer_one(length: int, shorter: int, vocab: int, key: int) -> None:
    tokens = Piece(key, length).tokens(vocab, 0)
    assert len(tokens) == length
    assert all(0 <= token < vocab for token in tokens)
    assert Piece(key, min(shorter, length)).tokens(vocab, 0) == tokens[:shorter]


def test_a_prompt_is_its_pieces_in_a_row() -> None:
    whole = job(0, 3, 2)
    assert whole.prompt_len == 5
    assert whole.prompt_tokens(100, 0) == Piece(0, 3).tokens(100, 0) + Piece(1, 2).tokens(100, 0)


def test_rows_left_out_are_not_read() -> None:
    def jobs() -> object:
        yield from (job(i, 1) for i in range(5))
        raise AssertionError("read past the limit")

    workload = shaped("w", jobs(), Shape(skip=2, limit=2))  # type: ignore[arg-type]
    assert [j.arrival for j in workload.jobs] == [0, 1], "the first kept one arrives at 0"


def test_times_between_arrivals_are_scaled() -> None:
    workload = shaped("w", [job(10, 1), job(12, 1), job(16, 1)], Shape(time_scale=0.5))
    assert [j.arrival for j in workload.jobs] == [0, 1, 3]


@pytest.mark.parametrize(
    ("prompt", "output", "scale", "wanted", "wanted_output"),
    [
        pytest.param((512, 512, 100), 300, 1 / 16, [32, 32, 6], 19, id="each piece shrinks"),
        pytest.param((5,), 3, 1 / 16, [1], 1, id="never below one token"),
        pytest.param((3, 3, 3, 3), 1, 1 / 4, [1, 1, 1], 1, id="errors do not add up: 12 tokens are 3"),
        pytest.param((10, 10), 10, 2.0, [20, 20], 20, id="longer"),
        pytest.param((7, 8), 9, 1.0, [7, 8], 9, id="as they were"),
    ],
)
def test_lengths_are_scaled(
    prompt: tuple[int, ...], output: int, scale: float, wanted: list[int], wanted_output: int
) -> None:
    (scaled,) = shaped("w", [job(0, *prompt, output=output)], Shape(length_scale=scale)).jobs
    assert ([p.length for p in scaled.prompt], scaled.output_len) == (wanted, wanted_output)


@given(common=LENGTHS, one=st.integers(1, 600), two=st.integers(1, 600), scale=st.floats(0.01, 3))
def test_equal_beginnings_stay_equal_when_scaled(common: list[int], one: int, two: int, scale: float) -> None:
    jobs = [job(0, *common, one), job(0, *common, two)]
    a, b = (j.prompt_tokens(5000, 0) for j in shaped("w", jobs, Shape(length_scale=scale)).jobs)
    shared = max(1, round(sum(common) * scale))
    assert a[:shared] == b[:shared]


@pytest.mark.parametrize(
    ("prompt", "output", "wanted", "wanted_output", "cut"),
    [
        pytest.param((50, 30), 20, [50, 30], 20, 0, id="fits exactly"),
        pytest.param((50, 40), 20, [50, 30], 20, 1, id="the prompt's end is cut"),
        pytest.param((120, 40), 20, [80], 20, 1, id="whole pieces too"),
        pytest.param((200,), 90, [50], 50, 1, id="both get half"),
        pytest.param((10,), 500, [10], 90, 1, id="a short prompt leaves the rest"),
    ],
)
def test_what_is_too_long_is_cut_and_counted(
    prompt: tuple[int, ...], output: int, wanted: list[int], wanted_output: int, cut: int
) -> None:
    workload = shaped("w", [job(0, *prompt, output=output)], Shape(max_len=100))
    (fitted,) = workload.jobs
    assert ([p.length for p in fitted.prompt], fitted.output_len, workload.cut) == (wanted, wanted_output, cut)


@given(prompt=LENGTHS, output=st.integers(1, 2000), most=st.integers(2, 500))
def test_whatever_is_cut_fits(prompt: list[int], output: int, most: int) -> None:
    (fitted,) = shaped("w", [job(0, *prompt, output=output)], Shape(max_len=most)).jobs
    assert fitted.prompt_len + fitted.output_len <= most
    assert fitted.prompt_len >= 1
    assert fitted.output_len >= 1


def test_other_arrivals_change_nothing_else() -> None:
    workload = Workload("w", (job(5, 1), job(9, 2)), cut=3)
    assert at_rate(workload, iter([0.0, 0.25, 0.5])) == Workload("w", (job(0, 1), job(0.25, 2)), cut=3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"skip": -1}, "skip: got -1, want 0 or more"),
        ({"limit": -1}, "limit: got -1"),
        ({"max_len": 1}, "max_len: got 1, want at least 2"),
        ({"length_scale": 0}, "scales: got 1 and 0"),
        ({"time_scale": -1}, "scales: got -1 and 1"),
    ],
)
def test_impossible_shapes(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Shape(**wrong)  # type: ignore[arg-type]
