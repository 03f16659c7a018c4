"""How long a step takes, learned from the steps that were made. Pure.

    seconds = step + token * tokens + sampled * tokens chosen + read * cache positions read + pair * query-key pairs

Coefficients are never negative, for more work never takes less time, and fit the relative error, so that a short step
counts as much as a long one. Older steps weigh less, so the model follows the machine. Serves the prefill budget, the
simulator and whoever reads the metrics.

Source: non-negative least squares on the normal equations by coordinate descent: Franc et al. 2005,
https://doi.org/10.1007/11556121_50, section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .plan import StepWork

TERMS = ("step", "token", "sampled", "read", "pair")  # in this order everywhere

_SCALE = (1.0, 1e2, 1e1, 1e4, 1e5)  # usual sizes of the terms, so that coefficients are of like size
_KEPT = 0.999  # weight that a step keeps with each newer one: half after 700
_EARLY = 16  # steps each of which counts so much that a fit follows it
_EVERY = 8  # steps between two fits, after those
_SWEEPS = 20
_ENOUGH = 2  # steps before the model is believed: until then it cannot tell a step's own time from its tokens'
_N = len(TERMS)


def _zeros() -> list[float]:
    return [0.0] * _N


@dataclass(slots=True)
class StepTime:
    coefficients: Sequence[float] = field(default_factory=_zeros)  # seconds per unit, in the order of TERMS
    _seen: int = 0  # steps
    _gram: list[list[float]] = field(default_factory=lambda: [_zeros() for _ in range(_N)])
    _moment: list[float] = field(default_factory=_zeros)

    @property
    def is_known(self) -> bool:
        return self._seen >= _ENOUGH or (self._seen == 0 and any(self.coefficients))

    @property
    def by_term(self) -> dict[str, float]:
        """Seconds per unit of each term."""
        return dict(zip(TERMS, self.coefficients, strict=True))

    def predict(self, work: StepWork) -> float:
        """Seconds."""
        step, token, sampled, read, pair = self.coefficients
        return step + token * work[0] + sampled * work[1] + read * work[2] + pair * work[3]

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn from a step. Cost: about 5 microseconds, and 100 every 8 steps."""
        if seconds <= 0:
            return
        inputs = [1.0 / seconds, *(x / scale / seconds for x, scale in zip(work, _SCALE[1:], strict=True))]
        for i, row in enumerate(self._gram):
            x = inputs[i]
            self._moment[i] = self._moment[i] * _KEPT + x
            for j in range(i + 1):
                row[j] = row[j] * _KEPT + x * inputs[j]
        self._seen += 1
        if self._seen <= _EARLY or self._seen % _EVERY == 0:
            self._fit()

    def largest_prefill(self, others: StepWork, context: int, most: int, seconds: float) -> int:
        """How many prompt tokens a step may hold beside `others` so that it takes `seconds`: 0 to `most`.

        Args:
            context: Tokens of the prompt that are computed already.
        """
        low, high = 0, most
        while low < high:
            n = (low + high + 1) // 2
            pairs = n * (2 * context + n + 1) // 2
            work = StepWork(others.tokens + n, others.sampled, others.read + context + n, others.pairs + pairs)
            low, high = (n, high) if self.predict(work) <= seconds else (low, n - 1)
        return low

    def _fit(self) -> None:
        gram = [[self._gram[max(i, j)][min(i, j)] for j in range(_N)] for i in range(_N)]
        x = [c * s for c, s in zip(self.coefficients, _SCALE, strict=True)]
        told = min(self._seen, _N)  # so few steps cannot tell more terms apart, which then keep what they have
        for _ in range(_SWEEPS):
            for i in range(told):
                if gram[i][i] > 0:
                    rest = sum(gram[i][j] * x[j] for j in range(_N)) - gram[i][i] * x[i]
                    x[i] = max(0.0, (self._moment[i] - rest) / gram[i][i])
        self.coefficients = [value / scale for value, scale in zip(x, _SCALE, strict=True)]
