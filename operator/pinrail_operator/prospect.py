"""What the operator will do with a service that is left as it is: its decisions, of what anybody can read. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from .checks import Blocker
from .observed import Observed
from .plan import Plan, plan_for, target_revision
from .quarantine import CLEAR, Verdict, judge
from .rollout import PROCEED, Action, Course, choose
from .runtimes import UNHEARD, Runtimes
from .types import InferenceService

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    plan: Plan  # without what the scaler would write
    revision: str  # that pods will be of: an earlier one than the spec asks for where its roll-out was aborted
    steered: str  # why the roll-out is held or helped along; empty where it goes as the spec says


def prospect(
    service: InferenceService,
    observed: Observed,
    blocker: Blocker | None,
    image: str,
    now: datetime,
    digests: Mapping[str, str] = _NONE,
    runtimes: Runtimes = UNHEARD,
) -> Prospect:
    """The plan with the course and the verdict that the operator comes to.

    Args:
        service: What is asked for.
        observed: What there is.
        blocker: The first check that failed.
        image: The engine's image.
        now: For the grace time of a roll-out that finds no node.
        digests: By pod, what it reported, as far as it was asked; what is barred already says so itself.
        runtimes: By pod, the engine and the numerics that it reported.
    """
    target = target_revision(service, observed, image)
    is_free = blocker is None and not service.paused
    course = choose(service, observed, target, now) if is_free else PROCEED
    said = {p.name: p.verified for p in observed.ready_pods if p.verified} | dict(digests)
    verdict = judge(service, observed, said, target, runtimes)
    plan = plan_for(service, observed, blocker, image, None, course, verdict=verdict, target=target)
    back_to = course.mark.back_to if course.mark is not None and course.action is Action.ABORT else ""
    return Prospect(plan=plan, revision=back_to or target, steered=_steered(course, verdict if is_free else CLEAR))


def _steered(course: Course, verdict: Verdict) -> str:
    if course.action is not Action.PROCEED:
        return course.message
    return f"the roll-out stands still, since {verdict.barred[0]}" if verdict.is_held else ""
