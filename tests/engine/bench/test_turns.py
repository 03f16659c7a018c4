"""Servers are measured in turns, with the same prompts."""

from collections.abc import Sequence

import pytest

from pinrail_engine.bench.errors import BenchError
from pinrail_engine.bench.fixed import Fixed, jobs, warm_up
from pinrail_engine.bench.records import Ending, Record
from pinrail_engine.bench.spread import Spread
from pinrail_engine.bench.turns import Player, measure, plays
from pinrail_engine.bench.workload import Job


class Players:
    """Each answers all at once, after the seconds that are next in its list."""

    def __init__(self, **seconds: list[float]) -> None:
        self.played: list[tuple[str, Sequence[Job]]] = []
        self.players = {name: self._player(name, list(of_runs)) for name, of_runs in seconds.items()}

    def _player(self, name: str, seconds: list[float]) -> Player:
        def play(jobs: Sequence[Job], _: str) -> list[Record]:
            self.played.append((name, jobs))
            return [answered(job, at) for at in [seconds.pop(0)] for job in jobs]

        return play


def answered(job: Job, at: float) -> Record:
    record = Record(job.prompt_len, 0.0)
    record.token(at, job.output_len)
    record.end(at, Ending.FINISHED)
    return record


def test_each_run_goes_round_all_servers_with_the_same_prompts() -> None:
    fakes = Players(ours=[1.0] * 6, theirs=[1.0] * 6)
    measure(fakes.players, [Fixed.SINGLE, Fixed.PREFIX], 2)
    warm = [warm_up(Fixed.SINGLE), warm_up(Fixed.PREFIX)]
    runs = [jobs(workload, run) for run in (1, 2) for workload in (Fixed.SINGLE, Fixed.PREFIX)]
    assert fakes.played == [(name, made) for made in [*warm, *runs] for name in ("ours", "theirs")]


def test_warm_up_is_not_counted_and_runs_are_each_servers_own() -> None:
    fakes = Players(ours=[100.0, 1.0, 4.0, 2.0], theirs=[0.0, 7.0, 7.0, 7.0])
    told = measure(fakes.players, [Fixed.PREFIX], 3)
    assert told["ours"][Fixed.PREFIX]["seconds"] == Spread(2.0, 1.0, 4.0)
    assert told["theirs"][Fixed.PREFIX]["seconds"] == Spread(7.0, 7.0, 7.0)


def test_progress_is_told_as_often_as_was_said() -> None:
    seen: list[int] = []
    measure(Players(a=[1.0] * 8, b=[1.0] * 8).players, [Fixed.SINGLE, Fixed.PREFILL], 3, seen.append)
    assert sum(seen) == plays(2, [Fixed.SINGLE, Fixed.PREFILL], 3)


def test_a_failure_names_server_run_and_workload() -> None:
    with pytest.raises(BenchError, match="b: warm-up of single: a request was cut"):
        measure({"b": lambda jobs, _: [Record(job.prompt_len, 0.0) for job in jobs]}, [Fixed.SINGLE], 1)
