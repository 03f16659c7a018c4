"""What holds after any history of arrivals, steps, aborts and failures, at any depth, policy and size.

P1 blocks, slots and queue add up · P2 a step's tokens are bounded · P3 what was let in ends, within a bound of the
work ahead · P4 work is done where there is any · P5 equal inputs give equal plans · P6 results come in order of
position, and none after the end · P7 an abort frees at once · P8 a text is the same whatever else happens.
"""

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import Sizes, World

from pinrail_contract.launch import Policy
from pinrail_engine.core.types import SamplingParams, Terms

STEPS = int(os.environ.get("PINRAIL_LAW_STEPS", "100000"))  # over all shards
SHARDS = 8


def sizes(dice: random.Random) -> Sizes:
    block_size = dice.choice([1, 2, 4, 8])
    budget = dice.choice([1, 2, 5, 16, 40])
    reckless = dice.random() < 0.6
    return Sizes(
        block_size=block_size,
        blocks=dice.randint(-(-24 // block_size), 3 * -(-24 // block_size)),
        seqs=dice.randint(1, 6),
        budget=budget,
        window=24,
        policy=dice.choice(list(Policy)),
        depth=dice.choice([1, 1, 2, 3]),
        cache=dice.random() < 0.7,
        partial=dice.randint(1, 4),
        overtakes=dice.choice([0, 1, 64]),
        blocked=dice.choice([0.0, 2.0, 1e9]),
        reckless=reckless,
        cautious=not reckless and dice.random() < 0.5,
    )


def arrive(world: World, dice: random.Random, name: str) -> None:
    """Prompts begin alike, so that prefixes are shared; some may not."""
    shared = dice.choice([0, 0, 4, 8, 16])
    prompt = [i % 7 for i in range(shared)] + [
        dice.randrange(100) for _ in range(dice.randint(shared == 0, 23 - shared))
    ]
    stop = frozenset(dice.sample(range(100), 3))
    params = SamplingParams(
        max_tokens=dice.randint(1, 16),
        seed=dice.randint(0, 1),
        stop_token_ids=stop,
        prompt_logprobs=dice.choice([None, None, 1]),
        logprobs=dice.choice([None, 1]),
    )
    terms = Terms(
        priority=dice.randint(-2, 2),
        deadline=dice.choice([None, 1.0, 100.0]),
        cache_salt=dice.choice(["", "", "mine"]),
    )
    world.arrive(name, prompt, terms=terms, params=params)


def history(dice: random.Random) -> int:
    """Random events, then a drain; how many steps it took."""
    world = World(sizes(dice))
    for i in range(dice.randint(1, 200)):
        world.now += dice.choice([0.0, 0.1, 1.0])
        event = dice.random()
        if event < 0.3:
            arrive(world, dice, str(i))
        elif event < 0.36 and world.state.live:
            world.abort(dice.choice(list(world.state.live)))
        elif event < 0.365 and world.state.live:
            hurt = dice.choice(list(world.state.live))
            world.device.sick.add(hurt)
            world.hurt.add(hurt)
        elif event < 0.37:
            for state in (world.state, world.twin):
                state.kv.clear()
        else:
            world.step(broken=dice.random() < 0.01)
    world.finish_all()
    return world.steps


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms())
def test_laws(dice: random.Random) -> None:
    """Few histories, but a failure is shrunk to a short one."""
    history(dice)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_laws_at_length(shard: int) -> None:
    """Many histories; a failure names its seed: `history(Random(seed))` is the same one again."""
    steps, seed = 0, shard * 1_000_000
    while steps < STEPS / SHARDS:
        seed += 1
        try:
            steps += history(random.Random(seed))
        except Exception as e:
            e.add_note(f"history(Random({seed}))")
            raise
