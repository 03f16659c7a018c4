"""Who gives its blocks up when a text lacks one, what it keeps, and that it is left alone in the end."""

from collections.abc import Sequence

import pytest
from world import Sizes, World, shape, waiting

from pinrail_contract.launch import Policy
from pinrail_engine.core.types import Terms


def crowd(sizes: Sizes, terms: Sequence[Terms] = (Terms(), Terms())) -> World:
    """a, then b, who write until the blocks are used up."""
    world = World(sizes)
    for name, its in zip("ab", terms, strict=True):
        world.arrive(name, 4, output=12, terms=its)
        world.now += 1.0
    return world


TIGHT = Sizes(blocks=4, block_size=4, budget=16, window=16, reckless=True)


@pytest.mark.parametrize(
    ("policy", "terms", "victim"),
    [
        (Policy.FCFS, (Terms(priority=9), Terms()), "b"),
        (Policy.PRIORITY, (Terms(priority=9), Terms()), "a"),
        (Policy.PRIORITY, (Terms(priority=-9), Terms()), "b"),
        (Policy.EDF, (Terms(deadline=100.0), Terms(deadline=1.0)), "a"),
    ],
)
def test_whoever_the_policy_serves_last_gives_its_blocks_up(
    policy: Policy, terms: tuple[Terms, Terms], victim: str
) -> None:
    sizes = Sizes(blocks=4, block_size=4, budget=16, window=16, reckless=True, policy=policy)
    world = crowd(sizes, terms)
    while not world.preempted:
        world.step()
    assert world.preempted == [victim]


def test_who_gives_its_blocks_up_keeps_its_tokens_and_computes_them_again() -> None:
    world = crowd(TIGHT)
    while not world.preempted:
        plan = world.step()
    assert shape(plan) == [("a", 8, 1, True)]
    (b,) = world.state.waiting
    assert (b.id, b.computed, b.blocks, b.slot, b.preemptions, len(b.tokens)) == ("b", 0, [], -1, 1, 9)
    while "a" in world.state.live:
        world.step()
    plan = world.step()
    (row,) = plan.rows
    assert (row.request_id, row.end, row.samples) == ("b", 9, True)
    assert plan.recomputed == 8 - row.start, "what it finds in the cache is not computed again"
    world.finish_all()


def test_who_gives_its_blocks_up_returns_to_its_place() -> None:
    world = crowd(TIGHT)
    for name in "cd":
        world.arrive(name, 15)
        world.now += 1.0
    while not world.preempted:
        world.step()
    assert waiting(world) == ["b", "c", "d"]


def test_a_preemption_makes_admission_more_careful() -> None:
    world = crowd(Sizes(blocks=4, block_size=4, budget=16, window=16))
    before = world.state.output_share
    while not world.preempted:
        world.step()
    assert world.state.output_share == pytest.approx(1.5 * before)


def pin(world: World, name: str) -> None:
    for state in (world.state, world.twin):
        state.live[name].preemptions = 3
    world.given_up[name] = 3


def test_after_three_times_it_runs_again_with_blocks_for_all_that_it_may_ever_write() -> None:
    world = World(Sizes(blocks=8))
    request = world.arrive("a", 4, output=9)  # 13 tokens, the last of which is never computed
    pin(world, "a")
    world.step()
    assert len(request.blocks) == 3


def test_after_three_times_it_waits_until_all_that_it_may_ever_write_fits() -> None:
    world = World(Sizes(blocks=8, window=32, reckless=True))
    world.arrive("a", 20)
    world.step()
    world.step()
    world.arrive("b", 4, output=12)
    pin(world, "b")
    world.step()
    assert waiting(world) == ["b"], "it wants 4 of the 3 blocks that are not held, though its tokens fit in 1"


def test_after_three_times_another_gives_its_blocks_up_instead() -> None:
    world = World(Sizes(blocks=6, window=24, reckless=True))
    world.arrive("a", 4, output=20)
    world.now += 1.0
    world.arrive("pinned", 4, output=17)
    pin(world, "pinned")
    while not world.preempted and "pinned" in world.state.live:
        world.step()
    assert world.preempted == ["a"]
    world.finish_all()


def test_a_preempted_one_is_not_resumed_while_its_token_is_in_flight() -> None:
    """Two steps stay in flight, so that b's token of the step before its preemption is not known yet."""
    world = crowd(Sizes(blocks=4, block_size=4, budget=16, window=16, reckless=True, depth=2))
    world.launch()
    while not world.preempted:
        world.launch()
        if not world.preempted:
            world.land()
    (b,) = world.state.waiting
    assert b.horizon == len(b.tokens) + 1
    world.abort("a")  # now there is room
    assert world.launch().rows == ()
    world.land()
    assert b.horizon == len(b.tokens)
    assert [row.request_id for row in world.launch().rows] == ["b"]
    world.finish_all()
