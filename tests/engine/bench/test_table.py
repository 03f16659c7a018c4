"""Figures as text: a column per run, ratios to the first, and what went wrong below."""

from pinrail_engine.bench.records import Ending, Record, Run
from pinrail_engine.bench.report import figures
from pinrail_engine.bench.slo import Slo
from pinrail_engine.bench.table import ratio, render, seconds


def run(name: str, ttft: float, error: str = "") -> Run:
    good, bad = Record(100, 0.0), Record(100, 0.0)
    good.token(ttft)
    good.end(ttft, Ending.FINISHED)
    bad.end(1.0, Ending.REFUSED, error)
    return Run(name=name, records=[good, bad], seconds=2.0)


def lines(*runs: Run) -> dict[str, list[str]]:
    """Label -> the words after it."""
    text = render([figures(r) for r in runs])
    rows = [line.split("  ", 1) for line in text.splitlines() if line]
    return {label.strip(): rest.split() for label, rest in ([*r, ""][:2] for r in rows) if label}


def test_each_further_run_is_compared_with_the_first() -> None:
    rows = lines(run("fcfs", 0.5), run("sjf", 0.25))
    assert rows["TTFT p50"] == ["500.00", "ms", "250.00", "ms", "0.50x"]


def test_what_is_not_known_has_no_row() -> None:
    rows = lines(run("fcfs", 0.5))
    assert "steps" not in rows
    assert "QUEUE p50" not in rows


def test_what_was_said_of_failures_stands_below() -> None:
    text = render([figures(run("a", 1.0, "429: full")), figures(run("b", 1.0))])
    assert text.splitlines()[-1] == "a: 1 times: 429: full"
    assert "refused" in text


def test_columns_are_aligned_and_never_cut() -> None:
    name = "http://a-very-long-name.example:8000/" + "x" * 60
    text = render([figures(run(name, 1.0), Slo.parse("ttft:1s")), figures(run("b", 1.0))], Slo.parse("ttft:1s"))
    header, first = text.splitlines()[:2]
    assert name in header
    assert first.index("2") + 1 == header.index(name) + len(name), "right-aligned under its name"
    assert "goodput (ttft:1000ms)" in text


def test_seconds_and_ratios() -> None:
    assert (seconds(0.00123), seconds(2.5)) == ("1.23 ms", "2.500 s")
    assert (ratio(1.0, 2.0), ratio(1.0, 0.0), ratio(None, 1.0)) == ("0.50x", "", "")
