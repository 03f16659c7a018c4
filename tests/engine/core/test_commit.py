"""What a token means, and that a request ends once."""

from collections.abc import Callable

import pytest
from fake_device import position_of
from world import Sizes, World, private_prompt

from pinrail_engine.core.commit import BROKEN, commit, fail, finish
from pinrail_engine.core.kv_blocks import KvBlocks
from pinrail_engine.core.plan import StepPlan, StepResult
from pinrail_engine.core.request import Finished, Request
from pinrail_engine.core.scheduler import schedule
from pinrail_engine.core.state import Limits, State
from pinrail_engine.core.types import FinishReason, SamplingParams, TokenEvent, TokenLogprobs


@pytest.fixture
def state() -> State:
    limits = Limits(vocab_size=100, max_model_len=8, max_num_seqs=4, max_num_batched_tokens=16)
    return State(limits, KvBlocks(16, 4))


def arrive(state: State, name: str, max_tokens: int = 4, stop: frozenset[int] = frozenset()) -> Request:
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop)
    request = Request.new(name, [1, 2, 3], params, state.limits.max_model_len, 0.0)
    state.enter(request)
    return request


def result(*tokens: int) -> StepResult:
    return StepResult(tokens, (), {})


# Tokens


@pytest.mark.parametrize(
    ("token", "max_tokens", "reason"),
    [
        pytest.param(9, 1, FinishReason.STOP, id="stop token, also at the limit"),
        pytest.param(9, 2, FinishReason.STOP, id="stop token"),
        pytest.param(5, 1, FinishReason.LENGTH, id="limit reached"),
        pytest.param(5, 2, None, id="neither"),
    ],
)
def test_reason_to_end(state: State, token: int, max_tokens: int, reason: FinishReason | None) -> None:
    arrive(state, "a", max_tokens, frozenset({9}))
    (outcome,) = commit(state, schedule(state, 1.0), result(token), 2.0)
    assert outcome.event == TokenEvent((token,), reason)
    assert (outcome.finished is not None) == (reason is not None) == ("a" not in state.live)
    state.check()


def test_a_full_window_ends_a_request(state: State) -> None:
    request = arrive(state, "a", max_tokens=100)
    while state.live:
        commit(state, schedule(state, 1.0), result(5), 2.0)
    assert len(request.tokens) == state.limits.max_model_len


def test_a_result_that_comes_twice_counts_once(state: State) -> None:
    request = arrive(state, "a")
    plan = schedule(state, 1.0)
    assert len(commit(state, plan, result(5), 2.0)) == 1
    assert commit(state, plan, result(5), 2.0) == []
    assert request.tokens == [1, 2, 3, 5]


def test_a_result_for_a_request_that_has_gone_is_dropped_and_the_others_get_their_own(state: State) -> None:
    for name in "abc":
        arrive(state, name)
    plan = schedule(state, 1.0)
    finish(state, "b", FinishReason.ABORT, 1.5)
    outcomes = commit(state, plan, result(5, 6, 7), 2.0)
    assert [(o.request.id, o.event.token_ids) for o in outcomes] == [("a", (5,)), ("c", (7,))]


def test_times_of_tokens(state: State) -> None:
    request = arrive(state, "a")
    (first,) = commit(state, schedule(state, 1.0), result(5), 2.0)
    (second,) = commit(state, schedule(state, 2.0), result(5), 2.5)
    assert (first.since_last, second.since_last) == (None, 0.5)
    assert (request.first_token_at, request.last_token_at) == (2.0, 2.5)


def test_each_event_tells_how_much_of_the_prompt_was_found() -> None:
    world = World(Sizes(budget=64))
    for name in "ab":
        world.arrive(name, [*private_prompt("shared", 16), ord(name)], output=2)
    world.finish_all()
    cached = [(outcome.request.id, outcome.event.cached_tokens) for outcome in world.told]
    assert cached == [("a", 0), ("a", 0), ("b", 16), ("b", 16)]


