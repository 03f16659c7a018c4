"""The fixed workloads' table: medians, spreads, ratios to the first server, and what each says of itself."""

import pytest

from pinrail_engine.bench.fixed_table import label_of, render, title_of, unit_of
from pinrail_engine.bench.spread import Column, Spread

OURS = Column(
    "pinrail",
    {"backend": "native", "isa": "avx512", "digest": ""},
    {
        "start": {"first_token_seconds": Spread(2.0, 1.9, 2.2)},
        "single": {"decode_tokens_per_second": Spread(50.0, 48.0, 51.0)},
        "end": {"resident_bytes": Spread(600e6, 600e6, 600e6)},
    },
)
THEIRS = Column(
    "llama",
    {"url": "http://a:1"},
    {
        "single": {
            "decode_tokens_per_second": Spread(40.0, 39.0, 40.5),
            "first_token_seconds": Spread(0.05, 0.04, 0.06),
        },
        "batch": {"output_tokens_per_second": Spread(10.0, 9.0, 11.0)},
        "end": {"resident_bytes": Spread(900e6, 900e6, 900e6)},
    },
)


def rows(text: str) -> dict[str, list[str]]:
    """Label -> the cells after it."""
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    return {row[0]: row[1:] for row in cells if row}


def test_each_further_server_is_compared_with_the_first() -> None:
    text = render([OURS, THEIRS], 5)
    told = rows(text)
    assert told["pinrail"] == ["least … most of 5", "llama", "least … most of 5", "to pinrail"]
    assert told["decode"] == ["50.0 tok/s", "48.0 … 51.0", "40.0 tok/s", "39.0 … 40.5", "0.80x"]
    assert told["resident"][-1] == "1.50x"


def test_what_one_of_them_lacks_is_a_dash_without_a_ratio() -> None:
    told = rows(render([OURS, THEIRS], 5))
    assert told["output"] == ["-", "10.0 tok/s", "9.0 … 11.0"]
    assert told["first token"] == ["-", "50.0 ms", "40.0 … 60.0"], "of single, which stands last"


def test_memory_stands_last_and_what_they_say_of_themselves_first() -> None:
    lines = render([OURS, THEIRS], 5).splitlines()
    assert lines[:2] == ["pinrail: backend native, isa avx512", "llama: url http://a:1"]
    assert lines[-2:-1] == ["memory after all runs"]
    assert lines.index("batch (32 at once, 4,957 in, 2,742 out)") < len(lines) - 2


def test_one_engine_alone() -> None:
    told = rows(render([OURS], 1))
    assert told["decode"] == ["50.0 tok/s", "48.0 … 51.0"]


@pytest.mark.parametrize(
    ("figure", "value", "label", "shown"),
    [
        ("decode_tokens_per_second", 1234.56, "decode", "1,234.6 tok/s"),
        ("first_token_p50_seconds", 0.01234, "first token p50", "12.3 ms"),
        ("first_token_seconds", 1.23456, "first token", "1.235 s"),
        ("peak_bytes", 2.5e9, "peak", "2,500 MB"),
        ("seconds", 1.0, "time", "1.000 s"),
    ],
)
def test_a_figures_name_says_its_unit(figure: str, value: float, label: str, shown: str) -> None:
    unit = unit_of(figure, value)
    assert (label_of(figure), f"{unit.number(value)} {unit.word}") == (label, shown)


def test_titles() -> None:
    assert title_of("single") == "single (32 in, 128 out)"
    assert title_of("prefix") == "prefix (32 at once, 17,408 in, 1,024 out)"
