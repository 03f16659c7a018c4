"""The KV cache as numbered blocks: who holds which, and which still hold something worth finding again. Pure.

A block holds the keys and values of `block_size` tokens in every layer. It is in one of three states:

    live     some table holds it (several, where they share a prefix)
    cached   no table does, but its content has a name by which it can be found
    free     no table does, and its content is worth nothing

Blocks that no table holds form one ring, the next to be used first: free ones, then cached ones, the longest unused
first. It is two arrays of numbers, so that taking any block out of the middle costs the same as from the end. Knows
nothing of requests or tensors.

Source: Kwon et al. 2023, https://arxiv.org/abs/2309.06180, section 4 (blocks); the ring is a linked list as in Knuth,
The Art of Computer Programming, volume 1, section 2.2.5.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from .cache_log import CacheLog


class KvBlocks:
    """Tables are lists of block numbers that the requests own: position p is in table[p // block_size]."""

    def __init__(self, total: int, block_size: int, *, log: CacheLog | None = None) -> None:
        if total < 1 or block_size < 1:
            raise ValueError(f"KV cache: got {total} blocks of {block_size} tokens, want at least 1 of 1")
        self.total = total  # blocks
        self.block_size = block_size  # tokens
        self.log = CacheLog() if log is None else log
        self.evicted = 0  # blocks, ever: cached ones that were used for something else
        self._holders = [0] * total  # tables that hold each block
        self._names: list[bytes | None] = [None] * total  # hash of each block's content, where it is to be found
        self._found: dict[bytes, int] = {}  # the same, the other way round
        self._next: list[int] = [*range(1, total + 1), 0]  # the ring; its last element is the start and the end
        self._previous: list[int] = [total, *range(total)]
        self._unheld, self._cached = total, 0

    @property
    def available(self) -> int:
        """Blocks that no table holds: free or cached."""
        return self._unheld

    @property
    def live(self) -> int:
        return self.total - self._unheld

    @property
    def cached(self) -> int:
        return self._cached

    @property
    def free(self) -> int:
        return self._unheld - self._cached

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens fill, the last one perhaps in part."""
        return -(-tokens // self.block_size)

    def find(self, names: Sequence[bytes]) -> list[int]:
        """The blocks of the longest head of `names` that is here."""
        blocks = []
        for name in names:
            block = self._found.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def unheld(self, blocks: Iterable[int]) -> int:
        """How many of these no table holds: sharing them takes so many from `available`."""
        return sum(self._holders[block] == 0 for block in blocks)

    def share(self, table: list[int], blocks: Sequence[int]) -> None:
        """Begin an empty table with blocks that were found."""
        assert not table, "only a table's beginning can be shared"
        for block in blocks:
            if self._holders[block] == 0:
                self._leave_ring(block)
                self._cached -= 1
            self._holders[block] += 1
        table.extend(blocks)

    def grow(self, table: list[int], tokens: int) -> bool:
        """Extend `table` to hold `tokens` tokens; False, and no change, where too few blocks are available."""
        missing = self.blocks_for(tokens) - len(table)
        if missing > self._unheld:
            return False
        for _ in range(missing):
            table.append(self._take())
        return True

    def publish(self, block: int, name: bytes, parent: bytes) -> None:
        """A live block's content is complete, and can be found from now on.

        Where another block has the same content already, that one stays the one to be found.
        """
        assert self._holders[block] > 0, "only who holds a block can know what is in it"
        if self._names[block] is None and name not in self._found:
            self._names[block] = name
            self._found[name] = block
            self.log.stored(name, parent)

    def release(self, table: list[int]) -> None:
        """Give every block of `table` up, and empty it. The last goes first: a prefix outlives what follows it."""
        while table:
            block = table.pop()
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._enter_ring(block, at_end=self._names[block] is not None)
                self._cached += self._names[block] is not None

    def forget(self, blocks: Iterable[int]) -> None:
        """What is in these live blocks is not to be found any more."""
        for block in blocks:
            assert self._holders[block] > 0, "only who holds a block can know what is in it"
            name = self._names[block]
            if name is not None:
                del self._found[name]
                self._names[block] = None
                self.log.removed(name)

    def clear(self) -> None:
        """Forget the content of every block; those that are live stay so."""
        self._names = [None] * self.total
        self._found.clear()
        self._cached = 0
        self.log.cleared()

    def check(self, tables: Iterable[list[int]]) -> None:
        """Every block is as live, cached or free as `tables` say; an AssertionError is our own bug."""
        held = Counter(block for table in tables for block in table)
        assert all(self._holders[b] == held[b] for b in range(self.total)), "holders are not those of the tables"
        ring = self._ring()
        assert sorted([*held, *ring]) == list(range(self.total)), (
            f"{len(held)} blocks held and {len(ring)} in the ring are not {self.total} distinct ones"
        )
        assert len(ring) == self._unheld
        assert sum(self._names[b] is not None for b in ring) == self._cached
        assert self._found == {name: b for b, name in enumerate(self._names) if name is not None}
        assert self.log.content == set(self._found), "a router that reads the log knows what is here"

    def _take(self) -> int:
        block = self._next[self.total]
        self._leave_ring(block)
        name = self._names[block]
        if name is not None:
            del self._found[name]
            self._names[block] = None
            self._cached -= 1
            self.evicted += 1
            self.log.removed(name)
        self._holders[block] = 1
        return block

    def _leave_ring(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self._unheld -= 1

    def _enter_ring(self, block: int, *, at_end: bool) -> None:
        before = self._previous[self.total] if at_end else self.total
        after = self._next[before]
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self._unheld += 1

    def _ring(self) -> list[int]:
        ring = []
        block = self._next[self.total]
        while block != self.total:
            ring.append(block)
            block = self._next[block]
        return ring
