"""Alive, late, and how long to wait."""

import pytest

from pinrail_engine.run.pulse import Pulse


@pytest.mark.parametrize(
    ("slowest", "age", "late"),
    [
        pytest.param(0.0, 30.0, False, id="no step yet: 30 s of grace"),
        pytest.param(0.0, 30.1, True, id="no step yet, past it"),
        pytest.param(0.1, 29.0, False, id="fast steps keep the grace"),
        pytest.param(5.0, 100.0, False, id="20 times a slow step"),
        pytest.param(5.0, 100.1, True, id="past 20 times"),
    ],
)
def test_is_late(slowest: float, age: float, late: bool) -> None:
    assert Pulse(0.0, 0.0, slowest_step=slowest).is_late(age) == late


def test_work_that_comes_to_an_idle_engine_starts_the_watch() -> None:
    pulse = Pulse(0.0, 0.0)
    pulse.woke(1000.0)
    assert not pulse.is_late(1020.0)


@pytest.mark.parametrize(
    ("each", "queued", "seconds"),
    [(2.0, 10, 10), (0.01, 10, 1), (100.0, 10, 60), (0.3, 7, 2)],
    ids=["half the queue", "at least 1", "at most 60", "rounded up"],
)
def test_retry_after(each: float, queued: int, seconds: int) -> None:
    assert Pulse(0.0, 0.0, departure_seconds=each).retry_after(queued, 0.0) == seconds


def test_before_anyone_has_left_the_time_so_far_stands_for_the_average() -> None:
    pulse = Pulse(0.0, 0.0)
    pulse.woke(10.0)
    assert pulse.retry_after(4, 13.0) == 6


def test_many_quick_steps_do_not_make_a_slow_one_late() -> None:
    """On a slow machine a step of many prompt tokens takes a hundred times as long as one of a few decodes."""
    pulse = Pulse(0.0, 0.0)
    pulse.step_ended(10.0, 10.0)
    for _ in range(1000):
        pulse.step_ended(10.0, 0.1)
    assert not pulse.is_late(10.0 + 199.0)


def test_the_average_follows_slowly() -> None:
    pulse = Pulse(0.0, 0.0)
    for now in (1.0, 2.0):
        pulse.request_ended(now * 3)
    assert pulse.departure_seconds == pytest.approx(3.0)
