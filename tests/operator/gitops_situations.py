"""Services as GitOps tools see them: bodies with the statuses that `status.render` gives in every situation."""

from typing import Any

from kstatus import Verdict
from operator_builders import body
from test_status import NOW, ROWS, render, scaling_view, view

from pinrail_operator import status
from pinrail_operator.errors import SpecError

Case = tuple[str, dict[str, Any], Verdict]

GENERATION = 3
"""Of every body here."""

_WORDS = {"FFT": Verdict.FAILED, "FTF": Verdict.IN_PROGRESS, "TTF": Verdict.IN_PROGRESS, "TFF": Verdict.CURRENT,
          "FFF": Verdict.IN_PROGRESS, "UFF": Verdict.IN_PROGRESS}  # fmt: skip
"""By the letters of Ready, Reconciling and Stalled, as the table of `test_status` has them."""


def _with(rendered: dict[str, Any], generation: int = GENERATION, **spec: Any) -> dict[str, Any]:
    made = body(rendered, **spec)
    return {**made, "metadata": {**made["metadata"], "generation": generation}}


def _rendered() -> list[Case]:
    """Every row of the status' own table."""
    found = []
    for row in ROWS:
        seen, letters, _ = row.values
        asked = {"paused": seen.service.paused, "suspend": seen.service.suspended}
        found.append((row.id, _with(render(seen), **asked), _WORDS[letters.replace(" ", "")[:3]]))
    return found


def _others() -> list[Case]:
    settled = render(view())
    unread = status.refused(body(), SpecError("spec.replicas", "got -1, want 0 or more"), settled, NOW)
    return [
        ("just created", _with({"observedGeneration": -1}), Verdict.IN_PROGRESS),
        ("settled, and then changed", _with(settled, GENERATION + 1), Verdict.IN_PROGRESS),
        ("stalled, and then mended", _with(unread, GENERATION + 1), Verdict.IN_PROGRESS),
        ("scaled up a moment ago", _with(render(scaling_view(1.0))), Verdict.CURRENT),
        ("a spec that cannot be read", _with(unread), Verdict.FAILED),
    ]


CASES: tuple[Case, ...] = (*_rendered(), *_others())
