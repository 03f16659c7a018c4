"""Logits to token ids. One uniform number per token, and the inverse of the cumulative distribution.

    token = the first id, in vocabulary order, whose cumulative probability exceeds u(seed, position)

Kept for sampling are the `top_k` likeliest, and of those the fewest whose probabilities, which then sum to 1, reach
`top_p`; among equal logits the lower id counts as likelier. The number depends on seed and position alone, so a text
does not change with what else is in the batch, after preemption, or when it is asked for again.

`sample_ref` is the definition. `sample` does not sort the vocabulary unless more than 1024 tokens are needed to reach
`top_p`, or equal logits stand on either side of a cut.

Source: the generator is splitmix64, Steele et al. 2014, https://doi.org/10.1145/2660193.2660195, as a counter's hash.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.types import SamplingParams

_CANDIDATES = 1024  # tokens among which top_p is looked for first
_SPAN = 1024  # ids whose weights are summed together

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row's token is to be chosen."""

    params: SamplingParams
    position: int  # of the new token in its sequence


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token id per row.

    Args:
        logits: [s, vocab] float32.
        draws: One per row.

    Raises FloatingPointError where a row has no finite maximum, which would be a broken forward pass.

    Cost: greedy rows one pass; others about three passes over [vocab] each, row by row, so that no row's sum depends
    on its neighbours.
    """
    if not draws:
        return []
    peaks, greedy = logits.max(-1)
    if not bool(peaks.isfinite().all()):
        raise FloatingPointError("a row of logits has no finite maximum")
    chosen: list[int] = greedy.tolist()
    for i, draw in enumerate(draws):
        if draw.params.temperature > 0:
            chosen[i] = _choose(logits[i], draw)
    return chosen


def sample_ref(logits: Tensor, draw: Draw) -> int:
    """The definition, for one row [vocab], in float64 and by sorting."""
    if draw.params.temperature == 0:
        return int(logits.argmax())
    ids, weights = _keep_by_sorting(logits, draw.params)
    return int(ids[_invert(weights, uniform(draw.params.seed, draw.position))])


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that is a function of its arguments, with 53 random bits."""
    return (_mix(_mix(seed & _MASK) + position) >> 11) * 2.0**-53


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _choose(logits: Tensor, draw: Draw) -> int:
    u = uniform(draw.params.seed, draw.position)
    if draw.params.top_k == 0 and draw.params.top_p >= 1:
        return _invert_whole(((logits - logits.max()) / draw.params.temperature).exp(), u)
    kept = _keep_by_candidates(logits, draw.params)
    ids, weights = _keep_by_sorting(logits, draw.params) if kept is None else kept
    return int(ids[_invert(weights, u)])


def _keep_by_sorting(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Ids that are kept, ascending, and their weights, which need not sum to 1."""
    order = logits.sort(descending=True, stable=True).indices
    if params.top_k:
        order = order[: params.top_k]
    weights = _weights(logits[order], params.temperature)
    return _cut(order, weights, float(weights.sum()), params.top_p)


def _keep_by_candidates(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor] | None:
    """As `_keep_by_sorting`, from the likeliest tokens alone; None where those do not settle it."""
    k = min(params.top_k or _CANDIDATES, logits.shape[0])
    values, ids = logits.topk(k)
    if int((logits >= values[-1]).sum()) > k:
        return None  # equal logits on either side: topk does not say which it took
    ids = ids.sort().values
    ids = ids[logits[ids].sort(descending=True, stable=True).indices]
    weights = _weights(logits[ids], params.temperature)
    total = float(weights.sum())
    if not params.top_k:
        total = float(((logits - values[0]) / params.temperature).exp().sum(dtype=torch.float64))
        if float(weights.sum()) < params.top_p * total:
            return None
    return _cut(ids, weights, total, params.top_p)


def _weights(values: Tensor, temperature: float) -> Tensor:
    """Unnormalised probabilities in float64 of logits in falling order."""
    values = values.double()
    return ((values - values[0]) / temperature).exp()


def _cut(ids: Tensor, weights: Tensor, total: float, top_p: float) -> tuple[Tensor, Tensor]:
    """The shortest head of a list, in falling order, that reaches `top_p` of `total`; then in order of id."""
    if top_p < 1:
        before = weights.cumsum(0) - weights
        n = max(1, int((before < top_p * total).sum()))
        ids, weights = ids[:n], weights[:n]
    ids, order = ids.sort()
    return ids, weights[order]


def _invert(weights: Tensor, u: float) -> int:
    """The first index whose cumulative weight exceeds u times the total; its own weight is above 0."""
    cumulative = weights.cumsum(0, dtype=torch.float64)
    return int(torch.searchsorted(cumulative, cumulative[-1] * u, right=True))


def _invert_whole(weights: Tensor, u: float) -> int:
    """As `_invert`, in two levels: sums of spans first, then inside one span."""
    spans = F.pad(weights, (0, -weights.shape[0] % _SPAN)).view(-1, _SPAN)
    sums = spans.sum(1, dtype=torch.float64)
    cumulative = sums.cumsum(0)
    target = float(cumulative[-1]) * u
    span = int(torch.searchsorted(cumulative, target, right=True))
    inside = (target - float(cumulative[span] - sums[span])) / float(sums[span])
    return span * _SPAN + _invert(spans[span], min(max(inside, 0.0), 1 - 2.0**-53))
