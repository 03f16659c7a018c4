"""Who computes what in the next step. Pure: a function of state and `now`, without clock, randomness or I/O.

1. Every text being continued gets its one token. Where a block is missing, the newest request gives all of its own up
   and goes back to the head of the queue; its tokens are kept and recomputed later, so nothing is lost.
2. Prompts partly computed get what is left of the token budget, in order of arrival.
3. The queue is served in order of arrival while sequences, tokens and blocks last.

So at most one prompt is ever left partly computed by a step, the oldest request always advances, and a request never
overtakes an older one. Every request fits the whole cache, because the door refuses those that do not.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from .plan import Row, StepPlan
from .request import Request
from .state import Limits, State
from .types import Refused


def refuse_never_fitting(limits: Limits, prompt: Sequence[int]) -> None:
    """Raises Refused, without a time to retry, for a prompt that could not be served by an idle engine."""
    if not prompt:
        raise Refused("the prompt has no tokens, want at least 1")
    if min(prompt) < 0 or max(prompt) >= limits.vocab_size:
        raise Refused(f"the prompt has token ids {min(prompt)} to {max(prompt)}, want 0 to {limits.vocab_size - 1}")
    if len(prompt) >= limits.max_model_len:
        raise Refused(
            f"the prompt has {len(prompt)} tokens, want at most {limits.max_model_len - 1}: "
            f"the window is {limits.max_model_len} tokens, and one is for the output"
        )


def admit(state: State, request: Request) -> None:
    """Append a request to the queue."""
    state.live[request.id] = request
    state.waiting.append(request)


def schedule(state: State, now: float) -> StepPlan:
    """Choose the rows of the next step, and advance each chosen request's `computed` past them.

    Args:
        state: Changed in place: blocks are taken, requests move between `waiting` and `running`.
        now: Seconds, monotonic; only noted as the time at which a request first ran.

    Returns:
        A plan of at most `max_num_batched_tokens` tokens; empty only when no request lives.
    """
    preempted = _make_room_for_decodes(state)
    decodes = [r for r in state.running if r.remaining == 1]
    prefills = [r for r in state.running if r.remaining > 1]
    rows = [_advance(r, 1) for r in decodes]
    left = state.limits.max_num_batched_tokens - len(rows)
    queue = chain(prefills, _admissions(state, now))
    while left > 0 and (request := next(queue, None)) is not None:
        rows.append(_advance(request, min(left, request.remaining)))
        left -= len(rows[-1].token_ids)
    return StepPlan(tuple(rows), preempted)


def _make_room_for_decodes(state: State) -> tuple[str, ...]:
    """A block for each token about to be written, oldest request first; the ids preempted for it."""
    preempted: list[str] = []
    for request in tuple(state.running):
        if request.remaining != 1:
            continue
        while request.id not in preempted and not state.kv.grow(request.blocks, len(request.tokens)):
            preempted.append(_preempt_newest(state))
    return tuple(preempted)


def _preempt_newest(state: State) -> str:
    victim = state.running.pop()
    state.kv.release(victim.blocks)
    victim.computed = 0
    victim.preemptions += 1
    state.waiting.appendleft(victim)
    return victim.id


def _admissions(state: State, now: float) -> Iterator[Request]:
    """Take requests off the queue one by one, each with blocks for all of its known tokens.

    One block per running request is left for its growth, or each newcomer would soon be preempted again.
    """
    while state.waiting and len(state.running) < state.limits.max_num_seqs:
        head = state.waiting[0]
        if state.kv.blocks_for(len(head.tokens)) + len(state.running) > state.kv.free and state.running:
            return
        grown = state.kv.grow(head.blocks, len(head.tokens))
        assert grown, "an idle cache holds any request that the door let in"
        state.running.append(state.waiting.popleft())
        head.scheduled_at = now if head.scheduled_at is None else head.scheduled_at
        yield head


def _advance(request: Request, n: int) -> Row:
    start = request.computed
    request.computed += n
    return Row(
        request_id=request.id,
        start=start,
        token_ids=tuple(request.tokens[start : start + n]),
        blocks=tuple(request.blocks),
        samples=request.remaining == 0,
        params=request.params,
    )
