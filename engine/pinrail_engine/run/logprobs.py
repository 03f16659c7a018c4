"""Log-probabilities of tokens: of the logits as the model gave them, before penalties and temperature.

    logprob(t) = x(t) - log sum over v of exp x(v)

Only for rows that ask, in float64 from float32 logits. Likelier is what has the larger logit or, among equals, the
lower id; `top` is in this order and `rank` a token's place in it: a greedy token has rank 1, and top[rank - 1] is the
token wherever top is that long. The results are Python's numbers: to build them is to wait for the device.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..core.types import TokenLogprobs
from .sample import bound, unit, weights


def logprobs(logits: Tensor, tokens: Tensor, wanted: Sequence[int | None]) -> list[TokenLogprobs | None]:
    """One entry per row; None for a row that does not ask, or has no token because it is broken.

    Args:
        logits: [s, vocab] float32, not changed.
        tokens: [s], same device: the tokens that stand there; -1 where there is none.
        wanted: [s]: how many of the likeliest tokens to tell besides; None for a row that does not ask.
    """
    told: list[TokenLogprobs | None] = [None] * len(wanted)
    if all(n is None for n in wanted):
        return told
    for i, token in enumerate(tokens.tolist()):
        if (n := wanted[i]) is not None and token >= 0:
            told[i] = _of_row(logits[i], token, n)
    return told


def in_chunks(
    rows: Tensor, head: Callable[[Tensor], Tensor], tokens: Tensor, wanted: int, chunk: int = 64
) -> list[TokenLogprobs]:
    """Log-probabilities of a prompt's tokens, with the logits of `chunk` positions in memory at a time, not of all.

    Args:
        rows: [n, hidden]: what the last layer gave at the positions before the tokens'.
        head: [m, hidden] -> logits [m, vocab] float32.
        tokens: [n], same device; ids of the vocabulary.
        wanted: How many of the likeliest tokens to tell with each.
        chunk: Rows given to `head` at once, at most.
    """
    told = []
    for first in range(0, rows.shape[0], chunk):
        logits = head(rows[first : first + chunk])
        ids = tokens[first : first + chunk].tolist()
        told += [_of_row(row, token, wanted) for row, token in zip(logits, ids, strict=True)]
        del logits  # or two chunks' would be there while the next is made
    return told


def _of_row(logits: Tensor, token: int, wanted: int) -> TokenLogprobs:
    """Args: logits: [vocab] float32."""
    peak = logits.amax(-1, keepdim=True)
    of_peak = unit(logits.shape[0])
    row = weights(logits[None], peak, torch.ones_like(peak), of_peak)  # whole numbers: their sum knows no order
    log_sum = (row.sum(1, dtype=torch.float64) / of_peak).log()  # of exp(x - peak)
    value = float(logits[token])
    rank = 1 + int((logits > value).count_nonzero() + (logits[:token] == value).count_nonzero())
    ids = _likeliest(logits, min(wanted, logits.shape[0]))
    values = torch.cat([logits[token, None], logits[ids]]).double() - peak.double()
    logprob, *top = (values - log_sum).tolist()
    return TokenLogprobs(logprob, rank, tuple(zip(ids.tolist(), top, strict=True)))


def _likeliest(logits: Tensor, n: int) -> Tensor:
    """Ids [n], likeliest first."""
    if n == 0:
        return torch.zeros(0, dtype=torch.int64, device=logits.device)
    ids = (logits >= bound(logits, n)).nonzero().squeeze(1)
    return ids[logits[ids].sort(descending=True, stable=True).indices[:n]]
