"""The fixed workloads: always the same lengths, and never the same tokens."""

from itertools import combinations

import pytest

from pinrail_engine.bench.fixed import Fixed, first_request, jobs, warm_up
from pinrail_engine.bench.workload import Job

VOCAB = 10_000
BLOCK = 16  # tokens that a prefix cache knows prompts by, at least


def prompts(made: tuple[Job, ...]) -> list[list[int]]:
    return [job.prompt_tokens(VOCAB, 0) for job in made]


def lengths(made: tuple[Job, ...]) -> list[tuple[int, int]]:
    return [(job.prompt_len, job.output_len) for job in made]


def test_lengths_are_the_ones_that_figures_are_known_of() -> None:
    assert lengths(jobs(Fixed.SINGLE, 1)) == [(32, 128)]
    assert lengths(jobs(Fixed.PREFILL, 1)) == [(1024, 1)]
    assert lengths(jobs(Fixed.BATCH, 1))[:3] == [(162, 85), (74, 65), (194, 94)]
    assert len(jobs(Fixed.BATCH, 1)) == 32
    assert lengths(jobs(Fixed.PREFIX, 1)) == [(544, 32)] * 32


@pytest.mark.parametrize("workload", Fixed)
def test_runs_differ_in_tokens_and_not_in_lengths(workload: Fixed) -> None:
    first, second = jobs(workload, 1), jobs(workload, 2)
    assert lengths(first) == lengths(second)
    assert all(job.arrival == 0 for job in first), "all at once"
    assert first == jobs(workload, 1), "a run is the same for every server"


def test_no_two_prompts_begin_alike_but_for_the_prefix_within_a_run() -> None:
    made = [jobs(workload, run) for workload in Fixed for run in (1, 2, 11)]
    made += [warm_up(workload) for workload in Fixed] + [first_request()]
    heads = [(group, tuple(p[:BLOCK])) for group, of_run in enumerate(made) for p in prompts(of_run)]
    for (one, a), (other, b) in combinations(heads, 2):
        assert (a == b) == (one == other and made[one][0].prompt_len == 544)


def test_the_prefix_is_common_within_a_run_and_new_in_the_next() -> None:
    first, second = prompts(jobs(Fixed.PREFIX, 1)), prompts(jobs(Fixed.PREFIX, 2))
    assert all(prompt[:512] == first[0][:512] for prompt in first)
    assert len({tuple(prompt[512:]) for prompt in first}) == 32, "what follows is each one's own"
    assert first[0][:BLOCK] != second[0][:BLOCK]


@pytest.mark.parametrize("workload", Fixed)
def test_warm_up_has_the_whole_prompts_and_short_outputs(workload: Fixed) -> None:
    warm, whole = warm_up(workload), jobs(workload, 1)
    assert [job.prompt_len for job in warm] == [job.prompt_len for job in whole]
    assert max(job.output_len for job in warm) <= 4
