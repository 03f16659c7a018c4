"""Prefixes that are found, and those that another request is just computing."""

from world import Sizes, World, private_prompt, shape

from pinrail_contract.launch import Policy
from pinrail_engine.core.scheduler import waits_to_share
from pinrail_engine.core.types import FinishReason, Terms

SHARED = private_prompt("shared", 32)


def sharers(sizes: Sizes) -> World:
    """`owner` computes a prefix of 32 tokens, and `sharer` waits for it."""
    world = World(sizes)
    world.arrive("owner", [*SHARED, 1])
    world.step()
    world.arrive("sharer", [*SHARED, 2])
    return world


def test_whoever_would_compute_what_another_is_computing_waits_to_share_it() -> None:
    world = sharers(Sizes(budget=16))
    assert waits_to_share(world.state, next(iter(world.state.waiting)))
    assert shape(world.step()) == [("owner", 16, 16, False)]
    assert not waits_to_share(world.state, next(iter(world.state.waiting)))
    assert shape(world.step()) == [("owner", 32, 1, True), ("sharer", 32, 1, True)]
    owner, sharer = world.state.running.values()
    assert (sharer.blocks[:8], sharer.cached) == (owner.blocks[:8], 32)
    world.finish_all()


def test_two_that_come_at_once_compute_their_prefix_once() -> None:
    world = World(Sizes(budget=64))
    world.arrive("a", [*SHARED, 1])
    world.arrive("b", [*SHARED, 2])
    world.step()
    world.step()
    assert world.device.computed == 33 + 1 + 1


def test_the_last_token_of_a_prompt_is_computed_even_where_all_of_it_is_found() -> None:
    world = World(Sizes(budget=64))
    world.arrive("a", SHARED, output=1)
    world.step()
    world.arrive("b", SHARED, output=1)
    assert shape(world.step()) == [("b", 28, 4, True)]


def test_who_waits_to_share_goes_on_alone_when_the_other_is_aborted() -> None:
    world = sharers(Sizes(budget=4))
    world.abort("owner")
    assert shape(world.step()) == [("sharer", 4, 4, False)], "the first block was complete"
    world.finish_all()


def test_who_waits_to_share_goes_on_alone_when_the_others_step_fails() -> None:
    world = sharers(Sizes(budget=4))
    world.launch()
    world.land(broken=True)
    assert shape(world.step()) == [("sharer", 4, 4, False)]
    world.finish_all()


def test_who_waits_to_share_goes_on_alone_when_the_other_gives_its_blocks_up() -> None:
    sizes = Sizes(blocks=10, block_size=4, budget=2, seqs=2, window=40, policy=Policy.PRIORITY, reckless=True)
    world = World(sizes)
    world.arrive("text", 3, output=30, terms=Terms(priority=-1))
    world.arrive("owner", [*SHARED, 1], terms=Terms(priority=1))
    while "owner" not in world.state.running:
        world.step()
    world.arrive("sharer", [*SHARED[:16], 2], terms=Terms(priority=2))
    while not world.preempted:
        assert waits_to_share(world.state, world.state.live["sharer"])
        plan = world.step()
    assert plan.preempted == ("owner",)
    assert shape(plan)[1:] == [("sharer", 0, 1, False)]
    world.finish_all()


def test_a_request_does_not_wait_to_share_with_one_that_the_policy_serves_after_it() -> None:
    """`low` is in part computed, but gets no token while shorter prompts of higher priority keep coming."""
    world = World(Sizes(blocks=400, budget=16, seqs=8, window=64, policy=Policy.PRIORITY))
    world.arrive("low", [*SHARED, 1], terms=Terms(priority=4))
    world.step()
    world.arrive("high", [*SHARED, 2], terms=Terms(priority=0))
    for i in range(20):
        world.now += 0.1
        for j in range(2):
            world.arrive(f"{i}.{j}", 8, output=1, terms=Terms(priority=0))
        world.step()
    assert "high" in world.first_step


def test_blocks_of_a_request_whose_logits_are_broken_are_found_by_nobody() -> None:
    """What spoilt its logits may be in them."""
    world = World(Sizes(budget=16, window=64))
    world.arrive("sick", [*SHARED, 1], output=20)
    world.step()
    assert world.state.kv.find(world.state.live["sick"].hashes)
    world.device.sick.add("sick")
    world.hurt.add("sick")
    world.step()
    world.step()
    assert "sick" not in world.state.live
    assert world.state.kv.cached == 0
    world.arrive("next", [*SHARED, 2])
    world.finish_all()
    assert world.ends["sick"] is FinishReason.ERROR
