"""Who computes what, by example on small states: the module's three points and its tables, row by row."""

import pytest
from world import Sizes, World, private_prompt, shape, waiting

from pinrail_contract.launch import Policy
from pinrail_engine.core.kv_blocks import KvBlocks
from pinrail_engine.core.plan import StepWork
from pinrail_engine.core.state import Limits, State
from pinrail_engine.core.types import FinishReason, SamplingParams, Terms

SHARED = private_prompt("shared", 32)


def in_part(world: World) -> int:
    return sum(r.work > 1 for r in world.state.running.values())


# Point 1: texts are continued first


def test_a_long_prompt_is_cut_and_only_its_end_is_sampled() -> None:
    world = World(Sizes(budget=16))
    world.arrive("a", 40)
    assert [shape(world.step()) for _ in range(4)] == [
        [("a", 0, 16, False)],
        [("a", 16, 16, False)],
        [("a", 32, 8, True)],
        [("a", 40, 1, True)],
    ]


def test_texts_go_on_before_prompts_and_the_prompt_gets_the_rest() -> None:
    world = World(Sizes(budget=16))
    world.arrive("a", 4)
    world.step()
    world.arrive("b", 40)
    assert shape(world.step()) == [("a", 4, 1, True), ("b", 0, 15, False)]


def test_the_last_token_of_all_is_told_but_never_computed() -> None:
    world = World()
    world.arrive("a", 4, output=2)
    assert [shape(world.step()) for _ in range(2)] == [[("a", 0, 4, True)], [("a", 4, 1, True)]]
    assert world.ends == {"a": FinishReason.LENGTH}


def test_no_more_run_than_may() -> None:
    world = World(Sizes(seqs=2))
    for name in "abc":
        world.arrive(name, 2)
    assert [row.request_id for row in world.step().rows] == ["a", "b"]


def test_an_idle_engine_plans_nothing_and_counts_no_step() -> None:
    world = World()
    assert (world.step().rows, world.state.planned) == ((), 0)


# Point 2: how prompts share a step


@pytest.mark.parametrize(
    ("prompts", "rows"),
    [
        pytest.param({"a": 40}, [("a", 16)], id="alone: all of it"),
        pytest.param({"a": 40, "b": 39}, [("a", 8), ("b", 8)], id="two: half each"),
        pytest.param({"a": 40, "b": 40}, [("a", 16)], id="one that is no shorter: nothing yet"),
        pytest.param({"a": 40, "b": 12, "c": 3}, [("a", 8), ("b", 5), ("c", 3)], id="the rest, shortest first"),
        pytest.param({"a": 40, "b": 3}, [("a", 13), ("b", 3)], id="what the others leave goes back to the first"),
        pytest.param({"a": 3, "b": 40}, [("a", 3), ("b", 13)], id="a short first one leaves the rest"),
        pytest.param({"a": 5, "b": 5, "c": 5}, [("a", 5), ("b", 5), ("c", 5)], id="all fit"),
    ],
)
def test_the_first_prompt_gets_half_and_the_others_the_rest(
    prompts: dict[str, int], rows: list[tuple[str, int]]
) -> None:
    world = World(Sizes(budget=16))
    for name, tokens in prompts.items():
        world.arrive(name, tokens)
    assert [(row.request_id, row.length) for row in world.step().rows] == rows


def test_the_first_prompt_gets_a_whole_block_where_half_of_the_step_is_less() -> None:
    world = World(Sizes(budget=6, block_size=4))
    world.arrive("a", 40)
    world.arrive("b", 30)
    assert [(row.request_id, row.length) for row in world.step().rows] == [("a", 4), ("b", 2)]


def test_who_is_first_is_the_policys_word() -> None:
    world = World(Sizes(budget=16, policy=Policy.PRIORITY))
    world.arrive("low", 40, terms=Terms(priority=1))
    world.step()
    world.arrive("high", 41, terms=Terms(priority=0))
    assert [(row.request_id, row.length) for row in world.step().rows] == [("high", 8), ("low", 8)]


