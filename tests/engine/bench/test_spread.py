"""Figures of the fixed workloads, and their medians and spreads."""

import pytest

from pinrail_engine.bench.errors import BenchError
from pinrail_engine.bench.fixed import Fixed, first_request
from pinrail_engine.bench.records import Ending, Record
from pinrail_engine.bench.spread import Column, Spread, figures_of, require_all, spreads


def record(*tokens_at: float, prompt_len: int = 1000) -> Record:
    """One that got a token at each of these times, and ended with the last."""
    made = Record(prompt_len, 0.0)
    for at in tokens_at:
        made.token(at)
    made.end(tokens_at[-1], Ending.FINISHED)
    return made


def test_single_tells_the_rate_between_tokens_and_that_of_the_whole() -> None:
    assert figures_of(Fixed.SINGLE, [record(2.0, 2.5, 3.0, 3.5, 4.0)]) == {
        "decode_tokens_per_second": 2.0,
        "output_tokens_per_second": 1.25,
        "first_token_seconds": 2.0,
    }


def test_prefill_tells_the_rate_of_the_prompt() -> None:
    wanted = {"prompt_tokens_per_second": 500.0, "first_token_seconds": 2.0}
    assert figures_of(Fixed.PREFILL, [record(2.0)]) == wanted


def test_batch_pools_the_gaps_of_all() -> None:
    assert figures_of(Fixed.BATCH, [record(1.0, 2.0, 3.0), record(2.0, 5.0, 8.0), record(4.0, 4.5, 5.0)]) == {
        "output_tokens_per_second": 9 / 8,
        "first_token_p50_seconds": 2.0,
        "first_token_max_seconds": 4.0,
        "between_tokens_p50_seconds": 1.0,
        "between_tokens_p99_seconds": 3.0,
    }


def test_prefix_tells_when_the_last_one_ended() -> None:
    assert figures_of(Fixed.PREFIX, [record(1.0, 7.0), record(2.0, 6.0)])["seconds"] == 7.0


def test_what_came_in_one_piece_has_no_rate_between_tokens() -> None:
    assert "decode_tokens_per_second" not in figures_of(Fixed.SINGLE, [record(1.0)])
    assert "between_tokens_p50_seconds" not in figures_of(Fixed.BATCH, [record(1.0)])


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        pytest.param([3.0], Spread(3.0, 3.0, 3.0), id="one run"),
        pytest.param([9.0, 1.0, 2.0], Spread(2.0, 1.0, 9.0), id="an outlier moves the spread, not the median"),
        pytest.param([4.0, 1.0, 2.0, 8.0], Spread(3.0, 1.0, 8.0), id="an even number of runs"),
    ],
)
def test_medians_and_spreads(values: list[float], wanted: Spread) -> None:
    assert spreads([{"seconds": value} for value in values]) == {"seconds": wanted}


def test_a_figure_that_a_run_lacks_is_left_out() -> None:
    assert list(spreads([{"a": 1.0, "b": 1.0}, {"a": 2.0}])) == ["a"]
    assert list(spreads([{"a": 2.0}, {"a": 1.0, "b": 1.0}])) == ["a"]


def test_json() -> None:
    column = Column("ours", {"isa": "avx2"}, {"prefix": {"seconds": Spread(1.23456789, 1.0, 2.0)}})
    figures = {"prefix": {"seconds": {"median": 1.234568, "min": 1.0, "max": 2.0}}}
    assert column.to_json() == {"name": "ours", "engine": {"isa": "avx2"}, "figures": figures}


def failed() -> Record:
    made = Record(8, 0.0)
    made.end(1.0, Ending.FAILED, "no memory")
    return made


@pytest.mark.parametrize(
    ("made", "said"),
    [
        pytest.param(failed(), "run 1: a request was failed: no memory", id="failed"),
        pytest.param(Record(8, 0.0), "run 1: a request was cut: no reason was given", id="cut off"),
        pytest.param(record(1.0, 2.0), "run 1: a request got 2 tokens, want 1, with ignore_eos", id="too many tokens"),
    ],
)
def test_figures_that_would_mislead_are_not_made(made: Record, said: str) -> None:
    with pytest.raises(BenchError, match=said):
        require_all("run 1", first_request(), [made])
    require_all("run 1", first_request(), [record(1.0)])
