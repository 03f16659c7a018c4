"""What users of other engines report, as far as it can occur in a core: each named after what ours does instead.

Sources: issues (#) and pull requests (PR#) of vLLM, SGLang, nano-vllm and llama.cpp, as each docstring says.
"""

import pytest
from world import Sizes, World, private_prompt

from pinrail_contract.launch import Policy
from pinrail_engine.core import prefix
from pinrail_engine.core.door import refuse_never_fitting
from pinrail_engine.core.types import FinishReason, Refused, SamplingParams, Terms

SHARED = private_prompt("shared", 32)


# Scheduling and fairness


def test_requests_that_wait_for_something_else_do_not_use_up_the_places_of_those_that_could_run() -> None:
    """vllm#53130: admission stops for ever once running and deferred ones together are as many as may run, and one
    prompt takes the whole budget of each step."""
    world = World(Sizes(block_size=1, blocks=200, budget=4, seqs=3))
    world.arrive("hog", [*SHARED, 1])
    for i in range(5):
        world.arrive(f"deferred{i}", [*SHARED, 2 + i])
    world.step()
    world.arrive("newcomer", 2)
    world.step()
    assert {"hog", "newcomer"} == world.first_step.keys()
    world.finish_all()


def test_small_requests_go_ahead_of_one_that_lacks_blocks_and_not_for_ever() -> None:
    """vllm#31731, PR#35852, #33499: the first of the queue that gets no blocks stops all smaller ones behind it."""
    world = World(Sizes(blocks=16, overtakes=3, blocked=1e9))
    world.arrive("holds", 40, output=20)
    for _ in range(3):
        world.step()
    world.arrive("large", 40)
    for i in range(10):
        world.arrive(f"small{i}", 3, output=1)
    while "large" not in world.first_step:
        world.step()
    ahead = {name for name, step in world.first_step.items() if step < world.first_step["large"]}
    assert ahead == {"holds", "small0", "small1", "small2"}


@pytest.mark.parametrize("policy", Policy)
def test_a_short_prompt_is_in_the_next_step_whatever_long_one_is_being_computed(policy: Policy) -> None:
    """vllm#10774, #57413: one prompt of 100,000 tokens has whole steps for itself, and short ones wait for its end."""
    world = World(Sizes(blocks=1_000, window=3_000, budget=64, seqs=8, policy=policy))
    world.arrive("long", 2_500, terms=Terms(deadline=1.0))
    for i in range(30):
        step = world.steps
        world.arrive(f"short{i}", 20, output=1)
        world.step()
        assert world.first_step[f"short{i}"] == step + 1
    assert world.state.live["long"].computed >= 30 * 32, "and the long one has its half"


def test_a_low_priority_is_served_though_higher_ones_keep_coming() -> None:
    """vllm PR#20608: low priorities starve. Here 10 seconds of waiting are worth a level."""
    world = World(Sizes(seqs=1, policy=Policy.PRIORITY))
    world.arrive("low", 4, terms=Terms(priority=3))
    while "low" not in world.first_step:
        for j in range(2):
            world.arrive(f"{world.now}.{j}", 4, output=1)
        assert world.now <= 60.0, "those that come in 30 s go first, and 2 come in the time that 1 is served in"
        world.step()
        world.now += 0.5


def test_two_prompts_of_three_quarters_of_the_cache_are_served_one_after_the_other() -> None:
    """vllm PR#21793: both are let in, compute some chunks, throw them away, and start anew."""
    world = World(Sizes(blocks=16, block_size=4, budget=8))
    for name in "ab":
        world.arrive(name, 48, output=2)
    world.finish_all()
    assert (world.preempted, world.device.computed) == ([], 2 * (48 + 1))


def test_a_prompt_larger_than_the_cache_is_refused_and_told_the_largest() -> None:
    """vllm PR#1534, local-inference-lab/vllm#394: it is let in, and prefilled for ever without output."""
    limits = World(Sizes(blocks=10, block_size=4, window=1_000)).state.limits
    with pytest.raises(Refused, match="has 40 tokens, want at most 39") as caught:
        refuse_never_fitting(limits, [1] * 40)
    assert caught.value.retry_after is None
    world = World(Sizes(blocks=10, block_size=4, window=1_000))
    world.arrive("largest", 39)
    world.finish_all()
    assert world.ends == {"largest": FinishReason.LENGTH}


def test_shortest_first_serves_short_prompts_before_long_ones_that_came_earlier() -> None:
    """vllm PR#44794 (FlowPrefill), vllm-ascend PR#16360 (PREFLOW): aged weighted shortest remaining work. In order of
    arrival, where few may run, short prompts wait for long ones."""
    first: dict[Policy, int] = {}
    for policy in (Policy.FCFS, Policy.SJF):
        world = World(Sizes(seqs=1, policy=policy))
        for i in range(3):
            world.arrive(f"long{i}", 56)
        world.step()
        world.arrive("short", 4)
        while "short" not in world.first_step:
            world.step()
        first[policy] = world.first_step["short"]
        world.finish_all()
    assert first[Policy.SJF] < first[Policy.FCFS] / 2


# Memory


@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 31])
def test_a_cache_of_two_blocks_serves_what_it_holds(prompt: int) -> None:
    """nano-vllm#274, PR#217, PR#211: with two blocks, or a prompt of one token more than a block, the engine dies."""
    world = World(Sizes(blocks=2, block_size=16, window=32, budget=64))
    for i in range(4):
        world.arrive(str(i), prompt, output=40)
    world.finish_all()
    assert set(world.ends.values()) == {FinishReason.LENGTH}


