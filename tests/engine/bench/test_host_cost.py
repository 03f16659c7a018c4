"""The measure of the scheduler's own cost does what it says."""

import json

import pytest

from pinrail_engine.bench.host_cost import measure
from pinrail_engine.bench_command import command


def test_both_kinds_of_step_are_measured() -> None:
    cost = measure(3)
    assert cost.rows == 3
    assert cost.decode_ms > 0 < cost.mixed_ms


def test_each_number_of_rows_is_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinrail_engine.bench.host_cost.ROWS", (1, 2))
    assert command.run(["scheduler", "--json"]) == 0
    assert [json.loads(line)["rows"] for line in capsys.readouterr().out.splitlines()] == [1, 2]
    assert command.run(["scheduler"]) == 0
    assert "2 texts" in capsys.readouterr().out
