"""What happened to the prefix cache, as numbered events: routers send a prompt to whoever holds its prefix. Pure.

A reader keeps the number of the last event that it saw and asks for what came after. Where that is forgotten already,
it gets the whole content instead.
"""

from collections import deque

from .types import CacheEvent, CacheEvents

_KEPT = 100_000  # events


class CacheLog:
    """Args: kept: events that are remembered."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._events: deque[tuple[str, bytes, bytes]] = deque(maxlen=kept)
        self._last = 0  # number of the newest event
        self._parents: dict[bytes, bytes] = {}  # what is stored now, in order: hash -> hash before it

    @property
    def content(self) -> set[bytes]:
        return set(self._parents)

    def stored(self, block: bytes, parent: bytes) -> None:
        self._parents[block] = parent
        self._add("stored", block, parent)

    def removed(self, block: bytes) -> None:
        del self._parents[block]
        self._add("removed", block, b"")

    def cleared(self) -> None:
        self._parents.clear()
        self._add("cleared", b"", b"")

    def since(self, number: int) -> CacheEvents:
        """Events after `number`, or the whole content where some of them are forgotten, or `number` is none of ours."""
        first = self._last - len(self._events) + 1  # number of the oldest one remembered
        if first - 1 <= number <= self._last:
            skipped = number - first + 1
            recent = enumerate(list(self._events)[skipped:], number + 1)
            return CacheEvents(self._last, True, tuple(CacheEvent(i, k, b.hex(), p.hex()) for i, (k, b, p) in recent))
        whole = self._parents.items()
        return CacheEvents(self._last, False, tuple(CacheEvent(0, "stored", b.hex(), p.hex()) for b, p in whole))

    def _add(self, kind: str, block: bytes, parent: bytes) -> None:
        self._last += 1
        self._events.append((kind, block, parent))
