"""How far pods are that fetch their model, in words that change at most ten times for each. Pure."""

from collections.abc import Mapping

from pinrail_contract.pins import ModelManifest

from .observed import Observed, Pod
from .phrases import size
from .words import counted

STEPS = 10
"""What is told of one fetch: whole tenths."""


def fetching_pods(observed: Observed, target: str) -> tuple[Pod, ...]:
    """Pods of the wanted revision whose fetch runs, by name."""
    found = [p for p in observed.pods if target and p.revision == target and p.is_fetching]
    return tuple(sorted(found, key=lambda p: p.name))


def advanced(before: Mapping[str, int], shares: Mapping[str, float], pods: tuple[Pod, ...]) -> dict[str, int]:
    """Tenths by pod that fetches: never fewer than before, and as before where a pod says nothing now.

    Args:
        before: What this returned the last time.
        shares: By pod that answered, 0 to 1.
        pods: Those that fetch.
    """
    now = {name: int(share * STEPS) for name, share in shares.items()}
    known = {p.name: max(before.get(p.name, -1), now.get(p.name, -1)) for p in pods}
    return {name: tenths for name, tenths in known.items() if tenths >= 0}


def progress(pods: tuple[Pod, ...], tenths: Mapping[str, int], manifest: ModelManifest | None) -> str:
    """One sentence; empty where no pod fetches. Of several the slowest counts, unnamed: which it is may alternate.

    A pod that has said nothing hashes what it found, waits for the pod that fetches into their cache, or is of an older
    image. It has no share in the figure: the model may be there whole.
    """
    if not pods:
        return ""
    said = [tenths[p.name] for p in pods if p.name in tenths]
    doing = "fetching" if len(said) == len(pods) else "fetching or checking"
    whole = f" of {size(manifest.total_size)}" if manifest is not None else ""
    part = f"{100 // STEPS * min(said)} %{whole}" if said else ""
    if len(pods) == 1:
        return f"pod {pods[0].name} is {doing} its model" + (f": {part}" if said else "")
    return f"{counted(len(pods), 'pod')} are {doing} the model" + (f": the slowest fetch has {part}" if said else "")
