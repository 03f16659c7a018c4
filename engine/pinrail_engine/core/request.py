"""One request while it lives, and what is left of it when it has ended. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from .types import FinishReason, SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    """Prompt and output are one list; prefill, decode and recomputation differ only in where `computed` stands."""

    id: str
    tokens: list[int]  # prompt, then accepted output
    prompt_len: int  # tokens
    max_len: int  # tokens; reaching it ends the request with LENGTH
    params: SamplingParams
    arrival: float  # seconds, monotonic, as every time below
    computed: int = 0  # tokens whose KV is written, or is being written by a step in flight
    blocks: list[int] = field(default_factory=list)  # covers at least `computed` tokens
    preemptions: int = 0
    scheduled_at: float | None = None  # first time in a plan
    first_token_at: float | None = None
    last_token_at: float | None = None

    @classmethod
    def new(cls, id_: str, prompt: Sequence[int], params: SamplingParams, max_model_len: int, now: float) -> Self:
        """Args: max_model_len: tokens that prompt and output may have together; now: seconds, monotonic."""
        max_len = min(len(prompt) + params.max_tokens, max_model_len)
        return cls(id_, list(prompt), len(prompt), max_len, params, now)

    @property
    def remaining(self) -> int:
        """Known tokens still to be computed: 1 is a decode step, more is prefill, 0 waits for a result."""
        return len(self.tokens) - self.computed

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has ended; from here go its metrics and its log line."""

    request: Request
    reason: FinishReason
    at: float  # seconds, monotonic