# Log-probabilities


def test_logprobs_ride_with_their_tokens() -> None:
    world = World(Sizes(budget=8))
    told = SamplingParams(max_tokens=3, logprobs=1)
    world.arrive("silent", 5)
    world.arrive("told", 5, params=told)
    world.finish_all()
    by_name: dict[str, list[int]] = {"silent": [], "told": []}
    for outcome in world.told:
        by_name[outcome.request.id] += [position_of(logprob) for logprob in outcome.event.logprobs]
        assert all(p.top[0][0] == t for p, t in zip(outcome.event.logprobs, outcome.event.token_ids, strict=False))
    assert by_name == {"silent": [], "told": [5, 6, 7]}


def prompt_positions(world: World, name: str) -> list[list[int]]:
    """Of each event of the request, which positions of the prompt it tells of."""
    events = [outcome.event for outcome in world.told if outcome.request.id == name]
    return [[position_of(logprob) for logprob in event.prompt_logprobs] for event in events]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("budget", [1, 7, 64])
def test_logprobs_of_a_prompt_come_with_the_first_token_whatever_the_chunks(budget: int, depth: int) -> None:
    world = World(Sizes(budget=budget, depth=depth))
    world.arrive("a", 20, params=SamplingParams(max_tokens=3, prompt_logprobs=1))
    world.finish_all()
    assert prompt_positions(world, "a") == [list(range(1, 20)), [], []]


def test_a_prompt_of_one_token_has_no_logprobs() -> None:
    world = World()
    world.arrive("a", 1, params=SamplingParams(max_tokens=1, prompt_logprobs=1))
    world.finish_all()
    assert prompt_positions(world, "a") == [[]]


def test_logprobs_of_a_prompt_are_complete_where_it_is_computed_again_in_other_chunks(state: State) -> None:
    """Told of positions 1 to 3 before it lost its blocks; computed again, a row ends at 2, and the next at 5."""
    request = Request.new("a", range(6), SamplingParams(max_tokens=1, prompt_logprobs=0), 8, 0.0)
    state.enter(request)
    told = [TokenLogprobs(-float(i), 1, ()) for i in range(1, 6)]

    def row(start: int, end: int) -> None:
        (planned,) = schedule(state, 0.0).rows or plans[-1].rows
        again = planned._replace(start=start, length=end - start, samples=end == 6)
        plan = StepPlan(state.planned, (again,))
        plans.append(plan)
        commit(state, plan, StepResult([7] if again.samples else [], [], {"a": told[start : min(end, 5)]}), 1.0)

    plans: list[StepPlan] = []
    for start, end in ((0, 3), (0, 2), (2, 5)):
        row(start, end)
        assert [position_of(t) for t in request.prompt_logprobs] == list(range(1, max(3, end) + 1))
    row(5, 6)
    assert [position_of(t) for t in request.prompt_logprobs] == [1, 2, 3, 4, 5]


# Ends


def test_a_request_ends_once_whether_it_waits_or_runs(state: State) -> None:
    arrive(state, "runs")
    schedule(state, 1.0)
    arrive(state, "waits")
    for name in ("runs", "waits"):
        ended = finish(state, name, FinishReason.REJECTED, 3.0, "why", 7)
        assert ended is not None
        assert ended == Finished(ended.request, FinishReason.REJECTED, 3.0, "why", 7)
        assert ended.request.id == name
        assert finish(state, name, FinishReason.STOP, 4.0) is None
    assert state.kv.free == state.kv.total
    state.check()


def test_logits_that_are_not_finite_end_that_request_alone(state: State) -> None:
    for name in "abc":
        arrive(state, name)
    outcomes = commit(state, schedule(state, 1.0), result(5, BROKEN, 7), 2.0)
    assert [(o.event.token_ids, o.event.finish) for o in outcomes] == [
        ((5,), None),
        ((), FinishReason.ERROR),
        ((7,), None),
    ]
    assert outcomes[1].event.error == "the model gave this request no finite logits"
    assert list(state.live) == ["a", "c"]
    assert BROKEN not in outcomes[1].request.tokens
    state.check()


