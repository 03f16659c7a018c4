"""What choosing a token needs no tensors for: the random number, and which rows are changed or cut.

Shared by `sample`, which works with torch, and `native_sample`, which does not.

Source: the generator is splitmix64, Steele et al. 2014, https://doi.org/10.1145/2660193.2660195, as a counter's hash.
"""

from ..core.types import SamplingParams

_MASK = 2**64 - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that is a function of its arguments, with 53 random bits."""
    return (_mix(_mix(seed & _MASK) + position) >> 11) * 2.0**-53


def is_adjusted(params: SamplingParams, n_output: int) -> bool:
    """Whether penalties and the like change the logits of a request that has `n_output` tokens of output."""
    return bool(
        params.allowed_token_ids
        or (n_output < params.min_tokens and params.stop_token_ids)
        or params.bad_words
        or params.logit_bias
        or params.repetition_penalty != 1
        or (n_output > 0 and (params.frequency_penalty or params.presence_penalty))
    )


def is_cut(params: SamplingParams) -> bool:
    """Whether a token is drawn from a head of the vocabulary alone."""
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
