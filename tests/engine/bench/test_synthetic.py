"""Mixes and arrivals: the same seed gives the same, and each mix is what its row says."""

from itertools import islice, pairwise
from math import inf
from statistics import mean, pstdev

import pytest

from pinrail_engine.bench.synthetic import MIXES, arrivals, jobs
from pinrail_engine.bench.workload import Job


def made(name: str, seed: int = 0, requests: int = 0) -> list[Job]:
    return list(jobs(MIXES[name], seed, requests=requests))


@pytest.mark.parametrize("name", MIXES)
def test_a_seed_is_all_the_chance_there_is(name: str) -> None:
    assert made(name) == made(name)
    assert made(name) != made(name, seed=1)
    assert len(made(name)) == MIXES[name].requests
    assert len(made(name, requests=10)) == 10


@pytest.mark.parametrize("name", MIXES)
def test_arrivals_are_in_order_from_0(name: str) -> None:
    times = [j.arrival for j in made(name)]
    assert times[0] == 0
    assert times == sorted(times)


def test_long_and_short_has_a_long_prompt_in_each_16() -> None:
    lengths = [j.prompt_len for j in made("long-and-short")]
    assert [n for n in lengths if n > 128] == [4096] * 8
    assert lengths[::16] == [4096] * 8


def test_shared_prefix_shares_512_tokens_and_no_more() -> None:
    a, b = (j.prompt_tokens(5000, 0) for j in made("shared-prefix")[:2])
    assert a[:512] == b[:512]
    assert a[512] != b[512]


def test_an_agents_turn_begins_with_all_of_its_last_one() -> None:
    mix = made("agentic", requests=12)
    assert len({j.prompt[1].key for j in mix}) == 2, "12 turns are two sessions of 6"
    first, second = mix[0], mix[2]
    assert second.prompt[: len(first.prompt) + 1] == (*first.prompt, first.output)
    assert second.prompt_len > first.prompt_len + first.output_len


def test_chat_is_mostly_short_with_a_long_tail() -> None:
    lengths = sorted(j.prompt_len for j in made("chat", requests=2000))
    assert 230 < lengths[1000] < 285, "a median of 256"
    assert lengths[-1] > 2000
    assert lengths[-1] <= 4096


def test_an_infinite_rate_is_all_at_once() -> None:
    assert list(islice(arrivals(0, inf), 3)) == [0, 0, 0]


@pytest.mark.parametrize(("burstiness", "spread"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gaps_have_the_rate_and_the_burstiness(burstiness: float, spread: float) -> None:
    """A gamma distribution's deviation is its mean over the root of its shape."""
    gaps = [b - a for a, b in pairwise(islice(arrivals(0, 4.0, burstiness), 20_000))]
    assert mean(gaps) == pytest.approx(0.25, rel=0.05)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(spread, rel=0.05)
