"""Everything the scheduler decides on: limits, blocks, who waits and who runs. Pure."""

from collections import deque
from dataclasses import dataclass, field

from .kv_blocks import KvBlocks
from .request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    vocab_size: int  # token ids are below it
    max_model_len: int  # tokens that prompt and output may have together
    max_num_seqs: int  # requests that run at once
    max_num_batched_tokens: int  # tokens in one step

    def __post_init__(self) -> None:
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs: got {self.max_num_seqs}, want 1 to max_num_batched_tokens "
                f"({self.max_num_batched_tokens}), so that every running request fits a step"
            )


@dataclass(slots=True)
class State:
    """`waiting` and `running` are in order of arrival, and whoever runs arrived before whoever waits."""

    limits: Limits
    kv: KvBlocks
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    live: dict[str, Request] = field(default_factory=dict)  # both of the above, by id

    def __post_init__(self) -> None:
        room = self.kv.total * self.kv.block_size
        if not 2 <= self.limits.max_model_len <= room:
            raise ValueError(f"max_model_len: got {self.limits.max_model_len}, want 2 to the cache's {room} tokens")

    @property
    def waiting_blocks(self) -> int:
        """Blocks that the queue will need for the tokens it has so far."""
        return sum(self.kv.blocks_for(len(r.tokens)) for r in self.waiting)

    def check(self) -> None:
        """What holds between any two calls; an AssertionError is our own bug."""
        self.kv.check(r.blocks for r in self.live.values())
        assert len(self.live) == len(self.waiting) + len(self.running)
        assert all(not r.blocks and r.computed == 0 for r in self.waiting)
        assert all(self.kv.blocks_for(r.computed) <= len(r.blocks) for r in self.running)
        order = [r.arrival for r in (*self.running, *self.waiting)]
        assert order == sorted(order)
