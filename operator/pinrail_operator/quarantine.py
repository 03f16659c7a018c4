"""Which pods report something else than their pin, and how each is kept from answering. Pure.

An engine refuses to start on wrong files, or as another one than its manifest pins. So a pod that reports another
digest, version or number type runs no engine that can be trusted to: it is judged from outside, by what it says. One
that says nothing is not judged.

Such a pod is given another value of the one label by which Service, ReplicaSet and PodDisruptionBudget select it. That
takes one patch, of a right that the operator has anyway; it changes no selector, so an upgrade touches no service that
runs, and no pod ever waits for an operator before it may serve, as with a readiness gate or a label that the operator
adds. The ReplicaSet lets the pod go and makes another; the pod stays as it is for a person to look at, and belongs to
the InferenceService, with which it is collected.

A wrong image would do so for ever, so after `MOST` pods of a revision the ReplicaSet keeps its pods: each of them is
marked, the Service selects those that are marked to serve, and the roll-out stands still. Only in that state, which a
person has been told of, does a new pod wait for the operator's word.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pinrail_contract.launch import Verification
from pinrail_contract.metrics import FILES_DIFFER
from pinrail_contract.runtime import UNSAID, Difference, Runtime

from .observed import Observed, Pod
from .runtimes import UNHEARD, Runtimes, pins_of
from .types import InferenceService

MOST = 3
"""Pods of one revision that are quarantined."""

NEXT = "next: see whether spec.engine.image is the engine that you mean, then delete the pod"

SERVES, BARRED = "true", "false"
"""Values of the mark by which a guarded Service selects."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A ready pod that reports something else than its pin."""

    pod: Pod
    reported: str  # a digest, FILES_DIFFER, or empty where only its mark still says so
    differences: tuple[Difference, ...] = ()  # of its engine and numerics, where the digest is right

    def __str__(self) -> str:
        if self.differences:
            listed = "; ".join(str(d) for d in self.differences)
            return f"pod {self.pod.name} reports another engine than its manifest pins: {listed}"
        if self.reported == FILES_DIFFER:
            return f"pod {self.pod.name} reports files that are not those of the manifest, want {self.pod.pin}"
        return f"pod {self.pod.name} reports {self.reported or 'something else'}, want {self.pod.pin}"


@dataclass(frozen=True, slots=True)
class Verdict:
    release: tuple[Wrong, ...] = ()  # to be quarantined: the ReplicaSet makes others
    barred: tuple[Wrong, ...] = ()  # past `MOST`: to stay, and not to be selected
    marks: tuple[tuple[str, str], ...] = ()  # pod, and the mark that it is to carry
    is_held: bool = False  # the roll-out is to stand still: more pods of that revision would be as wrong

    @property
    def is_guarded(self) -> bool:
        """Whether the Service selects marked pods alone."""
        return bool(self.barred)


CLEAR = Verdict()


def judge(
    service: InferenceService,
    observed: Observed,
    digests: Mapping[str, str],
    target: str,
    runtimes: Runtimes = UNHEARD,
) -> Verdict:
    """What becomes of the pods that report something else than their pin.

    | verification | pod reports              | quarantined of its revision | then                     |
    |--------------|--------------------------|-----------------------------|--------------------------|
    | any          | its pin, or nothing      | any                         | it serves                |
    | any          | another, and was told    | any                         | it serves: a roll-out    |
    |              | to serve it all the same |                             | replaces it              |
    | Warn         | another, or other files  | any                         | it serves                |
    | Enforce      | another, or other files  | fewer than `MOST`           | it is quarantined        |
    | Enforce      | another, or other files  | `MOST`                      | it is barred             |
    | Enforce      | nothing, but is barred   | any                         | it is barred             |

    Another engine, or other numerics, than its manifest pins are another thing reported as well.

    Args:
        service: What is asked for.
        observed: What there is.
        digests: By pod, the digest that it reported, or FILES_DIFFER.
        target: The revision that the spec asks for.
        runtimes: By pod, the engine and the numerics that it reported.
    """
    if service.verification is not Verification.ENFORCE:
        return CLEAR
    found = [w for w in wrong_pods(observed, digests, runtimes) if not w.pod.tolerates]
    release, barred = list[Wrong](), list[Wrong]()
    kept = Counter(p.revision for p in observed.quarantined)
    for wrong in found:
        is_full = kept[wrong.pod.revision] >= MOST
        (barred if is_full else release).append(wrong)
        kept[wrong.pod.revision] += not is_full
    marks = _marks(observed, {w.pod.name for w in barred}) if barred else ()
    return Verdict(tuple(release), tuple(barred), marks, any(w.pod.revision == target for w in barred))


def wrong_pods(observed: Observed, digests: Mapping[str, str], runtimes: Runtimes = UNHEARD) -> tuple[Wrong, ...]:
    """Ready pods that report something else than their pin, and those that did and now say nothing."""
    judged = [p for p in observed.ready_pods if p.pin]
    pins = pins_of(observed, {p.pin for p in judged})
    said = [(p, digests.get(p.name, ""), runtimes.get(p.name, UNSAID)) for p in judged]
    found = [_compared(p, digest, pins.get(p.pin, UNSAID), runtime) for p, digest, runtime in said]
    return tuple(w for w in found if w is not None)


def _compared(pod: Pod, digest: str, pinned: Runtime, runtime: Runtime) -> Wrong | None:
    """What is wrong with a pod, by its own pin.

    Args:
        pod: That is ready.
        digest: That it reported; empty where it has not.
        pinned: The engine and numerics of its manifest.
        runtime: What it reported of its own.
    """
    if digest not in ("", pod.pin):
        return Wrong(pod, digest)
    if different := pinned.differences(runtime):
        return Wrong(pod, digest, different)
    is_silent = not digest or (pinned != UNSAID and runtime == UNSAID)
    return Wrong(pod, "") if is_silent and pod.mark == BARRED else None


def carried_out(verdict: Verdict, observed: Observed) -> Observed:
    """What there is once the quarantine has begun."""
    out = {w.pod.name: w for w in verdict.release}
    gone = tuple(replace(w.pod, quarantine=str(w)) for w in verdict.release)
    pods = tuple(p for p in observed.pods if p.name not in out)
    return replace(observed, pods=pods, quarantined=(*observed.quarantined, *gone)) if out else observed


def _marks(observed: Observed, barred: set[str]) -> tuple[tuple[str, str], ...]:
    wanted = [(p, BARRED if p.name in barred else SERVES) for p in observed.ready_pods]
    return tuple((p.name, mark) for p, mark in wanted if p.mark != mark)
