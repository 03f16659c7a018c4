"""What a step's tokens mean: who gets which event, who has ended, what the cache now holds. Pure.

`finish` is the one way in which a request ends. Plans are committed in the order in which they were made.
"""

from typing import NamedTuple

from . import prefix
from .plan import StepPlan, StepResult
from .request import Finished, Request
from .state import State
from .types import FinishReason, TokenEvent, TokenLogprobs, quickly

_LEARN = 0.05  # weight of the newest output in the share that outputs are expected to take
_LEAST_SHARE = 0.01

BROKEN = -1
"""Stands for the token of a row whose logits are not finite; that request alone ends with ERROR and NOT_FINITE."""

NOT_FINITE = "the model gave this request no finite logits"


class Outcome(NamedTuple):
    """One request's share of a step."""

    request: Request
    event: TokenEvent
    since_last: float | None  # seconds since its previous token; None for the first
    finished: Finished | None


_event, _outcome = quickly(TokenEvent), quickly(Outcome)


def commit(state: State, plan: StepPlan, result: StepResult, now: float) -> list[Outcome]:
    """Append each sampled token to its request, and let complete blocks be found by others.

    A result counts only where the request lives and the token's position is the next one, so one that comes late,
    or twice, is dropped.

    Args:
        now: Seconds, monotonic: when the step ended.
    """
    state.completed = plan.number
    outcomes = []
    tokens, logprobs = iter(result.tokens), iter(result.logprobs)
    live, block_size = state.live, state.kv.block_size
    for id_, slot, start, length, samples in plan.rows:
        token, told = (next(tokens), next(logprobs, None)) if samples else (None, None)
        request = live.get(id_)
        if request is None:
            continue
        end = start + length
        if token == BROKEN and request.slot >= 0:
            state.kv.forget(request.blocks)
        elif start == request.written and slot == request.slot:
            request.written = end
            if request.root and end // block_size > start // block_size:
                _publish(state, request, start // block_size, end)
        known = len(request.prompt_logprobs) - start  # of the row's; some, where it is computed again
        if result.prompt_logprobs and known >= 0:
            request.prompt_logprobs.extend(result.prompt_logprobs.get(id_, ())[known:])
        if token is not None and end == len(request.tokens):
            outcomes.append(_append(state, request, token, told, now))
    return outcomes


def fail(state: State, plan: StepPlan, error: str, now: float) -> list[Outcome]:
    """End every request of a step that failed; the others keep their blocks and their place."""
    state.completed = plan.number
    ended = [finish(state, row.request_id, FinishReason.ERROR, now, error) for row in plan.rows]
    return [Outcome(f.request, last_event(f), None, f) for f in ended if f is not None]


def finish(
    state: State,
    request_id: str,
    reason: FinishReason,
    now: float,
    error: str = "",
    retry_after: int | None = None,
) -> Finished | None:
    """End a request, and free its blocks and its slot; None where it is unknown or has ended before."""
    request = state.live.pop(request_id, None)
    if request is None:
        return None
    if request.slot >= 0:
        state.leave(request)
    else:
        state.waiting.remove(request)
    if reason in (FinishReason.STOP, FinishReason.LENGTH):
        _learn(state, request)
    return Finished(request, reason, now, error, retry_after)


def last_event(finished: Finished) -> TokenEvent:
    """What whoever waits is told of a request that ended without a token."""
    cached, retry_after = finished.request.cached, finished.retry_after
    return TokenEvent((), finished.reason, finished.error, cached_tokens=cached, retry_after=retry_after)


def _learn(state: State, request: Request) -> None:
    """How much of what it might write does a request write?"""
    share = request.output_len / max(1, request.max_len - request.prompt_len)
    state.output_share = max(_LEAST_SHARE, state.output_share + _LEARN * (share - state.output_share))


def _publish(state: State, request: Request, first: int, upto: int) -> None:
    """A step has written the request's KV up to there: its blocks from `first` that are full can be found now."""
    prefix.extend(request.hashes, request.root, request.tokens, state.kv.block_size, upto)
    for i in range(first, upto // state.kv.block_size):
        name = request.hashes[i]
        state.kv.publish(request.blocks[i], name, request.hashes[i - 1] if i else request.root)
        state.computing.pop(name, None)


def _append(state: State, request: Request, token: int, told: TokenLogprobs | None, now: float) -> Outcome:
    if token == BROKEN:
        finished = finish(state, request.id, FinishReason.ERROR, now, NOT_FINITE)
        assert finished is not None, "it lives"
        return Outcome(request, last_event(finished), None, finished)
    last = request.last_token_at
    if last is None:
        request.first_token_at = now
    request.tokens.append(token)
    request.last_token_at = now
    reason = _reason_to_end(request, token)
    finished = None if reason is None else finish(state, request.id, reason, now)
    prompt_logprobs = tuple(request.prompt_logprobs) if last is None else ()
    event = _event(((token,), reason, "", () if told is None else (told,), prompt_logprobs, request.cached, None))
    return _outcome((request, event, None if last is None else now - last, finished))


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
