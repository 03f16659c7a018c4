"""One step of the engine: read this first.

`core.scheduler` decides, the backend computes (table, batch, forward, sample), `core.commit` says what it means. With
one step in flight each waits for the one before; with more, the next is planned and launched while the device computes.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ..core.commit import Outcome, commit, fail
from ..core.plan import StepPlan, StepResult
from ..core.scheduler import schedule
from ..core.state import State
from .backend import Backend, Wait

log = logging.getLogger(__name__)

Guard = AbstractContextManager[object]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that the device computes."""

    plan: StepPlan
    wait: Wait
    launched: float  # seconds, monotonic


@dataclass(frozen=True, slots=True)
class Landed:
    """A step whose result has been committed."""

    plan: StepPlan
    outcomes: list[Outcome]
    launched: float  # seconds, monotonic
    ended: float


def launch(
    state: State, backend: Backend, guard: Guard, clock: Clock, begun: Callable[[StepPlan], None]
) -> Flight | None:
    """Plan a step and hand it over; None where there is nothing to compute before a step in flight has landed."""
    with guard:
        plan = schedule(state, clock())
        begun(plan)
    return Flight(plan, backend.launch(plan), clock()) if plan.rows else None


def land(state: State, flight: Flight, guard: Guard, clock: Clock, publish: Callable[[Landed], None]) -> None:
    """Wait for a step, and commit it; the guard is held for all but the waiting, which is where the time goes."""
    plan = flight.plan
    try:
        result: StepResult | Exception = flight.wait()
    except Exception as e:
        log.exception("step failed requests=%d tokens=%d", len(plan.rows), plan.tokens)
        result = e
    with guard:
        now = clock()
        if isinstance(result, Exception):
            why = f"the engine failed to compute this request ({type(result).__name__})"
            outcomes = fail(state, plan, why, now)
        else:
            outcomes = commit(state, plan, result, now)
        publish(Landed(plan, outcomes, flight.launched, now))
