"""Who runs: first by example, then the laws that hold after any history of arrivals, steps and aborts."""

import copy
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinrail_engine.core.commit import commit, finish
from pinrail_engine.core.kv_blocks import KvBlocks
from pinrail_engine.core.plan import StepPlan
from pinrail_engine.core.request import Request
from pinrail_engine.core.scheduler import admit, refuse_never_fitting, schedule
from pinrail_engine.core.state import Limits, State
from pinrail_engine.core.types import FinishReason, Refused, SamplingParams


def state_of(*, blocks: int = 100, block_size: int = 4, seqs: int = 4, budget: int = 16, window: int = 64) -> State:
    window = min(window, blocks * block_size)
    limits = Limits(vocab_size=100, max_model_len=window, max_num_seqs=min(seqs, budget), max_num_batched_tokens=budget)
    return State(limits, KvBlocks(blocks, block_size))


def arrive(state: State, name: str, prompt: int, output: int = 8, at: float = 0.0) -> None:
    params = SamplingParams(max_tokens=output)
    admit(state, Request.new(name, range(prompt), params, state.limits.max_model_len, at))


def step(state: State, now: float = 1.0) -> StepPlan:
    plan = schedule(state, now)
    commit(state, plan, [7] * len(plan.sampled), now)
    return plan


def shape(plan: StepPlan) -> list[tuple[str, int, int, bool]]:
    return [(row.request_id, row.start, len(row.token_ids), row.samples) for row in plan.rows]


def test_a_long_prompt_is_cut_and_only_its_end_is_sampled() -> None:
    state = state_of(budget=16)
    arrive(state, "a", 40)
    assert [shape(step(state)) for _ in range(4)] == [
        [("a", 0, 16, False)],
        [("a", 16, 16, False)],
        [("a", 32, 8, True)],
        [("a", 40, 1, True)],
    ]


def test_texts_go_on_before_prompts_and_the_prompt_gets_the_rest() -> None:
    state = state_of(budget=16)
    arrive(state, "a", 4)
    step(state)
    arrive(state, "b", 40)
    assert shape(step(state)) == [("a", 4, 1, True), ("b", 0, 15, False)]


def test_the_queue_is_served_in_order_and_only_one_prompt_is_left_in_part() -> None:
    state = state_of(budget=16)
    for name in "abc":
        arrive(state, name, 10)
    assert shape(step(state)) == [("a", 0, 10, True), ("b", 0, 6, False)]
    assert shape(step(state)) == [("a", 10, 1, True), ("b", 6, 4, True), ("c", 0, 10, True)]


def test_no_more_run_than_may() -> None:
    state = state_of(seqs=2)
    for name in "abc":
        arrive(state, name, 2)
    assert [row[0] for row in shape(step(state))] == ["a", "b"]


def test_a_newcomer_waits_until_its_whole_prompt_and_the_others_growth_fit() -> None:
    state = state_of(blocks=5, block_size=4, budget=64)
    arrive(state, "a", 6)
    step(state)  # a holds 2 of 5 blocks
    arrive(state, "b", 12)  # which are the 3 that are free, and a will soon want one
    step(state)
    assert [r.id for r in state.waiting] == ["b"]


def test_the_newest_gives_its_blocks_up_and_loses_nothing() -> None:
    state = state_of(blocks=4, block_size=4, budget=16, window=16)
    arrive(state, "a", 4, at=0)
    arrive(state, "b", 4, at=1)
    step(state)  # both hold 1 block; each takes another for its next token
    for _ in range(4):
        assert not step(state).preempted
    plan = step(state)
    assert plan.preempted == ("b",)
    assert shape(plan) == [("a", 8, 1, True)]
    b = state.waiting[0]
    assert (b.id, b.computed, b.preemptions, len(b.tokens)) == ("b", 0, 1, 9)
    state.check()


def test_the_same_request_is_recomputed_whole_when_there_is_room_again() -> None:
    state = state_of(blocks=4, block_size=4, budget=16, window=16)
    arrive(state, "a", 4, output=6)
    arrive(state, "b", 4, output=8, at=1)
    while "a" in state.live:
        step(state)
    assert shape(step(state)) == [("b", 0, 9, True)]


