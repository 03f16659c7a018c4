"""The scheduler in simulated time: laws that hold of every run, and what policies are for."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinrail_contract.launch import Policy
from pinrail_engine.bench.alone import prefill_seconds
from pinrail_engine.bench.records import Ending, Run
from pinrail_engine.bench.report import Figures, Quantiles, figures
from pinrail_engine.bench.simulator import VOCAB_SIZE, Setup, simulate
from pinrail_engine.bench.step_times import GPU_LIKE
from pinrail_engine.bench.synthetic import MIXES, jobs
from pinrail_engine.bench.table import render
from pinrail_engine.bench.workload import Job, Piece, Workload
from pinrail_engine.core.state import Limits
from pinrail_engine.core.step_time import StepTime

LIMITS = Limits(
    vocab_size=VOCAB_SIZE, max_model_len=8192, max_num_seqs=32, max_num_batched_tokens=1024, target_step=0.05
)
SETUP = Setup(limits=LIMITS, kv_blocks=2048, block_size=16, step_time=GPU_LIKE)


def mix(name: str, requests: int = 0, rate: float | None = None) -> Workload:
    return Workload(name, tuple(jobs(MIXES[name], 0, requests=requests, rate=rate)))


def one(prompt: int, output: int, arrival: float = 0.0) -> Job:
    return Job(arrival, (Piece(1, prompt),), Piece(-1, output))


def waits(told: Figures, prompts: str) -> Quantiles:
    found = told.by_prompt[prompts].ttft
    assert found is not None
    return found


def served(run: Run) -> list[tuple[Ending, int]]:
    return [(r.ending, r.output_len) for r in run.records]


@pytest.mark.parametrize("name", MIXES)
def test_every_job_gets_all_of_its_output(name: str) -> None:
    workload = mix(name)
    run = simulate(workload, SETUP, name)
    assert served(run) == [(Ending.FINISHED, j.output_len) for j in workload.jobs]
    assert all(len(r.gaps) == r.output_len - 1 for r in run.records)


def test_equal_inputs_give_equal_tables() -> None:
    first, second = (render([figures(simulate(mix("chat", 64), SETUP, "x"))]) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("prompt", [1, 15, 1024, 1025, 5000])
def test_alone_the_first_token_takes_the_predicted_prefill(prompt: int) -> None:
    run = simulate(Workload("w", (one(prompt, 20, arrival=3.0),)), SETUP, "x")
    (record,) = run.records
    assert record.ttft == pytest.approx(prefill_seconds(StepTime(list(GPU_LIKE)), prompt, 1024))
    assert record.slowdown == pytest.approx(1.0)
    assert record.queue == 0


def test_shortest_first_serves_short_prompts_sooner_and_long_ones_in_the_end() -> None:
    """All at once: the policy is what decides who waits."""
    fcfs, sjf = (
        figures(simulate(mix("long-and-short"), replace(SETUP, limits=replace(LIMITS, policy=p)), p))
        for p in (Policy.FCFS, Policy.SJF)
    )
    short, long = "≤256", "≤4096"
    assert waits(sjf, short).p50 < 0.7 * waits(fcfs, short).p50
    assert waits(sjf, long).p50 > waits(fcfs, long).p50
    assert waits(sjf, long).max < 2 * waits(fcfs, long).max, "and nobody starves"


@pytest.mark.parametrize("name", ["shared-prefix", "agentic"])
def test_with_room_the_prefix_cache_finds_nearly_what_the_oracle_does(name: str) -> None:
    """Those that come at once wait for the first one's prefix instead of computing it too."""
    on = figures(simulate(mix(name), SETUP, "on"))
    assert on.oracle_hit_rate > 0.5
    assert on.hit_rate == pytest.approx(on.oracle_hit_rate, rel=0.05)


def test_without_prefix_cache_nothing_is_found_and_it_takes_longer() -> None:
    on, off = (simulate(mix("shared-prefix"), replace(SETUP, prefix_cache=c), "x") for c in (True, False))
    assert figures(off).hit_rate == 0
    assert off.seconds > on.seconds


def test_a_small_cache_preempts_and_still_everybody_finishes() -> None:
    workload = Workload("w", tuple(Job(0.0, (Piece(i, 60),), Piece(-i, 200)) for i in range(1, 9)))
    small = replace(SETUP, kv_blocks=40, limits=replace(LIMITS, max_model_len=300), prefix_cache=False)
    run = simulate(workload, small, "x")
    assert served(run) == [(Ending.FINISHED, 200)] * 8
    assert run.preemptions
    assert run.recomputed_tokens


