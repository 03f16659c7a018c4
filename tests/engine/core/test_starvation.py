"""Nobody starves while others keep coming without end, in virtual time on a machine whose steps take what they take.

The bounds are derived from the limits, and hold for any stream of that kind; what happens takes about half of them.
"""

from dataclasses import dataclass, field
from functools import cache
from math import ceil, log2

import pytest
from world import Sizes, World

from pinrail_contract.launch import Policy
from pinrail_engine.core.plan import StepWork
from pinrail_engine.core.step_time import StepTime
from pinrail_engine.core.types import Terms

STEP, TOKEN = 0.05, 0.0005  # seconds
MACHINE = StepTime((STEP, TOKEN, 0, 0, 0))
BUDGET, SEQS, BLOCK = 128, 16, 16
FULL = STEP + TOKEN * BUDGET  # seconds that a step takes at most
LONG, SHORT, OUTPUT = 4_000, 32, 4  # tokens


@dataclass(frozen=True)
class Stream:
    """Requests that come evenly, without end."""

    prompt: int  # tokens
    rate: float  # per second
    terms: Terms = field(default_factory=Terms)


@dataclass
class Clock:
    """A world with a stream, whose steps take time; who comes meanwhile comes at its own time."""

    world: World
    stream: Stream
    came: int = 0
    first_token: dict[str, float] = field(default_factory=dict)  # seconds after its arrival
    ended: int = 0

    def step(self) -> None:
        world = self.world
        plan = world.launch()
        end = world.now + MACHINE.predict(plan.work) if plan.rows else (self.came + 1) / self.stream.rate
        while (self.came + 1) / self.stream.rate <= end:
            self.came += 1
            world.now = self.came / self.stream.rate
            world.arrive(f"stream{self.came}", self.stream.prompt, OUTPUT, self.stream.terms)
        world.now = end
        if plan.rows:
            world.land()
        for outcome in world.told:
            self.ended += outcome.finished is not None
            self.first_token.setdefault(outcome.request.id, world.now - outcome.request.arrival)
        world.told.clear()

    def run(self, seconds: float) -> None:
        until = self.world.now + seconds
        while self.world.now < until:
            self.step()

    def ends_within(self, name: str, seconds: float) -> float:
        """Run until the request has ended; seconds from its arrival, which are at most so many."""
        arrival = self.world.state.live[name].arrival
        while name in self.world.state.live:
            self.step()
            assert self.world.now - arrival <= seconds, f"{name} has not ended"
        return self.world.now - arrival


def sizes(policy: Policy, blocks: int = 400) -> Sizes:
    return Sizes(blocks=blocks, block_size=BLOCK, seqs=SEQS, budget=BUDGET, window=LONG + 64, policy=policy)


@cache
def capacity(prompt: int) -> float:
    """Requests per second that are served when far more come."""
    clock = Clock(World(sizes(Policy.FCFS)), Stream(prompt, 100.0 * SHORT / prompt))
    clock.run(3.0)
    before, began = clock.ended, clock.world.now
    clock.run(400 * FULL * prompt / LONG + 10.0)
    return (clock.ended - before) / (clock.world.now - began)


def seconds_each(prompt: int) -> float:
    """That a request takes at most of a busy engine: a step in which others wait either is full, or everyone that may
    run continues a text."""
    return FULL * ((prompt + OUTPUT) / BUDGET + OUTPUT / SEQS)


HEAD_START: dict[Policy, float] = {
    Policy.FCFS: 0.0,
    Policy.PRIORITY: 10.0,  # it is one level below those of the stream
    Policy.SJF: 2 * log2(LONG / SHORT),
    Policy.EDF: 60.0 - 50.0,  # it has no deadline, and they have 50 s
}
"""Seconds after it in which one of the stream may come and still go before it: the policy's own word."""


