"""Logits to token ids. One uniform number per token, and the inverse of the cumulative distribution.

    token = the first id, in vocabulary order, whose cumulative probability exceeds u(seed, position)

A row's logits are first changed as `penalties` says, then divided by the temperature. Of the tokens, likeliest first
and lower ids first among equals, a head is kept: those that have `min_p` of the likeliest one's probability, `top_k` at
most, and of these, whose probabilities now sum to 1, the fewest that reach `top_p`. (As in vLLM, min_p comes first.)

The number depends on seed and position alone, so a text does not change with what else is in the batch, after
preemption, or when it is asked for again. For that a row's sums must not depend on the order of their terms, which
differs with shapes and threads and, on an accelerator, from run to run: weights are rounded to whole numbers, such that
a row's sum stays below 2**53 and every sum is exact. What this moves is less than what float32 does.

`sample_ref` is the definition. `sample` sorts only tokens that the cut may keep. On an accelerator it sorts them all,
which is quick there; to ask how many they are would be to wait for it. The number itself is `draw.uniform`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..core.types import SamplingParams
from .draw import is_adjusted, is_cut, uniform
from .penalties import adjust, adjust_ref, on_device

_SPAN = 1024  # ids whose weights are summed together
_GROUP = 16  # tokens of which the likeliest one counts, where the k likeliest are looked for
_CACHED = 2**18  # logits that are weighed at a time on a CPU
_COLDEST = 1e-30  # temperature; float32 has nothing to divide by below 1e-45
_SLACK = 0.01  # in the exponent; far more than float32's rounding, and a few more candidates do no harm


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row's token is to be chosen."""

    params: SamplingParams
    tokens: Tensor  # [position] int32, on the device: the sequence so far
    prompt_len: int

    @property
    def position(self) -> int:
        """Of the new token in its sequence."""
        return self.tokens.shape[0]

    @property
    def is_adjusted(self) -> bool:
        return is_adjusted(self.params, self.position - self.prompt_len)

    @property
    def is_cut(self) -> bool:
        return is_cut(self.params)


