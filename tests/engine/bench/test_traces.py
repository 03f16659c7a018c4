"""Trace files of each format, as generated here: what is read, and what is said of lines that are wrong."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from pinrail_engine.bench.errors import TraceError
from pinrail_engine.bench.traces import parse_trace, read_trace
from pinrail_engine.bench.workload import Job

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def mooncake(timestamp: object = 0, tokens: object = 600, output: object = 5, ids: object = (1, 2)) -> str:
    row = {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": ids}
    return json.dumps(row) + "\n"


def bailian(timestamp: float, tokens: int, output: int, ids: list[int]) -> str:
    row = {"chat_id": 1, "parent_chat_id": -1, "timestamp": timestamp, "input_length": tokens}
    return json.dumps(row | {"output_length": output, "type": "text", "turn": 1, "hash_ids": ids}) + "\n"


def shape(jobs: Iterator[Job]) -> list[tuple[float, list[int], int]]:
    return [(round(j.arrival, 7), [p.length for p in j.prompt], j.output_len) for j in jobs]


def test_azure() -> None:
    rows = ["2023-11-16 18:15:46.6805900,374,44\n", "2023-11-16 18:15:50.9951690,396,109\n"]
    first, second = parse_trace([AZURE, *rows], "t")
    assert (first.prompt_len, first.output_len, second.prompt_len) == (374, 44, 396)
    assert second.arrival - first.arrival == pytest.approx(4.314579, abs=1e-6)
    assert first.prompt_tokens(1000, 0)[:20] != second.prompt_tokens(1000, 0)[:20], "all prompts differ"


def test_azure_of_2024_names_the_zone() -> None:
    rows = ["2024-05-10 00:00:00+00:00,10,1\n", "2024-05-10 02:00:00.5+02:00,10,1\n"]
    first, second = parse_trace([AZURE, *rows], "t")
    assert second.arrival - first.arrival == 0.5


def test_burstgpt_leaves_out_rows_without_an_answer() -> None:
    rows = ["5,1,2.5,ChatGPT,472,18,490,Conversation log\n", "6,1,,ChatGPT,100,0,100,API log\n"]
    more = ["45.5,,,GPT-4,1087,230,1317,API log\n"]
    assert shape(parse_trace([BURSTGPT, *rows, *more], "t")) == [(5, [472], 18), (45.5, [1087], 230)]


def test_mooncake_replays_shared_blocks() -> None:
    lines = [mooncake(0, 1100, 5, [7, 8, 9]), mooncake(27_000, 1025, 6, [7, 8, 10])]
    first, second = parse_trace(lines, "t")
    assert [p.length for p in first.prompt] == [512, 512, 76]
    assert second.arrival == 27, "Mooncake counts milliseconds"
    assert first.prompt_tokens(5000, 0)[:1024] == second.prompt_tokens(5000, 0)[:1024]
    assert first.prompt_tokens(5000, 0)[1024] != second.prompt_tokens(5000, 0)[1024]


def test_bailian_has_blocks_of_16_tokens_and_counts_seconds() -> None:
    lines = [bailian(0.5, 20, 3, [4, 5]), bailian(2, 16, 3, [4])]
    assert shape(parse_trace(lines, "t")) == [(0.5, [16, 4], 3), (2, [16], 3)]


def test_empty_lines_and_dos_line_ends_are_no_rows() -> None:
    lines = [AZURE.replace("\n", "\r\n"), "2023-11-16 18:15:46,1,1\r\n", "\r\n"]
    assert len(list(parse_trace(lines, "t"))) == 1
    assert len(list(parse_trace([mooncake(), "\n"], "t"))) == 1


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("\ufeff" + AZURE + "2023-11-16 18:15:46,3,2\n", encoding="utf-8")
    (only,) = read_trace(file)
    assert (only.prompt_len, only.output_len) == (3, 2)


def test_no_more_is_read_than_is_asked_for() -> None:
    """A trace of a week is not held in memory."""

    def lines() -> Iterator[str]:
        yield from (mooncake(i) for i in range(3))
        raise AssertionError("read ahead")

    assert len(list(islice(parse_trace(lines(), "t"), 2))) == 2


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        pytest.param([], "t:1: got '', want the header of an Azure or BurstGPT CSV file", id="an empty file"),
        pytest.param(["a,b\n"], "t:1: got 'a,b', want the header", id="another table"),
        pytest.param([AZURE], "t:1: got 'no rows', want at least one request", id="a header alone"),
        pytest.param(
            [AZURE, "2023-11-16 18:15:46,1\n"], "t:2: got '2023-11-16 18:15:46,1', want 3 columns", id="columns"
        ),
        pytest.param([AZURE, "noon,1,1\n"], "t:2: TIMESTAMP: got 'noon', want a time such as", id="time"),
        pytest.param(
            [AZURE, "2023-11-16 18:15:46,x,1\n"],
            "t:2: ContextTokens: got 'x', want an integer, 1 or more",
            id="no number",
        ),
        pytest.param(
            [AZURE, "2023-11-16 18:15:46,1,0\n"],
            "t:2: GeneratedTokens: got 0, want an integer, 1 or more",
            id="no answer",
        ),
        pytest.param(
            [AZURE, "2023-11-16 18:15:46,1,1\n", "2023-11-16 18:15:45,1,1\n"],
            "t:3: timestamp: got 1700158545.0, want at least 1700158546.0: rows by time",
            id="back in time",
        ),
        pytest.param(
            [BURSTGPT, "-1,,,m,1,1,2,l\n"], "t:2: Timestamp: got '-1', want a number, 0 or more", id="negative"
        ),
        pytest.param([BURSTGPT, "nan,,,m,1,1,2,l\n"], "t:2: Timestamp: got 'nan'", id="not a number"),
        pytest.param(["{broken\n"], "t:1: got '{broken', want a JSON object", id="not JSON"),
        pytest.param([mooncake(), "[1]\n"], "t:2: got '[1]', want a JSON object", id="not an object"),
        pytest.param([mooncake(timestamp=True)], "t:1: timestamp: got True, want a number", id="a truth"),
        pytest.param([mooncake(timestamp=None)], "t:1: timestamp: got None", id="no time"),
        pytest.param([mooncake(tokens=1.5)], "t:1: input_length: got 1.5, want an integer", id="a part of a token"),
        pytest.param([mooncake(output=0)], "t:1: output_length: got 0, want an integer, 1 or more", id="no output"),
        pytest.param([mooncake(ids="12")], "t:1: hash_ids: got '12', want a list of integers", id="no list"),
        pytest.param(
            [mooncake(ids=[1, -2])], "t:1: hash_ids: got [1, -2], want a list of integers, 0 or more", id="id"
        ),
        pytest.param(
            [mooncake(ids=[1])], "t:1: hash_ids: got '1 ids', want 2: one per 512 of 600 tokens", id="too few"
        ),
    ],
)
def test_wrong_lines(lines: list[str], said: str) -> None:
    with pytest.raises(TraceError) as caught:
        list(parse_trace(lines, "t"))
    assert str(caught.value).startswith(said)


def test_bytes_that_are_no_text_are_a_wrong_line(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(AZURE.encode() + b"2023-11-16 18:15:46,\xff,1\n")
    with pytest.raises(TraceError, match=r"a\.csv:2: ContextTokens: got"):
        list(read_trace(file))
