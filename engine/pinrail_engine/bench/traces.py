"""Public traces of LLM services, read line by line: what was asked and when, never the text.

| format   | first line                                  | prompts                            |
|----------|---------------------------------------------|------------------------------------|
| azure    | TIMESTAMP,ContextTokens,GeneratedTokens     | all different                      |
| burstgpt | Timestamp,…,Request tokens,Response tokens,… | all different; rows without an answer are left out |
| mooncake | an object with hash_ids                     | blocks of 512 tokens, named by id   |
| bailian  | an object with hash_ids and chat_id         | blocks of 16 tokens, named by id    |

Sources: Azure LLM inference trace 2023 (Patel et al., Splitwise, ISCA 2024), https://arxiv.org/abs/2311.18677;
BurstGPT (Wang et al. 2024), https://arxiv.org/abs/2401.17644; Mooncake (Qin et al., FAST 2025),
https://arxiv.org/abs/2407.00079; Qwen-Bailian (Wang et al., USENIX ATC 2025), https://arxiv.org/abs/2506.02634.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from .errors import TraceError
from .workload import Job, Piece

_MOONCAKE_BLOCK = 512  # tokens
_BAILIAN_BLOCK = 16  # tokens
_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
_WANTED = "the header of an Azure or BurstGPT CSV file, or an object with hash_ids (Mooncake, Bailian)"


def read_trace(path: Path) -> Iterator[Job]:
    """Jobs by arrival, in the trace's own seconds; no more of the file is in memory than a line. Raises TraceError."""
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        yield from parse_trace(lines, str(path))


def parse_trace(lines: Iterable[str], name: str) -> Iterator[Job]:
    """Args: name: of the file, for messages."""
    return _in_order(_parse(lines, name), name)


def _parse(lines: Iterable[str], name: str) -> "Iterator[tuple[_Line, Job]]":
    lines = iter(lines)
    first = next(lines, "")
    place = _Line(name, 1)
    if first.lstrip().startswith("{"):
        block = _BAILIAN_BLOCK if "chat_id" in place.json(first) else _MOONCAKE_BLOCK
        return _json_jobs(chain([first], lines), name, block)
    columns = [column.strip() for column in first.removeprefix("\ufeff").rstrip("\r\n").split(",")]
    if set(_AZURE_COLUMNS) <= set(columns):
        return _csv_jobs(lines, name, columns, _azure_job)
    if set(_BURSTGPT_COLUMNS) <= set(columns):
        return _csv_jobs(lines, name, columns, _burstgpt_job)
    raise place.wrong("", first[:200].rstrip(), _WANTED)


@dataclass(frozen=True, slots=True)
class _Line:
    """Where a value stands, for messages."""

    file: str
    number: int

    def wrong(self, field: str, seen: object, wanted: str) -> TraceError:
        return TraceError(self.file, self.number, field, seen, wanted)

    def json(self, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except ValueError:
            raise self.wrong("", text.strip(), "a JSON object") from None
        if not isinstance(value, dict):
            raise self.wrong("", text.strip(), "a JSON object")
        return value

    def count(self, field: str, value: object, least: int = 1) -> int:
        """Tokens. CSV has them as text."""
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if type(value) is not int or value < least:
            raise self.wrong(field, value, f"an integer, {least} or more")
        return value

    def seconds(self, field: str, value: object, unit: float = 1.0) -> float:
        """Args: unit: seconds that the trace counts in."""
        try:
            number = float(value) if isinstance(value, str | int | float) and type(value) is not bool else -1.0
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise self.wrong(field, value, "a number, 0 or more")
        return number * unit

    def instant(self, field: str, value: str) -> float:
        """Seconds since 1970 of an ISO time with any number of decimals, in UTC where no zone is named."""
        whole, _, decimals = value.strip().partition(".")
        digits = decimals[: len(decimals) - len(decimals.lstrip("0123456789"))]
        try:
            at = datetime.fromisoformat(whole + (decimals[len(digits) :] or ("" if "+" in whole else "+00:00")))
        except ValueError:
            raise self.wrong(field, value, "a time such as 2023-11-16 18:15:46.6805900") from None
        return at.timestamp() + (int(digits) / 10 ** len(digits) if digits else 0.0)


_Row = Mapping[str, str]


def _csv_jobs(
    lines: Iterable[str], name: str, columns: list[str], job: Callable[[_Line, _Row, int], Job | None]
) -> Iterator[tuple[_Line, Job]]:
    for number, values in enumerate(csv.reader(lines), 2):
        if not values:
            continue
        place = _Line(name, number)
        if len(values) != len(columns):
            raise place.wrong("", ",".join(values), f"{len(columns)} columns, as in the header")
        made = job(place, dict(zip(columns, values, strict=True)), number)
        if made is not None:
            yield place, made


def _azure_job(line: _Line, row: _Row, number: int) -> Job:
    time, context, generated = _AZURE_COLUMNS
    return Job(
        line.instant(time, row[time]),
        (Piece(number, line.count(context, row[context])),),
        Piece(-number, line.count(generated, row[generated])),
    )


def _burstgpt_job(line: _Line, row: _Row, number: int) -> Job | None:
    time, request, response = _BURSTGPT_COLUMNS
    at, output = line.seconds(time, row[time]), line.count(response, row[response], least=0)
    if output == 0:
        return None
    return Job(at, (Piece(number, line.count(request, row[request])),), Piece(-number, output))


def _json_jobs(lines: Iterable[str], name: str, block: int) -> Iterator[tuple[_Line, Job]]:
    unit = 1.0 if block == _BAILIAN_BLOCK else 1e-3  # Mooncake counts milliseconds
    for number, text in enumerate(lines, 1):
        if text.strip():
            line = _Line(name, number)
            row = line.json(text)
            at = line.seconds("timestamp", row.get("timestamp"), unit)
            output = Piece(-number, line.count("output_length", row.get("output_length")))
            yield line, Job(at, _blocks(line, row, block), output)


def _blocks(line: _Line, row: Mapping[str, Any], block: int) -> tuple[Piece, ...]:
    length, ids = line.count("input_length", row.get("input_length")), row.get("hash_ids")
    wanted = -(-length // block)
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        raise line.wrong("hash_ids", ids, "a list of integers, 0 or more")
    if len(ids) != wanted:
        raise line.wrong("hash_ids", f"{len(ids)} ids", f"{wanted}: one per {block} of {length} tokens")
    return tuple(Piece(key, min(block, length - i * block)) for i, key in enumerate(ids))


def _in_order(jobs: Iterable[tuple[_Line, Job]], name: str) -> Iterator[Job]:
    before = 0.0
    any_job = False
    for line, job in jobs:
        if job.arrival < before:
            raise line.wrong("timestamp", job.arrival, f"at least {before}: rows by time")
        before, any_job = job.arrival, True
        yield job
    if not any_job:
        raise TraceError(name, 1, "", "no rows", "at least one request")
