"""Which models a cache gives up so that another one fits. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import CacheError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """One model of a cache."""

    name: str  # of its folder
    size: int  # bytes that it takes once it is whole
    missing: int  # bytes of them that have yet to be written
    last_used: float  # seconds since 1970
    is_in_use: bool  # a pod that lives has it, or waits for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What all models together must keep to."""

    size: int  # bytes that they may take
    free: int  # bytes that the disk still has for them


def evictions(wanted: Cached, others: Sequence[Cached], bounds: Bounds) -> tuple[Cached, ...]:
    """The models to remove, least recently used first, and no more than it takes.

    | the model and those in use | with the idle ones | removed                    |
    |----------------------------|--------------------|----------------------------|
    | exceed a bound             | -                  | none: CacheError           |
    | fit                        | fit                | none                       |
    | fit                        | exceed a bound     | the oldest, until all fit  |

    What is yet to be written counts for every model, since another pod may be writing it.

    Args:
        wanted: The model that is about to be fetched.
        others: The cache's other models, in any order.
        bounds: What holds for all of them together; what is removed adds to `free`.
    """
    kept, removed = sorted(others, key=lambda m: (m.last_used, m.name)), []
    free = bounds.free
    while not _fits((wanted, *kept), bounds.size, free):
        oldest = next((m for m in kept if not m.is_in_use), None)
        if oldest is None:
            raise CacheError(_refusal(wanted, kept, bounds.size, free))
        kept.remove(oldest)
        removed.append(oldest)
        free += oldest.size - oldest.missing
    return tuple(removed)


def _fits(models: Sequence[Cached], bound: int, free: int) -> bool:
    return sum(m.size for m in models) <= bound and sum(m.missing for m in models) <= free


def _refusal(wanted: Cached, kept: Sequence[Cached], bound: int, free: int) -> str:
    used, missing = sum(m.size for m in kept), wanted.missing + sum(m.missing for m in kept)
    models = "1 model" if len(kept) == 1 else f"{len(kept)} models"
    seen = f"the cache has no room for {wanted.name}: it takes {wanted.size} bytes beside {used} of {models} in use"
    if wanted.size + used > bound:
        return f"{seen}, and spec.model.cache.maxSize is {bound}, want {wanted.size + used} or above"
    return f"{seen}; {missing} are yet to be written, and the disk has {free} left for them"