@pytest.mark.parametrize("partial", [2, 3, 4])
def test_at_most_so_many_prompts_are_in_part_computed(partial: int) -> None:
    world = World(Sizes(budget=32, partial=partial, seqs=8))
    for i in range(8):
        world.arrive(str(i), 60 - i)
    seen = []
    while world.state.live:
        world.step()
        seen.append(in_part(world))
    assert max(seen) == partial


def test_with_one_allowed_only_one_prompt_is_in_part_computed() -> None:
    world = World(Sizes(budget=16, partial=1))
    world.arrive("a", 10)
    world.arrive("b", 40)
    world.step()
    assert in_part(world) == 1


def test_a_short_prompt_goes_ahead_of_long_ones_when_no_more_may_be_in_part() -> None:
    world = World(Sizes(budget=16, partial=2))
    for name, tokens in {"a": 40, "b": 39, "c": 38}.items():
        world.arrive(name, tokens)
    world.arrive("short", 8)
    assert shape(world.step()) == [("a", 0, 8, False), ("short", 0, 8, True)]
    assert waiting(world) == ["c"]


@pytest.mark.parametrize(
    ("texts", "step_time", "target", "budget", "tokens"),
    [
        pytest.param(0, (0, 1e-3, 0, 0, 0), 0.1, 512, 512, id="no text waits: all"),
        pytest.param(1, (), 0.1, 512, 511, id="not known: all that are left"),
        pytest.param(1, (0, 1e-3, 0, 0, 0), 0.0, 512, 511, id="no target: all that are left"),
        pytest.param(1, (0, 1e-3, 0, 0, 0), 0.1, 512, 99, id="as many as the target allows"),
        pytest.param(1, (0, 1e-3, 0, 0, 0), 9.0, 512, 511, id="a loose target: all that are left"),
        pytest.param(1, (0, 1e-3, 0, 0, 0), 0.01, 512, 64, id="never under 64"),
        pytest.param(1, (1.0, 0, 0, 0, 0), 0.01, 512, 64, id="nor where the texts alone take too long"),
        pytest.param(1, (0, 1e-3, 0, 0, 0), 0.01, 40, 39, id="of those that are left"),
    ],
)
def test_prompt_tokens_of_a_step(
    texts: int, step_time: tuple[float, ...], target: float, budget: int, tokens: int
) -> None:
    """The table of `_prefill_room`."""
    world = World(Sizes(blocks=400, window=1_000, budget=budget, target_step=target, step_time=step_time))
    for i in range(texts):
        world.arrive(str(i), 1)
    world.step()
    world.arrive("prompt", 900)
    assert {row.request_id: row.length for row in world.step().rows}["prompt"] == tokens


def test_the_share_of_prompts_follows_what_steps_were_seen_to_take() -> None:
    """5 ms and 1 ms per token are learned; the chunk shrinks from all to what 105 ms hold, beside one text."""
    world = World(Sizes(blocks=2_500, window=9_000, budget=512, target_step=0.105))
    world.arrive("text", 1, output=200)
    world.step()
    world.arrive("prompt", 8_000)
    lengths = []
    for _ in range(20):
        plan = world.step()
        lengths.append(plan.tokens - 1)
        for state in (world.state, world.twin):
            for tokens in (plan.tokens, 30):  # and shorter steps, so that a fixed part can be told from one per token
                work = StepWork(tokens, 1, 0, 0)
                state.step_time.observe(work, 0.005 + 0.001 * tokens)
    assert lengths[0] == 511
    assert lengths[-1] == pytest.approx(99, abs=2)


def test_a_target_counts_what_the_prompts_context_costs() -> None:
    """1 µs per pair: a chunk late in the prompt is shorter, and both take the target."""
    sizes = Sizes(blocks=4_000, window=9_000, budget=512, target_step=0.2, step_time=(0, 0, 0, 0, 1e-6))
    world = World(sizes)
    world.arrive("text", 1, output=200)
    world.step()
    world.arrive("prompt", 8_000)
    plans = [world.step() for _ in range(30)]
    lengths = [plan.tokens - 1 for plan in plans]
    assert (lengths[0], lengths[-1]) == (511, 64)
    assert lengths == sorted(lengths, reverse=True)
    for plan in plans:
        assert world.state.step_time.predict(plan.work) <= 0.2 or plan.tokens - 1 == 64


