"""Measures servers, or the engine in this process, in turns: run 1 of each workload on each, then run 2. Acts."""

from collections.abc import Callable, Mapping, Sequence

from .fixed import Fixed, jobs, warm_up
from .load import Progress, silent
from .records import Record
from .spread import Spreads, Values, figures_of, require_all, spreads
from .workload import Job

SECONDS = 3600.0  # of one run of a workload; no machine that can serve takes longer

Player = Callable[[Sequence[Job], str], Sequence[Record]]
"""(jobs, name of the run) -> a record per job."""


def measure(
    players: Mapping[str, Player], workloads: Sequence[Fixed], runs: int, progress: Progress = silent
) -> Mapping[str, Mapping[str, Spreads]]:
    """Player -> workload -> figures. Neighbours in time are compared, so that what slows the machine slows all.

    Every workload is played once before, with short outputs, and not counted. Raises BenchError where a request does
    not finish.
    """
    for workload in workloads:
        for name, player in players.items():
            _play(player, f"{name}: warm-up of {workload}", warm_up(workload), progress)
    values: dict[str, dict[str, list[Values]]] = {name: {w: [] for w in workloads} for name in players}
    for run in range(1, runs + 1):
        for workload in workloads:
            for name, player in players.items():
                records = _play(player, f"{name}: run {run} of {workload}", jobs(workload, run), progress)
                values[name][workload].append(figures_of(workload, records))
    return {name: {w: spreads(of_runs) for w, of_runs in told.items()} for name, told in values.items()}


def plays(players: int, workloads: Sequence[Fixed], runs: int) -> int:
    """How often `measure` tells its progress."""
    return players * len(workloads) * (runs + 1)


def _play(player: Player, name: str, jobs: Sequence[Job], progress: Progress) -> Sequence[Record]:
    records = player(jobs, name)
    require_all(name, jobs, records)
    progress(1)
    return records