def test_the_first_time_in_a_plan_is_noted_once() -> None:
    state = state_of(budget=16)
    arrive(state, "a", 20)
    step(state, now=5.0)
    step(state, now=6.0)
    assert state.live["a"].scheduled_at == 5.0


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "no tokens"),
        ([1] * 64, "has 64 tokens, want at most 63"),
        ([5, 100], "token ids 5 to 100, want 0 to 99"),
        ([-1], "token ids -1 to -1"),
    ],
    ids=["empty", "too long", "no such token", "below 0"],
)
def test_what_never_fits_is_refused_for_good(prompt: list[int], said: str) -> None:
    with pytest.raises(Refused, match=said) as caught:
        refuse_never_fitting(state_of().limits, prompt)
    assert caught.value.retry_after is None


def test_the_longest_prompt_that_leaves_room_for_a_token_is_let_in() -> None:
    refuse_never_fitting(state_of().limits, [99] * 63)


def test_a_cache_smaller_than_the_window_is_refused() -> None:
    limits = Limits(vocab_size=100, max_model_len=64, max_num_seqs=1, max_num_batched_tokens=8)
    with pytest.raises(ValueError, match="the cache's 60 tokens"):
        State(limits, KvBlocks(15, 4))


def test_more_sequences_than_tokens_in_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match="want 1 to max_num_batched_tokens"):
        Limits(vocab_size=100, max_model_len=64, max_num_seqs=9, max_num_batched_tokens=8)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 23), st.integers(1, 12)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
    ),
    max_size=60,
)
SIZES = st.tuples(st.integers(6, 16), st.integers(1, 5), st.integers(1, 20))  # blocks, sequences, token budget


@settings(max_examples=120, deadline=None)
@given(SIZES, EVENTS)
def test_laws(sizes: tuple[int, int, int], events: list[tuple[str, int, int]]) -> None:
    """P1 blocks, P2 budget, P4 work is done where there is any, P5 equal inputs give equal plans, P7 aborts free."""
    blocks, seqs, budget = sizes
    state = state_of(blocks=blocks, seqs=seqs, budget=budget, window=24)
    for i, (event, a, b) in enumerate(events):
        if event == "arrive":
            arrive(state, str(i), a, b, at=float(i))
        elif event == "abort":
            held = sum(len(r.blocks) for r in state.live.values())
            ended = finish(state, str(a), FinishReason.ABORT, float(i))
            assert ended is None or not ended.request.blocks
            assert sum(len(r.blocks) for r in state.live.values()) <= held
        else:
            checked_step(state, float(i))
        state.check()
    drain(state)


def checked_step(state: State, now: float) -> None:
    oldest = min(state.live.values(), key=lambda r: r.arrival, default=None)
    twin = copy.deepcopy(state)
    plan = schedule(state, now)
    assert plan == schedule(twin, now)
    assert plan.tokens <= state.limits.max_num_batched_tokens
    assert len(state.running) <= state.limits.max_num_seqs
    assert sum(1 for r in state.running if r.remaining > 0) <= 1, "at most one prompt is left in part"
    assert bool(plan.rows) == (oldest is not None)
    assert not could_admit(state, plan), "no room is left unused while a request that fits waits"
    if oldest is not None:
        assert oldest.id in {row.request_id for row in plan.rows}, "the oldest always advances"
    for row in plan.rows:
        assert len(row.blocks) >= state.kv.blocks_for(row.end)
    commit(state, plan, [7] * len(plan.sampled), now)


def could_admit(state: State, plan: StepPlan) -> bool:
    if not state.waiting:
        return False
    needed = state.kv.blocks_for(len(state.waiting[0].tokens)) + len(state.running)
    room = len(state.running) < state.limits.max_num_seqs and needed <= state.kv.free
    return room and plan.tokens < state.limits.max_num_batched_tokens


def drain(state: State) -> None:
    """P3: what was let in ends, within a bound that depends on the work ahead alone."""
    work = sum(r.max_len for r in state.live.values())
    bound = work * (1 + len(state.live))
    queue = deque(range(bound + 1))
    while state.live:
        assert queue, f"{work} tokens of work took more than {bound} steps"
        checked_step(state, 100.0 + queue.popleft())
    assert state.kv.free == state.kv.total