def bound(clock: Clock, head_start: float, prompt: int, work: int, decodes: int) -> float:
    """Seconds in which a request must end that has just come.

    1. Those before it begin: whoever is there, and whoever comes within the head start; not sooner than that is over.
    2. It is passed while its blocks are missing, for `max_blocked`, or `max_overtakes` times if that is sooner.
    3. Blocks are kept for it while all that run end; prompts of the stream are shorter than half of a step.
    4. It is the first in order, so each step has half of what texts leave for it.
    5. Its text is continued in every step.
    """
    limits = clock.world.state.limits
    ahead = (len(clock.world.state.waiting) + clock.stream.rate * head_start) * seconds_each(prompt)
    running = SEQS * seconds_each(prompt) + OUTPUT * FULL
    half = (BUDGET - (SEQS - 1)) // 2
    prefill = ceil(work / half) * FULL
    return max(head_start, ahead) + running + limits.max_blocked + running + prefill + decodes * FULL + FULL


@pytest.mark.parametrize("load", [0.8, 1.5])
@pytest.mark.parametrize("policy", Policy)
def test_a_long_prompt_ends_while_short_ones_keep_coming(policy: Policy, load: float) -> None:
    clock = Clock(World(sizes(policy)), Stream(SHORT, load * capacity(SHORT), Terms(deadline=50.0)))
    clock.run(5.0)
    within = bound(clock, HEAD_START[policy], SHORT, LONG, OUTPUT)
    clock.world.arrive("long", LONG, OUTPUT, Terms(priority=1))
    clock.ends_within("long", within)
    assert clock.world.preempted == [], "or the bound would count its tokens more than once"


@pytest.mark.parametrize("load", [0.8, 1.5])
@pytest.mark.parametrize("policy", Policy)
def test_a_long_prompt_ends_in_a_cache_that_it_nearly_fills(policy: Policy, load: float) -> None:
    """4,064 tokens of 4,096: it begins only when all others have ended, so blocks have to be kept for it."""
    clock = Clock(World(sizes(policy, blocks=256)), Stream(SHORT, load * capacity(SHORT), Terms(deadline=50.0)))
    clock.run(5.0)
    within = bound(clock, HEAD_START[policy], SHORT, LONG, OUTPUT)
    clock.world.arrive("long", LONG, OUTPUT, Terms(priority=1))
    clock.ends_within("long", within)


@pytest.mark.parametrize("load", [0.8, 1.5])
@pytest.mark.parametrize("policy", Policy)
def test_a_short_prompt_has_its_first_token_after_two_steps_while_long_ones_keep_coming(
    policy: Policy, load: float
) -> None:
    """What is left of the step that it comes in, and the next one, both full at worst: 3.5 times what it takes in an
    idle engine. Until 64 wait before it, for so many are considered; there are slots and blocks for all."""
    idle = MACHINE.predict(StepWork(SHORT, 1, SHORT, 0))
    assert 2 * FULL / idle == pytest.approx(3.5, abs=0.1)
    clock = Clock(World(sizes(policy, blocks=1_600)), Stream(1_000, load * capacity(1_000)))
    clock.run(10.0)
    asked = 0
    while clock.world.now < 60.0 and len(clock.world.state.waiting) < 60:
        clock.world.arrive(f"short{asked}", SHORT, OUTPUT)
        clock.run(1.0)
        assert clock.first_token[f"short{asked}"] <= 2 * FULL
        asked += 1
    assert asked >= 40


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_low_priority_is_served_within_the_time_that_ageing_gives(level: int) -> None:
    """vllm PR#20608: they starve. Here 10 s of waiting are worth a level, and those that come later go after it."""
    clock = Clock(World(sizes(Policy.PRIORITY)), Stream(SHORT, 1.5 * capacity(SHORT)))
    clock.run(5.0)
    within = bound(clock, 10.0 * level, SHORT, SHORT, OUTPUT)
    clock.world.arrive("low", SHORT, OUTPUT, Terms(priority=level))
    assert clock.ends_within("low", within) > 10.0 * level


@pytest.mark.parametrize("policy", [Policy.FCFS, Policy.EDF])
def test_who_came_before_it_is_not_passed_by_the_stream(policy: Policy) -> None:
    """Under overload every request of equal terms waits as long as the queue was when it came, and no longer."""
    clock = Clock(World(sizes(policy)), Stream(SHORT, 1.5 * capacity(SHORT)))
    clock.run(20.0)
    within = bound(clock, 0.0, SHORT, SHORT, OUTPUT)
    clock.world.arrive("one", SHORT, OUTPUT)
    clock.ends_within("one", within)