def test_whoever_waits_runs_once_nobody_else_does() -> None:
    """vllm#45414, #45387: deadlock with none running and many waiting, for what they are expected to write does not fit
    beside anything."""
    world = World(Sizes(blocks=16, block_size=4))
    for state in (world.state, world.twin):
        state.output_share = 1.0
    for i in range(5):
        world.arrive(str(i), 32, output=32)
    for i in range(5):
        assert [row.request_id for row in world.step().rows] == [str(i)]
        world.abort(str(i))


def test_no_block_is_held_while_nobody_lives() -> None:
    """sglang#6888: accounting drifts, and the check for leaks fires in an idle engine."""
    world = World(Sizes(blocks=20, budget=8, seqs=4, window=48, reckless=True, depth=2))
    for i in range(60):
        world.arrive(str(i), [*SHARED[: i % 30], *private_prompt(str(i), 5)], output=12)
        world.step(broken=i % 17 == 5)
        if i % 7 == 3:
            world.abort(str(i))
        if i % 11 == 4:
            world.abort(next(iter(world.state.live)))
    assert world.preempted
    world.finish_all()
    world.state.check()
    assert (world.state.kv.live, world.state.kv.cached + world.state.kv.free) == (0, 20)
    assert len(world.state.slots) == 4


def outputs(sizes: Sizes) -> tuple[dict[str, list[int]], int]:
    """Of a crowd with prefixes in common; and how often one of it was preempted."""
    world = World(sizes)
    for i in range(12):
        params = SamplingParams(max_tokens=10, seed=i % 2, stop_token_ids=frozenset({3, 14}))
        world.arrive(str(i), [*SHARED[: 8 * (i % 4)], *private_prompt(str(i % 3), 6)], params=params)
        world.step()
    world.finish_all()
    return world.outputs, len(world.preempted)


def test_a_text_is_the_same_with_and_without_the_prefix_cache() -> None:
    """vllm#54490, #40896, #5543: it changes greedy output."""
    assert outputs(Sizes(cache=True))[0] == outputs(Sizes(cache=False))[0]


@pytest.mark.parametrize("budget", [5, 16, 64])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_steps_in_flight_chunks_and_preemptions_go_together(depth: int, budget: int) -> None:
    """vllm#30142, #28787, #40768, #43434, #46899, #47900, #48245, #57562: the count of tokens in flight drops below 0,
    and the engine dies. Here nothing is counted: a result belongs to a position."""
    texts, preempted = outputs(Sizes(blocks=12, window=48, budget=budget, depth=depth, reckless=True))
    assert preempted > 0
    assert texts == outputs(Sizes())[0]


# Cancellation


def test_a_request_that_is_aborted_while_it_waits_leaves_nothing_behind() -> None:
    """sglang#24070, #22273: its entry in a table stays for ever."""
    world = World(Sizes(seqs=1))
    world.arrive("runs", 4)
    world.step()
    for i in range(100):
        world.arrive(str(i), 8)
        world.abort(str(i))
    state = world.state
    assert (list(state.live), list(state.running), len(state.waiting), state.computing) == (["runs"], ["runs"], 0, {})


def test_an_abort_ends_the_request_of_that_name_and_no_other() -> None:
    """sglang#24070: `req-1` ends `req-10` too."""
    world = World()
    for name in ("req-1", "req-10", "req-11"):
        world.arrive(name, 4)
    world.step()
    world.abort("req-1")
    world.abort("req")
    assert list(world.state.live) == ["req-10", "req-11"]


def test_an_abort_is_honoured_while_a_prompt_is_being_computed_and_its_prefix_can_be_used_again() -> None:
    """llama.cpp#24496, #11414, #15232, #13262: only after the whole prompt; #29163: its prefix is lost."""
    world = World(Sizes(budget=16))
    world.arrive("a", [*SHARED, *private_prompt("a", 30)])
    world.step()
    world.step()
    world.abort("a")
    assert (world.state.kv.live, world.step().rows) == (0, ())
    world.arrive("b", [*SHARED, 5])
    world.step()
    assert world.state.live["b"].cached == 32


# Security


def test_a_tenant_cannot_see_by_the_clock_what_another_asked() -> None:
    """CVE-2025-46570: a prompt that another tenant sent before is faster. Salts keep their prefixes apart."""
    steps: dict[str, int] = {}
    for salt in ("mine", "theirs"):
        world = World(Sizes(budget=8))
        world.arrive("secret", [*SHARED, 1], output=1, terms=Terms(cache_salt="mine"))
        world.finish_all()
        computed = world.device.computed
        world.arrive("probe", [*SHARED, 1], output=1, terms=Terms(cache_salt=salt))
        world.finish_all()
        steps[salt] = world.device.computed - computed
    assert steps == {"mine": 1, "theirs": 33}


def test_a_tenant_does_not_wait_for_what_another_is_computing() -> None:
    """CVE-2025-46570 again: nor can it tell by having to wait."""
    world = World(Sizes(budget=16))
    long = private_prompt("long", 60)
    world.arrive("secret", long, terms=Terms(cache_salt="mine"))
    world.step()
    world.arrive("probe", long[:40], terms=Terms(cache_salt="theirs"))
    world.step()
    assert "probe" in world.first_step


def test_names_of_blocks_are_long_enough_that_nobody_finds_two_alike() -> None:
    """GHSA-rm76-4mrf-v9r8: prefixes named by Python's `hash` can be made to collide; -1 and -2 are one of the ways."""
    assert hash(-1) == hash(-2)
    names: list[list[bytes]] = []
    for token in (-1, -2):
        names.append([])
        prefix.extend(names[-1], b"root", [token] * 4, 4, 4)
    assert names[0] != names[1]
    assert len(names[0][0]) * 8 == 256