def test_a_surplus_row_without_finite_logits_hurts_nobody() -> None:
    """At depth 2 a request that has ended has a row in flight, and what comes of that is nobody's."""
    world = World(Sizes(depth=2))
    stop = SamplingParams(max_tokens=8, stop_token_ids=frozenset(range(100)))
    world.arrive("a", 4, params=stop)
    world.launch()
    world.device.sick.add("a")
    world.launch()
    world.land()
    world.land()
    assert world.ends == {"a": FinishReason.STOP}


def test_a_failed_step_ends_its_own_requests_alone(state: State) -> None:
    arrive(state, "a")
    plan = schedule(state, 1.0)
    arrive(state, "b")
    (outcome,) = fail(state, plan, "broken", 2.0)
    assert outcome.event == TokenEvent((), FinishReason.ERROR, "broken")
    assert list(state.live) == ["b"]
    state.check()


def test_a_failed_step_ends_its_own_requests_alone_while_another_is_in_flight() -> None:
    """b came after the step that fails, and is in the next one, together with a's surplus row."""
    world = World(Sizes(depth=2))
    world.arrive("a", 4)
    world.launch()
    world.arrive("b", 4)
    assert {row.request_id for row in world.launch().rows} == {"a", "b"}
    world.land(broken=True)
    assert world.ends == {"a": FinishReason.ERROR}
    world.land()
    assert len(world.outputs["b"]) == 1
    world.finish_all()


def test_a_failed_step_ends_those_that_have_given_their_blocks_up_since() -> None:
    world = World(Sizes(blocks=4, block_size=4, budget=16, window=16, reckless=True, depth=2))
    for name in "ab":
        world.arrive(name, 4, output=12)
        world.now += 1.0
    world.launch()
    while not world.preempted:
        world.launch()
        if not world.preempted:
            world.land()
    world.land(broken=True)
    assert world.ends == {"a": FinishReason.ERROR, "b": FinishReason.ERROR}
    world.finish_all()


def test_what_a_failed_step_wrote_is_not_found() -> None:
    world = World(Sizes(budget=64))
    world.arrive("a", 16)
    world.launch()
    world.land(broken=True)
    assert (world.state.kv.cached, world.state.kv.free) == (0, 100)


# What outputs are expected to be


@pytest.mark.parametrize(
    ("end", "direction"),
    [
        pytest.param(lambda s: finish(s, "a", FinishReason.STOP, 1.0), -1, id="a short output lowers it"),
        pytest.param(lambda s: finish(s, "a", FinishReason.ABORT, 1.0), 0, id="an abort teaches nothing"),
        pytest.param(lambda s: finish(s, "a", FinishReason.ERROR, 1.0), 0, id="nor an error"),
        pytest.param(lambda s: run_out(s), 1, id="a full one raises it"),
    ],
)
def test_the_share_of_outputs_is_learned(state: State, end: Callable[[State], object], direction: int) -> None:
    arrive(state, "a")
    before = state.output_share
    end(state)
    assert (state.output_share > before) - (state.output_share < before) == direction
    assert abs(state.output_share - before) <= 0.05


def run_out(state: State) -> None:
    while state.live:
        commit(state, schedule(state, 1.0), result(5), 2.0)


def test_the_share_of_outputs_nears_what_they_are_and_keeps_a_rest() -> None:
    for wanted, near in ((3, 0.75), (0, 0.01)):
        limits = Limits(vocab_size=100, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=16)
        state = State(limits, KvBlocks(16, 4))
        for i in range(200):
            arrive(state, str(i))
            for _ in range(wanted):
                commit(state, schedule(state, 1.0), result(5), 2.0)
            finish(state, str(i), FinishReason.STOP, 2.0)
        assert state.output_share == pytest.approx(near, abs=1e-3)
