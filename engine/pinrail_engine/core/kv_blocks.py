"""The KV cache as numbered blocks: which are free, and which request's table holds the others. Pure.

A block holds the keys and values of `block_size` tokens in every layer. Knows nothing of requests or tensors.
"""

from collections.abc import Iterable


class KvBlocks:
    """A free list. Tables are lists of block numbers that the requests own: position p is in table[p // block_size]."""

    def __init__(self, total: int, block_size: int) -> None:
        if total < 1 or block_size < 1:
            raise ValueError(f"KV cache: got {total} blocks of {block_size} tokens, want at least 1 of 1")
        self.total = total  # blocks
        self.block_size = block_size  # tokens
        self._free = list(range(total - 1, -1, -1))  # a stack: the block freed last is used first

    @property
    def free(self) -> int:
        """Blocks that no table holds."""
        return len(self._free)

    @property
    def live(self) -> int:
        """Blocks that some table holds."""
        return self.total - len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens fill, the last one perhaps in part."""
        return -(-tokens // self.block_size)

    def grow(self, table: list[int], tokens: int) -> bool:
        """Extend `table` to hold `tokens` tokens; False, and no change, where too few blocks are free."""
        missing = self.blocks_for(tokens) - len(table)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            table.append(self._free.pop())
        return True

    def release(self, table: list[int]) -> None:
        """Free every block of `table`, and empty it."""
        self._free.extend(reversed(table))
        table.clear()

    def check(self, tables: Iterable[list[int]]) -> None:
        """Every block is free or in exactly one of `tables`; an AssertionError is our own bug."""
        held = [block for table in tables for block in table]
        assert sorted([*held, *self._free]) == list(range(self.total)), (
            f"{len(held)} blocks held and {self.free} free are not {self.total} distinct ones"
        )