# Point 3: the queue


@pytest.mark.parametrize(
    ("sizes", "queue", "begins"),
    [
        pytest.param(Sizes(), {"b": SHARED, "c": 3}, ["c"], id="being computed: waits, later ones go on"),
        pytest.param(Sizes(partial=1), {"b": 12, "c": 3}, ["c"], id="longer, no more in part: waits, later ones go on"),
        pytest.param(Sizes(blocks=14), {"b": 24, "c": 3}, ["c"], id="missing: waits, later ones go on"),
        pytest.param(Sizes(blocks=14, overtakes=0), {"b": 24, "c": 3}, [], id="missing, passed too often: all wait"),
        pytest.param(Sizes(blocks=14, blocked=0.0), {"b": 24, "c": 3}, [], id="missing, passed too long: all wait"),
        pytest.param(Sizes(partial=2), {"b": 12}, ["b"], id="there, longer, fewer in part: begins in part"),
        pytest.param(Sizes(partial=1), {"b": 8}, ["b"], id="there, not longer: begins"),
        pytest.param(Sizes(seqs=1), {"b": 3}, [], id="no slot"),
    ],
)
def test_who_begins(sizes: Sizes, queue: dict[str, int | list[int]], begins: list[str]) -> None:
    """The table of `_admit`. Before them came a prompt of 40 tokens, of which 16 are computed."""
    world = World(sizes)
    world.arrive("a", [*SHARED, *private_prompt("a", 8)])
    world.step()
    for name, prompt in queue.items():
        world.arrive(name, prompt)
    plan = world.step()
    assert [begin.request_id for begin in plan.begins] == begins


@pytest.mark.parametrize(("blocks", "begins"), [(7, False), (8, True)])
def test_a_newcomer_begins_once_its_prompt_fits_beside_what_all_are_expected_to_write(
    blocks: int, begins: bool
) -> None:
    """2 blocks that are held, 1 to grow by for each, and 3 + 1 for the newcomer; half of 8 tokens is expected."""
    world = World(Sizes(blocks=blocks, budget=64))
    for state in (world.state, world.twin):
        state.output_share = 0.5
    for name in "ab":
        world.arrive(name, 3)
    world.step()
    world.arrive("c", 8)
    world.step()
    assert ("c" in world.state.running) is begins


def test_growth_of_what_runs_is_not_given_away() -> None:
    world = World(Sizes(blocks=5, budget=64))
    world.arrive("a", 6)
    world.step()  # a holds 2 of 5 blocks
    world.arrive("b", 12)  # which are the 3 that no one holds, and a will soon want one
    world.step()
    assert waiting(world) == ["b"]


def overtaken_until_kept(world: World, seconds: float) -> int:
    """How many short ones begin before blocks are kept for the long one at the head; they never run out."""
    world.arrive("holds", 40, output=24)
    while in_part(world) or not world.steps:
        world.step()
    world.arrive("head", 24)
    for i in range(30):
        world.now += seconds
        world.arrive(f"s{i}", 3, output=1)
        world.step()
        if f"s{i}" in waiting(world):
            return i
    return 30


def test_whoever_lacks_blocks_is_passed_so_often_and_then_blocks_are_kept() -> None:
    world = World(Sizes(blocks=16, overtakes=5, blocked=1e9))
    assert overtaken_until_kept(world, 0.1) == 5
    assert waiting(world)[0] == "head"


def test_many_that_could_begin_in_one_step_pass_no_oftener() -> None:
    world = World(Sizes(blocks=16, overtakes=3, seqs=16, budget=64))
    world.arrive("holds", 40, output=24)
    world.step()
    world.arrive("head", 24)
    for i in range(5):
        world.arrive(f"s{i}", 1, output=1)
    assert [begin.request_id for begin in world.step().begins] == ["s0", "s1", "s2"]


