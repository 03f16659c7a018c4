"""Log-probabilities of tokens, in numpy; see `logprobs` for the definition and the order of equals. No torch here."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.types import TokenLogprobs

_GROUP = 16  # tokens of which the likeliest one counts, where the n likeliest are looked for

Logits = NDArray[np.float32]


def logprobs(logits: Logits, tokens: NDArray[np.int64], wanted: Sequence[int | None]) -> list[TokenLogprobs | None]:
    """One entry per row; None for a row that does not ask, or has no token because it is broken.

    Args:
        logits: [s, vocab], not changed.
        tokens: [s]: the tokens that stand there; -1 where there is none.
        wanted: [s]: how many of the likeliest tokens to tell besides; None for a row that does not ask.
    """
    rows = zip(logits, tokens.tolist(), wanted, strict=True)
    return [_of_row(row, token, n) if n is not None and token >= 0 else None for row, token, n in rows]


def in_chunks(
    rows: NDArray[np.int32],
    head: Callable[[NDArray[np.int32]], Logits],
    tokens: NDArray[np.int32],
    wanted: int,
    chunk: int = 64,
) -> list[TokenLogprobs]:
    """Log-probabilities of a prompt's tokens, with the logits of `chunk` positions in memory at a time, not of all.

    Args:
        rows: [n]: numbers of the rows before the tokens'.
        head: Row numbers [m] -> logits [m, vocab].
        tokens: [n]; ids of the vocabulary.
        wanted: How many of the likeliest tokens to tell with each.
        chunk: Rows given to `head` at once, at most.
    """
    told = []
    for first in range(0, len(rows), chunk):
        logits = head(rows[first : first + chunk])
        ids = tokens[first : first + chunk].tolist()
        told += [_of_row(row, token, wanted) for row, token in zip(logits, ids, strict=True)]
        del logits  # or two chunks' would be there while the next is made
    return told


@np.errstate(invalid="ignore", over="ignore")  # a prompt's row may be broken, which is told as NaN; e to -inf is 0
def _of_row(logits: Logits, token: int, wanted: int) -> TokenLogprobs:
    """Args: logits: [vocab]."""
    peak = logits.max()
    log_sum = np.log(np.exp(logits - peak).sum(dtype=np.float64))  # of exp(x - peak)
    value = logits[token]
    rank = 1 + np.count_nonzero(logits > value) + np.count_nonzero(logits[:token] == value)
    ids = _likeliest(logits, min(wanted, len(logits)))
    values = logits[[token, *ids]].astype(np.float64) - float(peak)
    logprob, *top = (values - log_sum).tolist()
    return TokenLogprobs(logprob, int(rank), tuple(zip(ids, top, strict=True)))


def _likeliest(logits: Logits, n: int) -> list[int]:
    """Ids [n], likeliest first."""
    if n == 0:
        return []
    ids = np.flatnonzero(logits >= bound(logits, n))
    order = np.argsort(-logits[ids], kind="stable")[:n]
    told: list[int] = ids[order].tolist()
    return told


def bound(logits: Logits, k: int) -> np.float32:
    """A logit that k or more of a row [vocab] reach, and seldom many more: see `sample.bound`."""
    groups = len(logits) // _GROUP
    most = logits if k > groups else logits[: groups * _GROUP].reshape(_GROUP, groups).max(0)
    least: np.float32 = np.partition(most, len(most) - k)[len(most) - k]
    return least
