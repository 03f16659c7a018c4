"""The model finds the times that made the steps, follows the machine, and answers how much fits."""

import random
from collections.abc import Callable, Sequence

import pytest

from pinrail_engine.core.plan import Row, StepWork, work_of
from pinrail_engine.core.step_time import StepTime

MACHINE = (3e-3, 2e-5, 5e-5, 4e-8, 1e-9)  # seconds per step, token, sampled, read, pair
NOTHING = StepWork(0, 0, 0, 0)


def seconds(machine: Sequence[float], work: StepWork) -> float:
    return StepTime(machine).predict(work)


def step(dice: random.Random) -> StepWork:
    """As they occur: some texts, and now and then a piece of a prompt."""
    rows = [Row("", 0, dice.randint(1, 4_000), 1, True) for _ in range(dice.randint(0, 32))]
    if dice.random() < 0.5 or not rows:
        rows.append(Row("", 0, dice.choice([0, 512, 3_000]), dice.randint(2, 512), dice.random() < 0.3))
    return work_of(rows)


def learn(
    model: StepTime,
    machine: Sequence[float],
    steps: int,
    make: Callable[[random.Random], StepWork] = step,
    noise: float = 0.0,
    seed: int = 0,
) -> None:
    dice = random.Random(seed)
    for _ in range(steps):
        work = make(dice)
        model.observe(work, seconds(machine, work) * dice.lognormvariate(0, noise))


def error(model: StepTime, machine: Sequence[float], make: Callable[[random.Random], StepWork] = step) -> float:
    """The largest relative error over steps that it has not seen."""
    dice = random.Random(99)
    works = [make(dice) for _ in range(200)]
    return max(abs(model.predict(work) / seconds(machine, work) - 1) for work in works)


def test_what_a_step_costs_is_the_sum_of_its_parts() -> None:
    assert StepTime((1, 2, 3, 4, 5)).predict(StepWork(10, 20, 30, 40)) == 1 + 20 + 60 + 120 + 200


@pytest.mark.parametrize(
    ("rows", "work"),
    [
        ([], StepWork(0, 0, 0, 0)),
        ([(7, 1, True)], StepWork(1, 1, 8, 0)),
        ([(0, 4, False)], StepWork(4, 0, 4, 10)),
        ([(5, 3, True)], StepWork(3, 1, 8, 6 + 7 + 8)),
        ([(7, 1, True), (5, 3, False)], StepWork(4, 1, 16, 21)),
    ],
    ids=["nothing", "a text", "a prompt", "a later piece of one", "both"],
)
def test_the_work_of_a_step(rows: list[tuple[int, int, bool]], work: StepWork) -> None:
    """Each query meets the keys before it and its own."""
    assert work_of([Row("r", 0, *row) for row in rows]) == work


def test_it_finds_what_made_the_steps() -> None:
    model = StepTime()
    learn(model, MACHINE, 4_000)
    assert model.coefficients == pytest.approx(MACHINE, rel=0.05)
    assert error(model, MACHINE) < 0.01


def test_it_finds_them_through_noise() -> None:
    model = StepTime()
    learn(model, MACHINE, 4_000, noise=0.2)
    assert error(model, MACHINE) < 0.15


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda dice: StepWork(dice.randint(1, 500), 1, 1_000, 0), id="constant terms"),
        pytest.param(lambda dice: StepWork(n := dice.randint(1, 32), n, 100 * n, 0), id="terms in proportion"),
        pytest.param(lambda _: StepWork(8, 8, 800, 0), id="always the same step"),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_terms_that_cannot_be_told_apart_predict_together(
    make: Callable[[random.Random], StepWork], noise: float
) -> None:
    model = StepTime()
    learn(model, MACHINE, 1_000, make, noise)
    assert error(model, MACHINE, make) < 0.02 + noise


@pytest.mark.parametrize("seed", range(20))
def test_no_coefficient_is_ever_negative(seed: int) -> None:
    """Not even where a step that has more work took less time."""
    dice = random.Random(seed)
    model = StepTime()
    for _ in range(200):
        model.observe(step(dice), dice.choice([1e-4, 1e-2, 1.0]))
        assert min(model.coefficients) >= 0


def test_a_short_step_counts_as_much_as_a_long_one() -> None:
    """Steps of 1 ms and of 1 s that no line goes through: both are missed by like factors, not the short one by all."""
    model = StepTime()
    for _ in range(200):
        for tokens, took in ((1, 1e-3), (1_000, 1.0), (100, 0.05)):
            model.observe(StepWork(tokens, 0, 0, 0), took)
    assert model.predict(StepWork(1, 0, 0, 0)) == pytest.approx(1e-3, rel=0.2)


def test_it_follows_a_machine_that_becomes_twice_as_slow() -> None:
    """Half of the weight is on the newest 700 steps, so after 3,000 the old ones weigh 5 %."""
    slow = [2 * c for c in MACHINE]
    model = StepTime()
    learn(model, MACHINE, 3_000)
    learn(model, slow, 3_000, seed=1)
    assert error(model, slow) < 0.1


def test_it_is_believed_after_two_steps() -> None:
    model = StepTime()
    known = []
    for _ in range(3):
        known.append(model.is_known)
        learn(model, MACHINE, 1)
    assert known == [False, False, True]


def test_a_short_prompt_and_a_token_tell_about_how_long_a_large_step_takes() -> None:
    """As the engine tries them out before its first request."""
    model = StepTime()
    for work in (work_of([Row("", 0, 0, 32, True)]), work_of([Row("", 0, 32, 1, True)])):
        model.observe(work, seconds(MACHINE, work))
    large = work_of([Row("", 0, 0, 256, True), *(Row("", 0, 100, 1, True) for _ in range(8))])
    assert model.predict(large) == pytest.approx(seconds(MACHINE, large), rel=0.5)


def test_coefficients_that_are_given_are_believed_at_once_and_until_there_is_something_better() -> None:
    model = StepTime(MACHINE)
    assert model.is_known
    learn(model, MACHINE, 40)
    assert model.is_known
    assert error(model, MACHINE) < 0.01


@pytest.mark.parametrize("took", [0.0, -1.0])
def test_a_step_that_took_no_time_teaches_nothing(took: float) -> None:
    model = StepTime()
    for _ in range(100):
        model.observe(StepWork(1, 1, 1, 1), took)
    assert not model.is_known


@pytest.mark.parametrize("seed", range(50))
def test_the_largest_prefill_is_the_largest(seed: int) -> None:
    """By trying every length; 0 where not even one fits."""
    dice = random.Random(seed)
    machine = [dice.choice([0.0, 1.0, 3.0]) * c for c in MACHINE]
    others = dice.choice([NOTHING, StepWork(8, 8, 9_000, 0), StepWork(32, 32, 100_000, 0)])
    context, most = dice.choice([0, 100, 30_000]), dice.choice([0, 1, 64, 500])
    target = dice.choice([1e-3, 5e-3, 1e-2, 2e-2, 1.0])

    def took(n: int) -> float:
        pairs = sum(context + i + 1 for i in range(n))
        more = StepWork(others.tokens + n, others.sampled, others.read + context + n, others.pairs + pairs)
        return seconds(machine, more)

    wanted = max((n for n in range(1, most + 1) if took(n) <= target), default=0)
    assert StepTime(machine).largest_prefill(others, context, most, target) == wanted
