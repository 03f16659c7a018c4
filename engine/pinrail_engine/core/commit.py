"""What a step's tokens mean: who gets which event, who has ended, whose blocks are free. Pure.

`finish` is the one way in which a request ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .plan import StepPlan
from .request import Finished, Request
from .state import State
from .types import FinishReason, TokenEvent


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request's share of a step."""

    request: Request
    event: TokenEvent
    since_last: float | None  # seconds since its previous token; None for the first
    finished: Finished | None


def commit(state: State, plan: StepPlan, tokens: Sequence[int], now: float) -> list[Outcome]:
    """Append each sampled token to its request.

    A result counts only where the request lives and the token's position is the next one, so one that comes late,
    or twice, is dropped.

    Args:
        tokens: One per row of `plan.sampled`, in that order.
        now: Seconds, monotonic: when the step ended.
    """
    outcomes = []
    for row, token in zip(plan.sampled, tokens, strict=True):
        request = state.live.get(row.request_id)
        if request is not None and row.end == len(request.tokens):
            outcomes.append(_append(state, request, token, now))
    return outcomes


def fail(state: State, plan: StepPlan, error: str, now: float) -> list[Outcome]:
    """End every request of a step that failed; the others keep their blocks and their place."""
    event = TokenEvent((), FinishReason.ERROR, error)
    ended = [finish(state, row.request_id, FinishReason.ERROR, now) for row in plan.rows]
    return [Outcome(f.request, event, None, f) for f in ended if f is not None]


def finish(state: State, request_id: str, reason: FinishReason, now: float) -> Finished | None:
    """End a request and free its blocks; None where it is unknown or has ended before."""
    request = state.live.pop(request_id, None)
    if request is None:
        return None
    if request in state.running:
        state.running.remove(request)
    else:
        state.waiting.remove(request)
    state.kv.release(request.blocks)
    return Finished(request, reason, now)


def _append(state: State, request: Request, token: int, now: float) -> Outcome:
    since_last = None if request.last_token_at is None else now - request.last_token_at
    request.tokens.append(token)
    request.first_token_at = now if request.first_token_at is None else request.first_token_at
    request.last_token_at = now
    reason = _reason_to_end(request, token)
    finished = None if reason is None else finish(state, request.id, reason, now)
    return Outcome(request, TokenEvent((token,), reason), since_last, finished)


def _reason_to_end(request: Request, token: int) -> FinishReason | None:
    """| stop token | max_len reached | reason |
    |------------|-----------------|--------|
    | yes        | -               | STOP   |
    | no         | yes             | LENGTH |
    | no         | no              | None   |
    """
    if token in request.params.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(request.tokens) >= request.max_len else None
