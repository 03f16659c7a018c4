"""Figures against examples counted by hand."""

import json
from array import array
from itertools import pairwise

import pytest

from pinrail_engine.bench.records import Ending, Record, Run, Sample, Series
from pinrail_engine.bench.report import Figures, Quantiles, bucket, buckets, figures, jain, quantiles
from pinrail_engine.bench.slo import Slo


def record(
    *token_times: float, prompt_len: int = 100, arrival: float = 0.0, ending: Ending = Ending.FINISHED
) -> Record:
    made = Record(prompt_len, arrival, oracle_tokens=48, alone=0.5)
    for at in token_times:
        made.token(at)
    made.scheduled_at = arrival + 0.25
    made.cached_tokens = 16
    made.end(token_times[-1] if token_times else arrival, ending)
    return made


def of(*records: Record, seconds: float = 10.0) -> Figures:
    return figures(Run(name="r", records=records, seconds=seconds))


def test_one_request() -> None:
    f = of(record(1.5, 2.0, 3.5, arrival=1.0))
    assert f.overall.ttft == Quantiles(1, 0.5, 0.5, 0.5, 0.5)
    assert f.overall.itl == Quantiles(2, 0.5, 1.5, 1.5, 1.5)
    assert f.overall.tpot == Quantiles(1, 1.0, 1.0, 1.0, 1.0), "2 s for 2 tokens after the first"
    assert f.overall.e2e == Quantiles(1, 2.5, 2.5, 2.5, 2.5)
    assert f.overall.queue == Quantiles(1, 0.25, 0.25, 0.25, 0.25)


def test_rates_count_finished_requests() -> None:
    f = of(record(1, 2), record(1, 2, 3, prompt_len=50), record(1, ending=Ending.CUT), seconds=10)
    assert (f.input_tokens_per_second, f.output_tokens_per_second, f.requests_per_second) == (15, 0.5, 0.2)


def test_nothing_is_hidden() -> None:
    refused = Record(10, 0.0)
    refused.end(1.0, Ending.REFUSED, "the queue is full")
    f = of(record(1), refused, refused, record(1, 2, ending=Ending.CUT), record(ending=Ending.FAILED))
    assert f.requests == 5
    assert f.endings == {Ending.FINISHED: 1, Ending.REFUSED: 2, Ending.FAILED: 1, Ending.CUT: 1}
    assert f.errors == {"the queue is full": 2}


def test_tokens_of_requests_that_did_not_finish_are_cancelled_ones() -> None:
    """84 of the prompt were not cached, and the second token of the output was not fed back."""
    assert of(record(1), record(1, 2, ending=Ending.CUT)).cancelled_tokens == 84 + 1
    assert of(record(ending=Ending.CUT)).cancelled_tokens == 0, "as far as is known"


def test_hit_rates() -> None:
    f = of(record(1, prompt_len=100), record(1, prompt_len=60))
    assert (f.hit_rate, f.oracle_hit_rate) == (32 / 160, 96 / 160)
    untold = record(1)
    untold.cached_tokens = None
    assert of(untold).hit_rate is None


def test_by_length() -> None:
    f = of(record(1, prompt_len=256), record(3, prompt_len=257), record(*range(1, 18), prompt_len=20_000))
    assert list(f.by_prompt) == ["≤256", "≤1024", ">16384"]
    assert f.by_prompt["≤1024"].ttft == Quantiles(1, 3, 3, 3, 3)
    assert list(f.by_output) == ["≤16", "≤128"]


@pytest.mark.parametrize(
    ("value", "name"), [(1, "≤10"), (10, "≤10"), (11, "≤20"), (20, "≤20"), (21, ">20")], ids=lambda v: str(v)
)
def test_buckets_hold_their_bound(value: int, name: str) -> None:
    assert bucket(value, (10, 20)) == name
    assert buckets((10, 20)) == ["≤10", "≤20", ">20"]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([5.0], (5, 5, 5, 5)),
        ([1.0, 2.0], (1, 2, 2, 2)),
        ([float(v) for v in range(100, 0, -1)], (50, 90, 99, 100)),
        ([float(v) for v in range(1, 1001)], (500, 900, 990, 1000)),
    ],
    ids=["one", "two", "a hundred", "a thousand"],
)
def test_quantiles_are_of_the_nearest_rank(values: list[float], wanted: tuple[float, ...]) -> None:
    assert quantiles(values) == Quantiles(len(values), *wanted)


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantiles([]) is None
    assert quantiles([None, 1.0]) == Quantiles(1, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("values", "index"),
    [
        pytest.param([3.0, 3.0, 3.0], 1.0, id="all alike"),
        pytest.param([4.0, 0.0, 0.0, 0.0], 0.25, id="one has everything"),
        pytest.param([1.0, 2.0, 3.0], 36 / 42, id="by hand"),
        pytest.param([], None, id="nobody"),
    ],
)
def test_jain(values: list[float], index: float | None) -> None:
    assert jain(values) == index


def test_fairness_is_of_slowdowns() -> None:
    """Times 2 and times 6 as long as alone: 8² / (2 · 40)."""
    assert of(record(1), record(3)).fairness == pytest.approx(0.8)
    alone_unknown = record(1)
    alone_unknown.alone = None
    assert of(alone_unknown).fairness is None


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        ("ttft:1s", 2),
        ("ttft:999ms", 0),
        ("itl:1s", 1),
        ("itl:1.5s,ttft:1s", 1),
        ("itl:2s,ttft:1s", 2),
        ("tpot:1s", 1),
        ("tpot:1500ms,e2e:4s", 2),
        ("e2e:3.5s", 1),
    ],
)
def test_goodput(slo: str, met: int) -> None:
    run = Run(name="r", records=[record(1, 2, 3), record(1, 2, 4), record(0.1, ending=Ending.CUT)], seconds=10)
    assert figures(run, Slo.parse(slo)).goodput == met / 10
    assert figures(run).goodput is None


@pytest.mark.parametrize("text", ["", "ttft", "ttft:5", "ttft:-5ms", "speed:5ms", "ttft:5ms,,itl:1s", "ttft:5m"])
def test_objectives_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"want ttft, itl, tpot, e2e with a time each, such as ttft:500ms,itl:50ms"):
        Slo.parse(text)


def test_objectives_are_shown_as_they_are_written() -> None:
    assert str(Slo.parse("ttft:0.5s, itl:50ms")) == "ttft:500ms,itl:50ms"


def test_json_has_every_figure() -> None:
    value = json.loads(json.dumps(of(record(1, 2)).to_json()))
    assert value["overall"]["ttft"] == {"samples": 1, "p50": 1, "p90": 1, "p99": 1, "max": 1}
    assert value["by_prompt"]["≤256"]["e2e"]["max"] == 2
    assert value["endings"] == {"finished": 1, "refused": 0, "failed": 0, "cut": 0}
    assert value["goodput"] is None


def test_tokens_that_come_together_leave_no_gap_between_them() -> None:
    made = Record(10, 0.0)
    made.token(1.0, 2)
    made.token(3.0, 3)
    assert (made.output_len, made.gaps) == (5, array("d", [2.0]))


def test_a_series_of_any_length_is_bounded_and_even() -> None:
    series = Series(most=8)
    for step in range(1, 101):
        if series.step():
            series.add(Sample(float(step), 0, 0, 0.0))
    times = [s.at for s in series.samples]
    assert 4 <= len(times) < 8
    assert {b - a for a, b in pairwise(times)} == {16.0}