def test_whoever_lacks_blocks_is_passed_so_long_and_then_blocks_are_kept() -> None:
    """First missing at 0.5 seconds, so passed at 0.5, 1.0, 1.5 and 2.0, and not at 2.5."""
    world = World(Sizes(blocks=16, overtakes=1_000, blocked=2.0))
    assert overtaken_until_kept(world, 0.5) == 4


def test_what_comes_free_goes_to_whom_it_was_kept_for() -> None:
    world = World(Sizes(blocks=16, overtakes=0))
    overtaken_until_kept(world, 0.0)
    world.abort("holds")
    assert [begin.request_id for begin in world.step().begins][:1] == ["head"]
    world.finish_all()


def test_sixty_four_of_the_queue_are_considered_in_one_step() -> None:
    world = World(Sizes(blocks=1_000, seqs=8, partial=1))
    for i in range(64):
        world.arrive(f"long{i}", 40)
    world.arrive("short", 2)
    assert {row.request_id for row in world.step().rows} == {"long0"}
    assert {row.request_id for row in world.step().rows} == {"long0", "short"}


def test_the_first_time_in_a_plan_is_noted_once() -> None:
    world = World(Sizes(budget=16))
    world.arrive("a", 40)
    world.now = 5.0
    world.step()
    world.now = 6.0
    world.step()
    assert world.state.live["a"].scheduled_at == 5.0


# Several steps in flight


def test_a_token_is_promised_while_the_step_that_chooses_it_is_in_flight() -> None:
    world = World(Sizes(depth=2))
    a = world.arrive("a", 4)
    assert shape(world.launch()) == [("a", 0, 4, True)]
    assert (len(a.tokens), a.horizon, a.computed, a.written) == (4, 5, 4, 0)
    assert shape(world.launch()) == [("a", 4, 1, True)]
    assert (len(a.tokens), a.horizon, a.computed, a.written) == (4, 6, 5, 0)
    world.land()
    assert (len(a.tokens), a.horizon, a.computed, a.written) == (5, 6, 5, 4)
    world.finish_all()


def test_a_surplus_row_of_a_request_that_has_ended_is_dropped() -> None:
    world = World(Sizes(depth=2))
    prompt = private_prompt("a", 4)
    params = SamplingParams(max_tokens=8, stop_token_ids=frozenset(range(100)))
    world.arrive("a", prompt, params=params)
    world.launch()
    world.launch()
    world.land()
    assert world.ends == {"a": FinishReason.STOP}
    world.land()
    assert len(world.outputs["a"]) == 1
    world.finish_all()


def test_the_number_of_tokens_is_known_beforehand_so_no_row_is_surplus() -> None:
    world = World(Sizes(depth=2))
    world.arrive("a", 4, output=2)
    assert [len(world.launch().rows) for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_text_takes_as_many_steps_as_it_has_tokens_at_any_depth(depth: int) -> None:
    world = World(Sizes(depth=depth))
    world.arrive("a", 4, output=10)
    world.finish_all()
    assert world.steps == 10


# Limits


def test_a_cache_smaller_than_the_window_is_refused() -> None:
    limits = Limits(vocab_size=100, max_model_len=64, max_num_seqs=1, max_num_batched_tokens=8)
    with pytest.raises(ValueError, match="want 2 to the cache's 60 tokens"):
        State(limits, KvBlocks(15, 4))


def test_more_sequences_than_tokens_in_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match="want 1 to max_num_batched_tokens"):
        Limits(vocab_size=100, max_model_len=64, max_num_seqs=9, max_num_batched_tokens=8)


def test_a_prompt_as_long_as_the_first_does_not_delay_it() -> None:
    """It would gain nothing: the first ends in half of the time, and it at the same moment as before."""
    world = World(Sizes(budget=16, window=64, blocks=100))
    world.arrive("a", 32)
    world.arrive("b", 32)
    assert [shape(world.step()) for _ in range(2)] == [[("a", 0, 16, False)], [("a", 16, 16, True)]]
