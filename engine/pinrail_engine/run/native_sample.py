"""Logits to token ids by the CPU kernels; see `sample` for the definition, of which every rule holds. No torch here.

What is decided in Python is what needs no logits: the random number, which stop tokens are too early, and which bad
words would be completed. The rest is `kernels/native/sampling.h`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pinrail_kernels.native import Native
from pinrail_kernels.native_sampling import Choice

from ..core.types import SamplingParams
from .draw import is_adjusted, is_cut, uniform


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row's token is to be chosen."""

    params: SamplingParams
    tokens: NDArray[np.int32]  # [position], contiguous: the sequence so far, the prompt first; -1 counts as 0
    prompt_len: int

    @property
    def position(self) -> int:
        """Of the new token in its sequence."""
        return len(self.tokens)

    @property
    def is_adjusted(self) -> bool:
        return is_adjusted(self.params, self.position - self.prompt_len)

    @property
    def is_cut(self) -> bool:
        return is_cut(self.params)


def sample(native: Native, logits: NDArray[np.float32], draws: Sequence[Draw]) -> NDArray[np.int64]:
    """One token id per row.

    Args:
        logits: [s, vocab], contiguous; not changed.
        draws: One per row.

    Returns:
        [s]. -1 for a row that has, as changed, no finite maximum: a NaN, or no token that is allowed. Other rows are
        not affected.
    """
    return native.sample(logits, [_choice(draw, logits.shape[1]) for draw in draws])


def _choice(draw: Draw, vocab: int) -> Choice:
    params = draw.params
    u = uniform(params.seed, draw.position) if params.temperature > 0 else 0.0
    plain = Choice(params.temperature, params.top_k, params.top_p, params.min_p, u)
    if not draw.is_adjusted:
        return plain
    return plain._replace(
        repetition=params.repetition_penalty,
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
        tokens=draw.tokens,
        prompt_len=draw.prompt_len,
        allowed=_ids(params.allowed_token_ids),
        masked=_ids(masked(draw, vocab)),
        biased=_ids(token for token, _ in params.logit_bias),
        biases=np.fromiter((bias for _, bias in params.logit_bias), np.float32),
    )


def masked(draw: Draw, vocab: int) -> list[int]:
    """Tokens that must not come next: stop tokens before `min_tokens`, and what would complete a bad word.

    As in vLLM, no head of a bad word begins in the prompt.
    """
    params = draw.params
    n_output = draw.position - draw.prompt_len
    stops = params.stop_token_ids if n_output < params.min_tokens else ()
    longest = min(max(map(len, params.bad_words), default=1) - 1, n_output)
    tail = tuple(draw.tokens[draw.position - longest :].clip(min=0).tolist())
    lasts = [
        word[-1]
        for word in params.bad_words
        if len(word) - 1 <= longest and tail[longest + 1 - len(word) :] == word[:-1]
    ]
    return [*(t for t in stops if t < vocab), *lasts]  # stop tokens that the vocabulary has not never come


def _ids(ids: Iterable[int]) -> NDArray[np.int32]:
    return np.fromiter(ids, np.int32)
