"""One step of the engine: read this first.

`core.scheduler` decides, the backend computes (batch, forward, sample), `core.commit` says what it means.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from ..core.commit import Outcome, commit, fail
from ..core.plan import StepPlan
from ..core.scheduler import schedule
from ..core.state import State
from .backend import Backend

log = logging.getLogger(__name__)

Publish = Callable[[StepPlan, list[Outcome]], None]


def step(
    state: State, backend: Backend, guard: AbstractContextManager[object], clock: Callable[[], float], publish: Publish
) -> None:
    """Plan, compute, commit; nothing where the last request has just been ended.

    `guard` is held for all but the computing, which is where the time goes.
    """
    with guard:
        plan = schedule(state, clock())
        assert plan.rows or not state.live, "the oldest request can always advance"
    if not plan.rows:
        return
    try:
        tokens = backend.step(plan)
    except Exception as e:
        log.exception("step failed requests=%d tokens=%d", len(plan.rows), plan.tokens)
        with guard:
            publish(plan, fail(state, plan, f"the engine failed to compute this request ({type(e).__name__})", clock()))
    else:
        with guard:
            publish(plan, commit(state, plan, tokens, clock()))
