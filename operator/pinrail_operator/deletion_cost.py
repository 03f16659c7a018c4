"""Which pods a scale-in should take: those with the least work in flight. Pure.

A ReplicaSet removes pods that are not ready first, whatever they cost; then the cheapest by an annotation, of which
the cost is zero where it is missing. It is written when a scale-in would take the wrong pod, and at no other time.

Source: `ActivePodsWithRanks` in kubernetes/pkg/controller/controller_utils.go; KEP-2255.
"""

from collections.abc import Mapping
from itertools import accumulate, pairwise

from pinrail_contract.metrics import LoadSample

from .observed import Observed, Pod

UNKNOWN = 2**31 - 1
"""The cost of a pod that cannot be asked: never the cheapest. No cost can be larger."""


def cost(load: LoadSample | None) -> int:
    """One more than the KV blocks that live and waiting requests need, or their number where that is larger."""
    if load is None:
        return UNKNOWN
    blocks = load.used_blocks + load.waiting_blocks
    if not 0 <= blocks < UNKNOWN:  # NaN compares as False
        return UNKNOWN
    return min(1 + max(round(blocks), load.running + load.waiting), UNKNOWN - 1)


def changes(observed: Observed, wanted: int, loads: Mapping[str, LoadSample]) -> tuple[tuple[str, int], ...]:
    """The pods whose cost is to be written, each with it; none where the right pods go anyway.

    Any number of the pods that are not ready, which go first, may become ready before the ReplicaSet looks.

    Args:
        observed: Pods with the cost that they carry.
        wanted: Replicas that are to be left.
        loads: What ready pods said just now, by pod.
    """
    ready = observed.ready_pods
    costs = {p.name: cost(loads.get(p.name)) for p in ready}
    surplus = len(observed.pods) - wanted
    if surplus <= 0 or wanted <= 0 or _takes_the_cheapest(ready, costs, surplus):
        return ()
    return tuple((p.name, costs[p.name]) for p in ready if p.deletion_cost != costs[p.name])


def _takes_the_cheapest(ready: tuple[Pod, ...], costs: Mapping[str, int], surplus: int) -> bool:
    """Whether what the pods carry puts the cheapest first, for any number of them up to `surplus`.

    Equal costs may go in any order: only where the cost rises must what is carried rise too.
    """
    by_cost = sorted(ready, key=lambda p: (costs[p.name], p.deletion_cost))
    carried = [p.deletion_cost for p in by_cost]
    rises = [i for i, (a, b) in enumerate(pairwise(by_cost), 1) if costs[a.name] < costs[b.name]]
    behind = next((n for n, i in enumerate(rises) if i >= surplus), len(rises))
    most = list(accumulate(carried, max))
    least = list(accumulate(reversed(carried), min))[::-1]
    return all(most[i - 1] < least[i] for i in rises[: behind + 1])
