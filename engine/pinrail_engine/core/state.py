"""Everything the scheduler decides on: limits, blocks, who waits and who runs. Pure."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter

from pinrail_contract.launch import Policy

from .kv_blocks import KvBlocks
from .policy import VIRTUAL_TIME
from .request import Request
from .step_time import StepTime

_ORDER = attrgetter("order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    vocab_size: int  # token ids are below it
    max_model_len: int  # tokens that prompt and output may have together
    max_num_seqs: int  # requests that run at once
    max_num_batched_tokens: int  # tokens in one step
    policy: Policy = Policy.FCFS
    target_step: float = 0.0  # seconds that a step should take while texts are continued; 0: no such bound
    max_partial_prefills: int = 4  # prompts that are partly computed at once
    max_overtakes: int = 64  # times that a request whose blocks are missing is passed by later ones, or
    max_blocked: float = 2.0  # seconds that it is passed for; then blocks are kept for it

    def __post_init__(self) -> None:
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs: got {self.max_num_seqs}, want 1 to max_num_batched_tokens "
                f"({self.max_num_batched_tokens}), so that every running request fits a step"
            )
        if self.max_partial_prefills < 1:
            raise ValueError(f"max_partial_prefills: got {self.max_partial_prefills}, want at least 1")


class Queue:
    """Requests in the order of the policy, equal ones in order of arrival."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """In order. The queue must not change meanwhile."""
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """In its place; one that comes back takes the place that it had."""
        insort(self._requests, request, key=_ORDER)

    def remove(self, request: Request) -> None:
        i = bisect_left(self._requests, request.order, key=_ORDER)
        assert self._requests[i] is request, f"{request.id} does not wait"
        del self._requests[i]


@dataclass(slots=True)
class State:
    limits: Limits
    kv: KvBlocks
    waiting: Queue = field(default_factory=Queue)
    running: dict[str, Request] = field(default_factory=dict)  # by id, in the order in which they began
    live: dict[str, Request] = field(default_factory=dict)  # both of the above, by id
    slots: list[int] = field(default_factory=list)  # that no request holds
    computing: dict[bytes, str] = field(default_factory=dict)  # hash of a block to be published -> who computes it
    arrivals: "count[int]" = field(default_factory=count)
    planned: int = 0  # number of the newest plan
    completed: int = 0  # number of the newest plan that was committed
    output_share: float = 0.1  # of max_tokens that outputs are expected to take, learned
    step_time: StepTime = field(default_factory=StepTime)

    def __post_init__(self) -> None:
        room = self.kv.total * self.kv.block_size
        if not 2 <= self.limits.max_model_len <= room:
            raise ValueError(f"max_model_len: got {self.limits.max_model_len}, want 2 to the cache's {room} tokens")
        self.slots = list(range(self.limits.max_num_seqs - 1, -1, -1))

    def virtual_time(self, request: Request) -> float:
        """Seconds: lower is served first."""
        return VIRTUAL_TIME[self.limits.policy](request)

    def enter(self, request: Request) -> None:
        """A new request joins the queue."""
        request.order = self.virtual_time(request), next(self.arrivals)
        self.live[request.id] = request
        self.waiting.add(request)

    def leave(self, request: Request) -> None:
        """A running request gives up its blocks and its slot, and what it had in them."""
        for name in request.hashes[request.written // self.kv.block_size :]:
            if self.computing.get(name) == request.id:
                del self.computing[name]
        self.kv.release(request.blocks)
        self.slots.append(request.slot)
        del self.running[request.id]
        request.slot = -1
        request.reached = max(request.reached, request.computed)
        request.computed = request.written = 0

    @property
    def waiting_tokens(self) -> int:
        """Tokens that the queue has so far, all of them to be computed unless they are cached."""
        return sum(len(r.tokens) for r in self.waiting)

    @property
    def waiting_blocks(self) -> int:
        """Blocks that the queue will need for the tokens it has so far."""
        return sum(self.kv.blocks_for(len(r.tokens)) for r in self.waiting)

    def check(self) -> None:
        """What holds between any two calls; an AssertionError is our own bug."""
        self.kv.check(r.blocks for r in self.running.values())
        assert len(self.live) == len(self.waiting) + len(self.running)
        assert all(not r.blocks and r.computed == r.written == 0 and r.slot == -1 for r in self.waiting)
        held = sorted([*self.slots, *(r.slot for r in self.running.values())])
        assert held == list(range(self.limits.max_num_seqs)), "every slot is free or held by one request"
        assert set(self.computing.values()) <= set(self.running), "only who runs computes"
        for r in self.running.values():
            assert r.written <= r.computed <= len(r.blocks) * self.kv.block_size
            assert r.computed < r.max_len >= r.horizon >= len(r.tokens)
        orders = [r.order for r in self.waiting]
        assert orders == sorted(orders)
