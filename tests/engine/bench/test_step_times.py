"""Step times as flags and files name them, and what a request takes alone."""

import json
from pathlib import Path

import pytest

from pinrail_engine.bench import step_times
from pinrail_engine.bench.alone import Rates, predicted
from pinrail_engine.bench.errors import BenchError
from pinrail_engine.bench.records import Ending, Record
from pinrail_engine.bench.workload import Job, Piece
from pinrail_engine.core.plan import Row, work_of
from pinrail_engine.core.step_time import TERMS, StepTime

TIMES = (1.0, 0.1, 0.01, 0.001, 0.0001)


def test_numbers() -> None:
    assert step_times.parse("1,0.1,0.01,1e-3,1e-4") == TIMES


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    step_times.write(file, dict(zip(TERMS, TIMES, strict=True)))
    assert json.loads(file.read_text()) == {"step": 1.0, "token": 0.1, "sampled": 0.01, "read": 0.001, "pair": 0.0001}
    assert step_times.parse(str(file)) == TIMES


@pytest.mark.parametrize("text", ["1,2", "1,2,3,4,x", "1,2,3,4,-5", "0,0,0,0,0", "1,1,1,1,nan", "1,1,1,1,inf"])
def test_numbers_that_are_no_step_times(text: str) -> None:
    with pytest.raises(ValueError, match="want 5 numbers, 0 or more and not all 0: step,token,sampled,read,pair"):
        step_times.parse(text)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"step": "x"}', '{"step":0,"token":0,"sampled":0,"read":0,"pair":-1}']
)
def test_files_that_hold_no_step_times(text: str, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(text)
    with pytest.raises(BenchError, match=r"s\.json: got"):
        step_times.parse(str(file))


@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (10, 1), (25, 4), (20, 3), (21, 2)])
def test_alone_is_the_sum_of_its_steps(prompt: int, output: int) -> None:
    model, most = StepTime(list(TIMES)), 10
    rows = [Row("", 0, s, min(most, prompt - s), s + most >= prompt) for s in range(0, prompt, most)]
    rows += [Row("", 0, prompt + i, 1, True) for i in range(output - 1)]
    job = Job(0.0, (Piece(1, prompt),), Piece(-1, output))
    assert predicted(model, job, most) == pytest.approx(sum(model.predict(work_of([row])) for row in rows))


def test_rates_of_a_server_are_those_of_its_warm_up() -> None:
    """100 tokens in 2 s, then 0.5 s per token."""
    warm = Record(100, 0.0)
    for at in (2.0, 2.5, 3.0):
        warm.token(at)
    warm.end(3.0, Ending.FINISHED)
    job = Job(0.0, (Piece(1, 50),), Piece(-1, 5))
    assert Rates([warm]).alone(job) == pytest.approx(1.0 + 2.0)
    assert Rates([]).alone(job) is None
    assert Rates([Record(10, 0.0)]).alone(job) is None, "it got no answer"
