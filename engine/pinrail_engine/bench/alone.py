"""How long a request would take on an idle engine without cache: what slowdown is measured against. Pure."""

from collections.abc import Sequence

from ..core.plan import StepWork
from ..core.step_time import StepTime
from .records import Record
from .workload import Job


def prefill_seconds(step_time: StepTime, prompt_len: int, most: int) -> float:
    """Args: most: tokens in one step."""
    seconds = 0.0
    for start in range(0, prompt_len, most):
        n = min(most, prompt_len - start)
        end = start + n
        pairs = n * (start + end + 1) // 2 if n > 1 else 0
        seconds += step_time.predict(StepWork(n, int(end == prompt_len), end, pairs))
    return seconds


def predicted(step_time: StepTime, job: Job, most: int) -> float:
    """Seconds, from the model of step times."""
    prompt, steps = job.prompt_len, job.output_len - 1
    read = steps * prompt + steps * (steps + 1) // 2
    decode = StepWork(1, 1, 0, 0)
    pieces = steps * step_time.predict(decode) + step_time.coefficients[3] * read
    return prefill_seconds(step_time, prompt, most) + pieces


class Rates:
    """Seconds per token of prompt and of output, from requests that were made one at a time.

    What a request costs besides its tokens counts as the prompt's.
    """

    def __init__(self, warm_up: Sequence[Record]) -> None:
        told = [r for r in warm_up if r.ttft is not None]
        self._prompt = sum(r.ttft or 0.0 for r in told) / max(1, sum(r.prompt_len for r in told))
        later = [tpot for r in told if (tpot := r.tpot) is not None]
        self._output = sum(later) / max(1, len(later))

    def alone(self, job: Job) -> float | None:
        """Seconds; None where nothing was measured."""
        return self._prompt * job.prompt_len + self._output * (job.output_len - 1) or None
