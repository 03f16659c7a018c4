"""The words of the engine: what a request asks for, what comes back, why it ended."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class FinishReason(StrEnum):
    """Every request ends in exactly one of these."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens, or the window is full
    ABORT = "abort"  # the client went away, or the drain time was over
    ERROR = "error"  # the step that computed it failed
    REJECTED = "rejected"  # refused at the door


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen. Bounds are checked at the edge, by the API's schema."""

    max_tokens: int  # 1 or more
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0  # (0, 1]
    seed: int = 0  # the same seed gives the same text, whatever else is in the batch
    stop_token_ids: frozenset[int] = frozenset()  # end-of-sequence ids included, unless the request ignores them


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What one step did for one request. The last event of a request, and no other, has `finish`."""

    token_ids: tuple[int, ...]  # new tokens, in order; a stop token is included
    finish: FinishReason | None = None
    error: str = ""  # one sentence, with ERROR or REJECTED


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
        """Tokens that prompt and output may have together."""

    @property
    def state(self) -> str:
        """`loading`, `ready`, `draining` or `failed`; `failed` is final, and the process should end."""

    def is_healthy(self) -> bool:
        """False when there is work and no step has ended for too long, or the thread is dead."""

    def submit(self, request_id: str, prompt: Sequence[int], params: SamplingParams, sink: Sink) -> None:
        """Queue a request; raises Refused. `request_id` is unique. Thread-safe."""

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request early: ABORT when the client has gone, STOP when a stop string was met. Thread-safe; unknown
        or finished ids are ignored. Its blocks are free within one step; no further event reaches the sink."""

    def metrics_page(self) -> bytes:
        """The /metrics body, Prometheus text format."""

    def drain(self, timeout: float) -> None:
        """Refuse newcomers, let what is queued and running end for `timeout` seconds, then end the rest with ABORT,
        which their sinks are told. Blocks until all have ended; thread-safe."""