def sample(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """One token id per row; nothing is read back from an accelerator.

    Args:
        logits: [s, vocab] float32; not changed. Only rows that penalties and the like apply to are copied.
        draws: One per row.

    Returns:
        [s] int64. -1 for a row that has, as changed, no finite maximum: a NaN, or no token that is allowed. Other rows
        are not affected.
    """
    changed = [i for i, draw in enumerate(draws) if draw.is_adjusted]
    tokens = _choose(logits, {i: draw for i, draw in enumerate(draws) if not draw.is_adjusted})
    if changed:
        rows = _index(changed, logits.device)
        copy = logits[rows].clone() if isinstance(rows, slice) else logits[rows]
        for row, i in zip(copy, changed, strict=True):
            adjust(row, draws[i].params, draws[i].tokens, draws[i].prompt_len)
        tokens[rows] = _choose(copy, dict(enumerate(draws[i] for i in changed)))
    return tokens


def sample_ref(logits: Tensor, draw: Draw) -> int:
    """The definition, for one row [vocab]; raises nothing, -1 as in `sample`."""
    p = distribution_ref(logits, draw)
    if p.isnan().any():
        return -1
    cumulative = p.cumsum(0)
    u = uniform(draw.params.seed, draw.position)
    return int(torch.searchsorted(cumulative, cumulative[-1] * u, right=True))


def distribution_ref(logits: Tensor, draw: Draw) -> Tensor:
    """Each token's probability [vocab] in float64, by sorting; NaN for a broken row."""
    params = draw.params
    x = adjust_ref(logits, params, draw.tokens.tolist(), draw.prompt_len)
    order = x.sort(descending=True, stable=True).indices
    x = x - x.max()
    p = torch.zeros_like(x)
    if params.temperature == 0:
        p[order[0]] = 1 + 0 * x.max()
        return p
    weights = (x / params.temperature).exp()[order]
    weights = weights[: params.top_k] if params.top_k else weights
    weights = weights[~(weights < params.min_p)]
    if params.top_p < 1:
        before = weights.cumsum(0) - weights
        weights = weights[~(before >= params.top_p * weights.sum())]
    p[order[: len(weights)]] = weights / weights.sum()
    return p


def _choose(logits: Tensor, draws: Mapping[int, Draw]) -> Tensor:
    """One token id per row [s], -1 where it is broken; rows that are not in `draws` are taken to be greedy."""
    drawn = [i for i, draw in draws.items() if draw.params.temperature > 0]
    if len(drawn) < logits.shape[0]:
        peaks, tokens = _likeliest(logits)
    else:
        peaks, tokens = logits.amax(-1), torch.zeros(len(drawn), dtype=torch.int64, device=logits.device)
    on_cpu = logits.device.type == "cpu"
    alone = [i for i in drawn if on_cpu and draws[i].is_cut]
    for i in alone:
        if math.isfinite(peak := float(peaks[i])):
            tokens[i : i + 1] = _draw_by_candidates(logits[i], peak, draws[i])
    together = [i for i in drawn if i not in set(alone)]
    at_once = max(1, _CACHED // logits.shape[1]) if on_cpu else max(1, len(together))
    for first in range(0, len(together), at_once):
        some = together[first : first + at_once]
        rows = _index(some, logits.device)
        tokens[rows] = _draw(logits[rows], peaks[rows], [draws[i] for i in some])
    return tokens.masked_fill_(~peaks.isfinite(), -1)


def _index(rows: list[int], device: torch.device) -> slice | Tensor:
    """Rising row numbers, as what indexes a tensor; without a copy where they are neighbours."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return on_device(rows, torch.int64, device)


def _likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's maximum [s] and its lowest id [s]: of the spans first, which is several times faster than max(-1)."""
    vocab = logits.shape[1]
    whole = vocab // _SPAN * _SPAN
    maxima = logits[:, :whole].unfold(1, _SPAN, _SPAN).amax(-1) if whole else logits[:, :0]
    if whole < vocab:
        maxima = torch.cat([maxima, logits[:, whole:].amax(-1, keepdim=True)], 1)
    peaks, spans = maxima.max(-1, keepdim=True)
    ids = spans * _SPAN + torch.arange(min(_SPAN, vocab), device=logits.device)
    inside = logits.gather(1, ids.clamp_(max=vocab - 1)).argmax(-1)
    return peaks.squeeze(1), spans.squeeze(1) * _SPAN + inside


def _draw(logits: Tensor, peaks: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Tokens [r] of rows [r, vocab], none of which is greedy."""
    columns = _columns(draws, logits.device)
    rows = weights(logits, peaks, columns[:, 0], unit(logits.shape[1]))
    if any(draw.is_cut for draw in draws):
        rows = _cut(logits, rows, columns, 0.0)
    return _invert(rows, columns[:, 1])


def _draw_by_candidates(logits: Tensor, peak: float, draw: Draw) -> Tensor:
    """The token [1] of one row [vocab] that is cut, on a CPU: as `_draw`, but sorts only what the cut may keep."""
    columns = _columns([draw], logits.device)
    if draw.params.top_k or draw.params.min_p:
        ids, rest = np.flatnonzero(logits.numpy() >= _floor(logits, peak, draw.params)), 0.0
    else:
        ids, rest = _nucleus(logits, peak, draw.params)
    values = logits[torch.from_numpy(ids)][None]
    kept = _cut(values, weights(values, torch.tensor([peak]), columns[:, 0], unit(logits.shape[0])), columns, rest)
    return torch.from_numpy(ids)[_invert(kept, columns[:, 1])]


def _floor(logits: Tensor, peak: float, params: SamplingParams) -> float:
    """A logit below which top_k or min_p keeps nothing that has weight."""
    temperature = max(params.temperature, _COLDEST)
    floor = peak - 40 * temperature  # e**-40 is below half a unit, whatever the vocabulary
    if params.min_p > 0:
        floor = max(floor, peak + temperature * (math.log(params.min_p) - _SLACK))
    if params.top_k:
        floor = max(floor, float(bound(logits, params.top_k)))
    return floor


def bound(logits: Tensor, k: int) -> Tensor:
    """A logit [] that k or more of a row [vocab] reach, and seldom many more; found faster than by topk.

    The least of the k largest among the maxima of groups: each of the k groups has a token that reaches it.
    """
    groups = logits.shape[0] // _GROUP
    if k > groups:
        return logits.topk(min(k, logits.shape[0])).values[-1]
    return logits[: groups * _GROUP].view(_GROUP, groups).amax(0).topk(k).values[-1]


def _nucleus(logits: Tensor, peak: float, params: SamplingParams) -> tuple[NDArray[np.int64], float]:
    """Ids whose weights together reach top_p, and no likelier id is missing; then the weight of the others.

    Tried are those of at least a 64th of what top_p leaves out, then of a 1024th and so on.
    """
    temperature = torch.tensor([max(params.temperature, _COLDEST)])
    row = weights(logits[None], torch.tensor([peak]), temperature, unit(logits.shape[0]))[0].numpy()
    total = float(row.sum(dtype=np.float64))
    least = (1 - params.top_p) * total / 64
    while True:
        ids = np.flatnonzero(row >= least)
        mass = float(row[ids].sum(dtype=np.float64))
        if mass >= params.top_p * total:
            return ids, total - mass
        least /= 16


def _columns(draws: Sequence[Draw], device: torch.device) -> Tensor:
    """[r, 5] float64: temperature, the random number, top_k, top_p, min_p."""
    table = []
    for draw in draws:
        params = draw.params
        u = uniform(params.seed, draw.position)
        top_k = params.top_k or math.inf
        table.append((max(params.temperature, _COLDEST), u, top_k, params.top_p, params.min_p))
    return on_device(table, torch.float64, device)


def unit(vocab: int) -> float:
    """The likeliest token's weight: the largest power of 2 with which a row's weights sum to less than 2**53."""
    return 2.0 ** (53 - vocab.bit_length())


def weights(logits: Tensor, peaks: Tensor, temperatures: Tensor, of_peak: float) -> Tensor:
    """Unnormalised probabilities [r, n], whole numbers in float32; sums of them in float64 are exact.

    Args:
        logits: [r, n] float32.
        peaks: [r] float32, whose weight shall be `of_peak`.
        temperatures: [r], above 1e-45.
        of_peak: As `unit` says.
    """
    rows = (logits - peaks[:, None]).div_(temperatures[:, None].float())
    return rows.exp_().mul_(of_peak).round_()


def _cut(logits: Tensor, rows: Tensor, columns: Tensor, rest: float) -> Tensor:
    """The weights [r, n] with those set to 0 that top_k, top_p or min_p leaves out.

    Args:
        logits: [r, n] float32.
        rows: [r, n], their weights.
        columns: [r, 5], see `_columns`.
        rest: The weight of tokens that are not among the n, but count when top_p is taken.
    """
    top_k, top_p, min_p = columns[:, 2:3], columns[:, 3:4], columns[:, 4:5]
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    falling = rows.gather(1, order).double()
    place = torch.arange(rows.shape[1], device=rows.device)
    falling = falling * ((place < top_k) & (falling >= min_p * falling[:, :1]))
    cumulative = falling.cumsum(1)
    falling = falling * (cumulative - falling < top_p * (cumulative[:, -1:] + rest))
    return torch.zeros_like(rows).scatter_(1, order, falling.float())


def _invert(rows: Tensor, uniforms: Tensor) -> Tensor:
    """The first index [r] whose cumulative weight exceeds u times the row's; sums of spans first, then inside one."""
    width = min(_SPAN, rows.shape[1])
    missing = -rows.shape[1] % width
    spans = (F.pad(rows, (0, missing)) if missing else rows).view(rows.shape[0], -1, width)
    sums = spans.sum(2, dtype=torch.float64)
    cumulative = sums.cumsum(1)
    target = (cumulative[:, -1] * uniforms).floor_()[:, None]  # below the sum, for u is below 1
    span = (cumulative <= target).sum(1, keepdim=True)
    inside = target - (cumulative - sums).gather(1, span)
    chosen = spans.gather(1, span[:, :, None].expand(-1, -1, width)).squeeze(1).double()
    place: Tensor = (chosen.cumsum(1) <= inside).sum(1)
    return span.squeeze(1) * width + place