def test_a_prompt_that_never_fits_is_refused_with_the_reason() -> None:
    run = simulate(Workload("w", (one(9000, 1), one(10, 5))), SETUP, "x")
    assert served(run) == [(Ending.REFUSED, 0), (Ending.FINISHED, 5)]
    assert "the prompt has 9000 tokens, want at most 8191" in run.records[0].error


def test_steps_in_flight_hide_the_hosts_time() -> None:
    workload = Workload("w", tuple(Job(0.0, (Piece(i, 32),), Piece(-i, 100)) for i in range(1, 9)))
    slow_host = replace(SETUP, host_time=0.004)
    one_step, two_steps = simulate(workload, slow_host, "1"), simulate(workload, replace(slow_host, depth=2), "2")
    no_host = simulate(workload, SETUP, "0")
    assert one_step.seconds > no_host.seconds + 90 * 0.004
    assert two_steps.seconds < no_host.seconds + 10 * 0.004
    assert served(two_steps) == served(one_step)


def test_a_closed_loop_never_has_more_than_its_concurrency() -> None:
    run = simulate(mix("uniform", 20), replace(SETUP, concurrency=3), "x")
    events = sorted(e for r in run.records for e in ((r.arrival, 1), (r.ended_at or 0.0, -1)))
    living = most = 0
    for _, change in events:
        living += change
        most = max(most, living)
    assert most == 3
    assert len(run.records) == 20


def test_an_open_loop_keeps_to_its_arrivals() -> None:
    workload = mix("chat", 50)
    assert [r.arrival for r in simulate(workload, SETUP, "x").records] == [j.arrival for j in workload.jobs]


def test_progress_counts_every_job() -> None:
    seen: list[int] = []
    simulate(Workload("w", (one(9000, 1), one(10, 5))), SETUP, "x", seen.append)
    assert seen == [1, 1]


def test_the_queue_and_the_cache_are_sampled() -> None:
    run = simulate(mix("uniform"), SETUP, "x")
    assert max(s.waiting for s in run.samples) > 50
    assert max(s.running for s in run.samples) == 32
    assert 0 < max(s.kv_used for s in run.samples) <= 1


JOBS = st.lists(
    st.builds(
        Job,
        st.floats(0, 2),
        st.lists(st.builds(Piece, st.integers(0, 3), st.integers(1, 60)), min_size=1, max_size=3).map(tuple),
        st.builds(Piece, st.integers(-5, -1), st.integers(1, 40)),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(
    jobs=JOBS,
    depth=st.integers(1, 3),
    cache=st.booleans(),
    policy=st.sampled_from(Policy),
    blocks=st.integers(60, 120),
    host=st.sampled_from([0.0, 0.003]),
)
def test_whatever_comes_is_served(
    jobs: list[Job], depth: int, cache: bool, policy: Policy, blocks: int, host: float
) -> None:
    limits = Limits(vocab_size=VOCAB_SIZE, max_model_len=240, max_num_seqs=4, max_num_batched_tokens=64, policy=policy)
    setup = Setup(
        limits=limits,
        kv_blocks=blocks,
        block_size=4,
        step_time=GPU_LIKE,
        prefix_cache=cache,
        depth=depth,
        host_time=host,
    )
    ordered = tuple(sorted(jobs, key=lambda j: j.arrival))
    run = simulate(Workload("w", ordered), setup, "x")
    assert served(run) == [(Ending.FINISHED, j.output_len) for j in ordered]
    for r in run.records:
        assert r.scheduled_at is not None
        assert r.first_token_at is not None
        assert r.ended_at is not None
        assert r.arrival <= r.scheduled_at < r.first_token_at <= r.ended_at <= run.seconds
        assert r.cached_tokens is not None
        assert r.cached_tokens < r.prompt_len
        assert cache or r.cached_tokens == 0


def test_the_simulator_does_not_reach_torch() -> None:
    """It runs where no engine is installed."""
    code = (
        "import sys\n"
        "from pinrail_engine.simulate_command import command\n"
        "assert command.run(['engine', '--mix', 'uniform', '--limit', '4', '--json']) == 0\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
