"""One request while it lives, and what is left of it when it has ended. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from . import prefix
from .types import STANDARD_TERMS, FinishReason, SamplingParams, Terms, TokenLogprobs


@dataclass(slots=True, eq=False)
class Request:
    """Prompt and output are one list; prefill, decode and recomputation differ only in where `computed` stands.

    0 ..... written ..... computed ..... len(tokens) ..... horizon ... max_len
    KV in completed steps | in flight  | known, to do     | promised by steps in flight
    """

    id: str
    tokens: list[int]  # prompt, then accepted output
    prompt_len: int  # tokens
    max_len: int  # tokens; reaching it ends the request with LENGTH
    params: SamplingParams
    terms: Terms
    arrival: float  # seconds, monotonic, as every time below: when it was let in
    root: bytes = b""  # of its chain of block hashes; empty: its blocks are not shared
    hashes: list[bytes] = field(default_factory=list)  # of its first full blocks
    order: tuple[float, int] = (0.0, 0)  # the policy's virtual time in seconds, number of arrival: lower goes first
    computed: int = 0  # tokens whose KV is written, or is being written by a step in flight
    written: int = 0  # tokens whose KV a completed step has written, in `blocks`
    horizon: int = 0  # tokens known, or promised by a step in flight
    blocks: list[int] = field(default_factory=list)  # covers at least `computed` tokens
    slot: int = -1  # line of the backend's table while it runs
    last_step: int = 0  # number of the newest step that it is in
    cached: int = 0  # prompt tokens found in the cache when it first ran
    preemptions: int = 0
    reached: int = 0  # tokens computed when it last gave its blocks up: those below are computed again
    overtaken: int = 0  # times that a later one ran before it because its blocks were missing
    blocked_since: float | None = None  # when its blocks were first missing, at the head of the queue
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # of positions 1, 2, …
    scheduled_at: float | None = None  # first time in a plan
    first_token_at: float | None = None
    last_token_at: float | None = None

    @classmethod
    def new(
        cls,
        id_: str,
        prompt: Sequence[int],
        params: SamplingParams,
        max_model_len: int,
        now: float,
        terms: Terms = STANDARD_TERMS,
        *,
        root: bytes = b"",
        block_size: int = 1,
    ) -> "Request":
        """Args: max_model_len: tokens that prompt and output may have together; now: seconds, monotonic; root: of the
        chain of block hashes, which are made here; empty where prefixes are not to be shared."""
        max_len = min(len(prompt) + params.max_tokens, max_model_len)
        request = cls(id_, list(prompt), len(prompt), max_len, params, terms, now, root, horizon=len(prompt))
        if root:
            prefix.extend(request.hashes, root, request.tokens, block_size, len(prompt))
        return request

    @property
    def work(self) -> int:
        """Tokens that can be computed now: 1 is a decode step, more is prefill, 0 waits for a step in flight.

        The last token of all is never computed: nothing comes after it.
        """
        return (self.horizon if self.horizon < self.max_len else self.max_len - 1) - self.computed

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def received(self) -> float:
        """When the server got it; its waiting begins with `arrival`."""
        return self.arrival if self.terms.received is None else self.terms.received


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has ended; from here go its metrics, its trace and its log line."""

    request: Request
    reason: FinishReason
    at: float  # seconds, monotonic
    error: str = ""  # one sentence, with ERROR or REJECTED
    retry_after: int | None = None  # seconds, with REJECTED
