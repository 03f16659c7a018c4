"""The words of the engine: what a request asks for, what comes back, why it ended."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple, Protocol, TypeVar, cast

T = TypeVar("T")


def quickly(kind: type[T]) -> Callable[[tuple[object, ...]], T]:
    """Makes a NamedTuple from the tuple of all its fields, in a third of the time that calling it takes.

    For the three that are made for every token.
    """
    return cast(Callable[[tuple[object, ...]], T], partial(tuple.__new__, kind))


class FinishReason(StrEnum):
    """Every request ends in exactly one of these."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens, or the window is full
    ABORT = "abort"  # the client went away, or the drain time was over
    ERROR = "error"  # the step that computed it failed
    REJECTED = "rejected"  # refused at the door, or sent away from the queue


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen. Bounds are checked at the edge, by the API's schema.

    Logits are changed in this order: allowed tokens, minimum length, bad words and logit bias; then the penalties;
    then temperature, top-k, top-p and min-p. Log-probabilities are those of the logits as the model gave them.
    """

    max_tokens: int  # 1 or more
    min_tokens: int = 0  # no token of `stop_token_ids` is chosen before there are so many
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0  # (0, 1]
    min_p: float = 0.0  # [0, 1], of the likeliest token's probability
    repetition_penalty: float = 1.0  # above 0; over prompt and output
    presence_penalty: float = 0.0  # [-2, 2]; over the output
    frequency_penalty: float = 0.0  # [-2, 2]; over the output, times the count
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, what is added to its logit
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that are never completed
    allowed_token_ids: tuple[int, ...] = ()  # no others are chosen; empty: all
    seed: int = 0  # the same seed gives the same text, whatever else is in the batch
    stop_token_ids: frozenset[int] = frozenset()  # end-of-sequence ids included, unless the request ignores them
    logprobs: int | None = None  # likeliest tokens told with each token of the output; None: not even the chosen
    prompt_logprobs: int | None = None  # the same, for each token of the prompt but the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On which terms a request is served: what the policy looks at, and where its trace belongs."""

    priority: int = 0  # lower is served first; read by the policy `priority`
    deadline: float | None = None  # seconds after arrival by which it must have left the queue; None: no such bound
    client: str = ""  # who asks; a full queue is shared out among them
    cache_salt: str = ""  # only requests of the same salt share cached prefixes
    traceparent: str = ""  # W3C trace context of the caller
    received: float | None = None  # seconds, the engine's clock: when the server got it; None: as it is submitted


STANDARD_TERMS = Terms()


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities, of the logits as the model gave them."""

    logprob: float  # of the token that stands there
    rank: int  # its place among all tokens, likeliest first, lower ids first among equals: 1 is the likeliest
    top: tuple[tuple[int, float], ...]  # the likeliest ids and theirs, likeliest first, lower ids first among equals


class TokenEvent(NamedTuple):
    """What one step did for one request. The last event of a request, and no other, has `finish`."""

    token_ids: tuple[int, ...]  # new tokens, in order; a stop token is included
    finish: FinishReason | None = None
    error: str = ""  # one sentence, with ERROR or REJECTED
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per new token, where asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of prompt positions 1 … n - 1, with the first token, if asked for
    cached_tokens: int = 0  # of the prompt, that were found in the cache; the same in each event of a request
    retry_after: int | None = None  # seconds, with REJECTED


Sink = Callable[[TokenEvent], None]
"""Takes a request's events. Called from the engine's thread: must be quick and must not raise."""


class Refused(Exception):
    """A request that is not let in.

    Args:
        message: One sentence for the client.
        retry_after: Seconds until trying again may help; None where it never will (the request can never fit).
        overloaded: True where this queue is full (429), False where this server cannot serve (503).
    """

    def __init__(self, message: str, *, retry_after: int | None = None, overloaded: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.overloaded = overloaded


class Engine(Protocol):
    """What the API needs of the engine; `run.loop.EngineLoop` is it, tests have another."""

    @property
    def max_model_len(self) -> int:
        """Tokens that prompt and output may have together; 0 while loading."""

    @property
    def policy(self) -> str:
        """How the queue is ordered: `fcfs`, `priority`, `sjf` or `edf`."""

    @property
    def state(self) -> str:
        """`loading`, `ready`, `draining` or `failed`; `failed` is final, and the process should end."""

    def is_healthy(self) -> bool:
        """False when there is work and no step has ended for too long, or the thread is dead."""

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        sink: Sink,
        terms: Terms = STANDARD_TERMS,
    ) -> None:
        """Queue a request; raises Refused. `request_id` is unique. Thread-safe.

        A request that was let in may still be sent away from the queue, with REJECTED: for a better one when the queue
        is full, or because it has waited too long.
        """

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request early: ABORT when the client has gone, STOP when a stop string was met. Thread-safe; unknown
        or finished ids are ignored. Its blocks are free within one step; no further event reaches the sink."""

    def metrics_page(self) -> bytes:
        """The /metrics body, Prometheus text format."""

    def cache_events(self, after: int) -> "CacheEvents":
        """What happened to the prefix cache since event number `after`. Thread-safe."""

    def drain(self, timeout: float) -> None:
        """Refuse newcomers, let what is queued and running end for `timeout` seconds, then end the rest with ABORT,
        which their sinks are told. Blocks until all have ended; thread-safe."""


class CacheEvent(NamedTuple):
    number: int  # 1, 2, 3 …
    kind: str  # stored, removed or cleared
    block: str = ""  # hex of the block's hash; '' with cleared
    parent: str = ""  # hex of the hash before it, or of the chain's root; with stored


@dataclass(frozen=True, slots=True)
class CacheEvents:
    """A stretch of the log of the prefix cache, from which a router can know what each replica holds."""

    last: int  # the newest event's number; ask for what comes after it next
    complete: bool  # False: events between were forgotten, so what is listed is the whole content, as `stored`
    events: tuple[CacheEvent, ...]
