"""Who computes what in the next step. Pure: a function of state and `now`, without clock, randomness or I/O.

1. Every text being continued gets its one token. Where a block is missing, whoever the policy serves last gives all of
   its own up and goes back to its place in the queue; its tokens are kept and computed again, so nothing is lost.
2. What is left of the step is for prompts: of tokens, and, while texts are continued, of the time that a step should
   take. The first in order gets half of it, and shorter ones share the other half, shortest first; what they leave is
   the first one's, then the others'. So a long prompt always advances, and a short one does not wait for it.
3. The queue is served in the policy's order. Whoever lacks blocks is passed by others only so often and so long, then
   blocks are kept for it. A prompt that would leave more than `max_partial_prefills` in part computed waits; one that
   fits whole goes ahead, if it is among the first 64 of the queue. Who would compute what another before it is just
   computing waits to share it.

A request that was preempted three times runs again only with blocks for all that it may ever write, and is left alone
from then on. So each is preempted three times at most, and somebody always advances: whoever needs no block, or the
first in order. Every request fits the whole cache, because the door refuses those that do not.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from . import prefix
from .plan import Begin, Grown, Row, StepPlan, work_of
from .request import Request
from .state import State
from .types import quickly

_PINNED = 3  # preemptions after which a request is left alone
_LEAST_PREFILL = 64  # tokens: fewer are not worth a step's fixed cost, whatever the time says
_LOOK_AHEAD = 64  # requests of the queue that are considered in one step
_LOOK_UPS = 4096  # blocks that are looked for in the cache in one step, those of the last request considered more

_order = attrgetter("order")
_row = quickly(Row)


@dataclass(slots=True)
class _Draft:
    """A plan being made."""

    rows: list[Row] = field(default_factory=list)
    begins: list[Begin] = field(default_factory=list)
    grown: list[Grown] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    recomputed: int = 0


def schedule(state: State, now: float) -> StepPlan:
    """Choose the rows of the next step, and advance each chosen request's `computed` past them.

    Args:
        state: Changed in place: blocks are taken, requests move between `waiting` and `running`.
        now: Seconds, monotonic.

    Returns:
        A plan of at most `max_num_batched_tokens` tokens; empty only where no request lives, or each one waits for the
        result of a plan that is not committed yet.
    """
    draft = _Draft()
    state.planned += 1
    for request in _decodes(state, draft):
        _advance(state, draft, request, 1)
    prompts = [r for r in state.running.values() if r.work > 1]
    if prompts or (state.waiting and state.slots):
        prompts.sort(key=_order)
        _prefill(state, draft, prompts, now)
    if not draft.rows:
        state.planned -= 1
    return StepPlan(
        number=state.planned,
        rows=tuple(draft.rows),
        begins=tuple(draft.begins),
        grown=tuple(draft.grown),
        preempted=tuple(draft.preempted),
        recomputed=draft.recomputed,
    )


def _decodes(state: State, draft: _Draft) -> list[Request]:
    """Who continues a text, each with a block for the token that is written."""
    block_size = state.kv.block_size
    ready = [
        r for r in state.running.values() if r.computed + 1 == (r.horizon if r.horizon < r.max_len else r.max_len - 1)
    ]
    short = [r for r in ready if r.computed >= len(r.blocks) * block_size]
    for request in sorted(short, key=_order) if len(short) > 1 else short:
        while request.slot >= 0 and not _grow(state, draft, request, request.computed + 1):
            _preempt(state, draft, _victim(state))
    return [r for r in ready if r.slot >= 0] if draft.preempted else ready


def _victim(state: State) -> Request:
    """Whoever the policy serves last, of those that may be preempted; the one in need is among them."""
    return max((r for r in state.running.values() if r.preemptions < _PINNED), key=_order)


def _preempt(state: State, draft: _Draft, victim: Request) -> None:
    draft.preempted.append(victim.id)
    state.leave(victim)
    victim.preemptions += 1
    state.waiting.add(victim)
    state.output_share = min(1.0, state.output_share * 1.5)


def _prefill_room(state: State, draft: _Draft, prompts: Sequence[Request]) -> int:
    """Prompt tokens that this step may hold.

    | texts continued | model of step time | tokens                                                  |
    |-----------------|--------------------|---------------------------------------------------------|
    | none            | any                | all: nobody's next token is delayed                     |
    | some            | not known, or no target | all that are left                                  |
    | some            | known              | as many as the target allows, at least 64, of those left |
    """
    limits = state.limits
    left = limits.max_num_batched_tokens - len(draft.rows)
    if not draft.rows or limits.target_step <= 0 or not state.step_time.is_known:
        return left
    context = prompts[0].computed if prompts else 0
    within = state.step_time.largest_prefill(work_of(draft.rows), context, left, limits.target_step)
    return min(left, max(_LEAST_PREFILL, within))


def _prefill(state: State, draft: _Draft, prompts: list[Request], now: float) -> None:
    """Share what is left of the step out; see the module's points 2 and 3.

    Args:
        prompts: In part computed, in order.
    """
    room = _prefill_room(state, draft, prompts)
    if room > 0 and state.waiting and state.slots:
        _admit(state, draft, prompts, room, now)
    shares = _shares([r.work for r in prompts], room, state.kv.block_size)
    for request, tokens in zip(prompts, shares, strict=True):
        if tokens > 0:
            _advance(state, draft, request, tokens)


def _shares(works: Sequence[int], room: int, least: int) -> list[int]:
    """Tokens for each prompt.

    The first gets half, and shorter ones the other half, shortest first; what they leave is its own, and what it
    leaves goes to the others, shortest first. One that is no shorter would only delay the first, and gain nothing.

    Args:
        works: Tokens that each prompt wants, in order.
        room: Tokens to share out, 0 or more.
        least: Tokens of the first, where half of the room is less.
    """
    if not works:
        return []
    shares = [0] * len(works)
    others = sorted(range(1, len(works)), key=lambda i: (works[i], i))
    kept = min(works[0], room, max(least, room // 2))
    left = room - kept
    for i in others:
        if works[i] < works[0]:
            shares[i] = min(works[i], left)
            left -= shares[i]
    shares[0] = min(works[0], kept + left)
    left -= shares[0] - kept
    for i in others:
        if works[i] >= works[0]:
            shares[i] = min(works[i], left)
            left -= shares[i]
    return shares


def _admit(state: State, draft: _Draft, prompts: list[Request], room: int, now: float) -> None:
    """Move requests from the queue to `running` and to `prompts`, in order, while they have use of this step.

    | blocks for it  | tokens for it | prompts then in part | then                                                |
    |----------------|---------------|----------------------|-----------------------------------------------------|
    | being computed | -             | -                    | waits to share them; later ones go on               |
    | missing        | -             | -                    | waits; later ones go on, unless it has been passed  |
    |                |               |                      | too often or for too long                           |
    | there          | none          | -                    | waits; later ones go on                             |
    | there          | some          | too many, it not 1st | waits; later ones go on                             |
    | there          | some          | no more than may     | begins                                              |
    """
    growth = sum(_growth(state, r) for r in state.running.values())
    works = [r.work for r in prompts]
    least, most = state.kv.block_size, state.limits.max_partial_prefills
    blocked: Request | None = None
    looked_up = 0
    for request in _candidates(state):
        if not state.slots or looked_up > _LOOK_UPS or _shares([*works, 1], room, least)[-1] == 0:
            return
        found = _shareable(state, request)
        looked_up += len(request.hashes) if found is None else len(found)
        if found is None:
            continue
        fits = _fits(state, request, found, growth)
        if blocked is None and not fits:
            blocked = request
        if blocked is not None and _keeps_blocks(state, blocked, now):
            return
        place = bisect_left(prompts, request.order, key=_order)
        then = [*works[:place], len(request.tokens) - len(found) * state.kv.block_size, *works[place:]]
        shares = _shares(then, room, least)
        too_many = place > 0 and _in_part(then, shares) > max(most, _in_part(works, _shares(works, room, least)))
        if not fits or shares[place] == 0 or too_many:
            continue
        if blocked is not None:
            blocked.overtaken += 1
        _begin(state, draft, request, found, now)
        prompts.insert(place, request)
        works = then
        growth += _growth(state, request)


def _in_part(works: Sequence[int], shares: Sequence[int]) -> int:
    """Prompts that are not ended by what they get."""
    return sum(share < work for work, share in zip(works, shares, strict=True))


def _candidates(state: State) -> list[Request]:
    """The head of the queue, without those whose last token is still being computed."""
    head = islice(state.waiting, _LOOK_AHEAD)
    return [r for r in head if r.last_step <= state.completed]


def _shareable(state: State, request: Request) -> list[int] | None:
    """Blocks that hold the request's first tokens already; None where another is computing the one after them.

    At least the last token is computed anew, since what comes after it is what is wanted. Nobody waits for one that
    the policy serves later.
    """
    if not request.root:
        return []
    tokens, block_size = request.tokens, state.kv.block_size
    prefix.extend(request.hashes, request.root, tokens, block_size, len(tokens))
    names = request.hashes[: (len(tokens) - 1) // block_size]
    found = state.kv.find(names)
    owner = state.computing.get(names[len(found)]) if len(found) < len(names) else None
    waits = owner is not None and state.running[owner].order < request.order
    return None if waits else found


def waits_to_share(state: State, request: Request) -> bool:
    """True where a queued request is only held back because another is computing its prefix."""
    return _shareable(state, request) is None


def _fits(state: State, request: Request, found: Sequence[int], growth: int) -> bool:
    """Are there blocks for all that is known, and for what it and the others are expected to write?"""
    if not state.running:
        return True
    own = _blocks_at_start(state, request)
    needed = own - len(found) + state.kv.unheld(found) + _growth(state, request, own)
    return needed + growth <= state.kv.available


def _blocks_at_start(state: State, request: Request) -> int:
    """For the tokens that it has; for all that it may ever write, where it was preempted too often."""
    return state.kv.blocks_for(request.max_len - 1 if request.preemptions >= _PINNED else len(request.tokens))


def _growth(state: State, request: Request, held: int | None = None) -> int:
    """Blocks that a request is expected to want beyond those it holds."""
    tokens = len(request.tokens)
    expected = tokens + state.output_share * (request.max_len - tokens)
    wanted = state.kv.blocks_for(min(int(expected) + 1, request.max_len - 1))
    return max(0, wanted - (len(request.blocks) if held is None else held))


def _keeps_blocks(state: State, blocked: Request, now: float) -> bool:
    """True once it has been passed often or long enough: what comes free is then kept for it."""
    if blocked.blocked_since is None:
        blocked.blocked_since = now
    limits = state.limits
    return blocked.overtaken >= limits.max_overtakes or now - blocked.blocked_since >= limits.max_blocked


def _begin(state: State, draft: _Draft, request: Request, found: Sequence[int], now: float) -> None:
    state.waiting.remove(request)
    state.running[request.id] = request
    request.slot = state.slots.pop()
    wanted = _blocks_at_start(state, request) * state.kv.block_size
    state.kv.share(request.blocks, found)
    grown = state.kv.grow(request.blocks, wanted)
    assert grown, "an idle cache holds any request that the door let in"
    request.computed = request.written = len(found) * state.kv.block_size
    if request.scheduled_at is None:
        request.scheduled_at, request.cached = now, request.computed
    for name in request.hashes[len(found) :]:
        state.computing.setdefault(name, request.id)
    draft.begins.append(Begin(request.id, request.slot, tuple(request.tokens), request.prompt_len, request.params))
    draft.grown.append(Grown(request.slot, 0, tuple(request.blocks)))


def _grow(state: State, draft: _Draft, request: Request, tokens: int) -> bool:
    before = len(request.blocks)
    if not state.kv.grow(request.blocks, tokens):
        return False
    draft.grown.append(Grown(request.slot, before, tuple(request.blocks[before:])))
    return True


def _advance(state: State, draft: _Draft, request: Request, n: int) -> None:
    start = request.computed
    request.computed = end = start + n
    samples = end == request.horizon
    if samples:
        request.horizon = end + 1
    request.last_step = state.planned
    if start < request.reached:
        draft.recomputed += min(end, request.reached) - start
    draft.rows.append(_row((request.id, request.slot, start, n, samples)))
