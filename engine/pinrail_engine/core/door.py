"""Who is let into the queue, and who has to leave it. Pure.

| prompt     | queue    | who comes                                      | then                                   |
|------------|----------|------------------------------------------------|----------------------------------------|
| never fits | -        | -                                              | refused for good, and told the maximum |
| fits       | has room | -                                              | let in                                 |
| fits       | full     | the last, of the client with most tokens in it | refused, to try again                  |
| fits       | full     | anyone else                                    | let in; that last one is sent away     |

Whoever has run already, and waits because it was preempted, is never sent away.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from .request import Request
from .state import Limits, State
from .types import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What may wait. 0 is no bound."""

    max_queued: int = 0  # requests
    max_queued_tokens: int = 0  # of their prompts; a single one may have more
    max_wait: float = 0.0  # seconds until a request must have begun


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


def to_send_away(state: State, newcomer: Request, caps: Caps) -> list[Request]:
    """Who must leave for the newcomer to be let in, itself included where it is to be refused; nobody where all fit.

    Args:
        newcomer: Not in the queue yet.
    """
    newcomer.order = state.virtual_time(newcomer), sys.maxsize
    count, tokens = len(state.waiting) + 1, state.waiting_tokens + len(newcomer.tokens)
    if count == 1 or not _is_over(count, tokens, caps):
        return []
    queues: dict[str, list[Request]] = {}  # of each client, in order
    for request in sorted([newcomer, *(r for r in state.waiting if r.scheduled_at is None)], key=lambda r: r.order):
        queues.setdefault(request.terms.client, []).append(request)
    held = {client: sum(len(r.tokens) for r in queue) for client, queue in queues.items()}
    gone: list[Request] = []
    while _is_over(count, tokens, caps):
        client = max(queues, key=lambda c: (held[c], queues[c][-1].order))
        last = queues[client].pop()
        if last is newcomer:
            return [newcomer]
        gone.append(last)
        held[client] -= len(last.tokens)
        count, tokens = count - 1, tokens - len(last.tokens)
        if not queues[client]:
            del queues[client]
    return gone


def has_waited_too_long(request: Request, caps: Caps, now: float) -> str:
    """Why a queued request must be sent away: `waited` or `deadline`; '' where it may stay."""
    if request.scheduled_at is not None:
        return ""
    waited = now - request.arrival
    if request.terms.deadline is not None and waited >= request.terms.deadline:
        return "deadline"
    return "waited" if caps.max_wait and waited >= caps.max_wait else ""


def _is_over(count: int, tokens: int, caps: Caps) -> bool:
    return bool(
        (caps.max_queued and count > caps.max_queued) or (caps.max_queued_tokens and tokens > caps.max_queued_tokens)
    )
