"""How a request's tokens are to be chosen: what it says, what the model says, or OpenAI's default. Pure."""

from typing import TypeVar

from pinrail_engine.core.types import SamplingParams
from pinrail_engine.text.pipeline import TextPipeline

from .errors import BadRequest
from .schema import Asked
from .token_ids import check_ids

_GREEDY_BELOW = 1e-5  # vLLM's bounds: colder than this is greedy,
_COLDEST = 0.01  # and no division by less than this

T = TypeVar("T")


def sampling_params(asked: Asked, text: TextPipeline, max_tokens: int, fresh_seed: int) -> SamplingParams:
    """Raises BadRequest.

    Args:
        asked: Each field within its own bounds.
        text: Knows the vocabulary and the model's generation_config.json.
        max_tokens: As it will hold.
        fresh_seed: Taken where the request names no seed.
    """
    _check_vocabulary(asked, text.vocab_size)
    defaults = text.defaults
    stop_ids = frozenset(asked.stop_token_ids or ())
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=asked.min_tokens or 0,
        temperature=_tempered(_or(asked.temperature, defaults.temperature)),
        top_k=min(max(_or(asked.top_k, defaults.top_k), 0), text.vocab_size),
        top_p=_or(asked.top_p, defaults.top_p),
        min_p=_or(asked.min_p, defaults.min_p),
        repetition_penalty=_or(asked.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        logit_bias=tuple(sorted((asked.logit_bias or {}).items())),
        bad_words=text.bad_words(asked.bad_words or ()),
        allowed_token_ids=tuple(sorted(set(asked.allowed_token_ids or ()))),
        seed=_or(asked.seed, fresh_seed) % 2**63,  # non-negative, whatever the sampler's integers are
        stop_token_ids=stop_ids if asked.ignore_eos else stop_ids | text.eos_token_ids,
        logprobs=asked.told_tokens,
        prompt_logprobs=asked.prompt_logprobs,
    )
    _check_together(asked.n or 1, params)
    return params


def _check_vocabulary(asked: Asked, vocab_size: int) -> None:
    check_ids(asked.stop_token_ids or (), "stop_token_ids", vocab_size)
    check_ids(asked.allowed_token_ids or (), "allowed_token_ids", vocab_size)
    check_ids(asked.logit_bias or (), "logit_bias", vocab_size)


def _check_together(n: int, params: SamplingParams) -> None:
    """| field             | is refused                                      |
    |-------------------|-------------------------------------------------|
    | n                 | above 1 with greedy sampling: all are the same  |
    | min_tokens        | above max_tokens                                |
    | allowed_token_ids | where every one of them is forbidden by another |
    """
    if n > 1 and params.temperature == 0:
        raise BadRequest(f"n: got {n}, want 1 with greedy sampling (temperature 0)", param="n")
    if params.min_tokens > params.max_tokens:
        wanted = f"want 0 to {params.max_tokens}, which is max_tokens"
        raise BadRequest(f"min_tokens: got {params.min_tokens}, {wanted}", param="min_tokens")
    forbidden = {word[0] for word in params.bad_words if len(word) == 1}
    if params.min_tokens:
        forbidden |= params.stop_token_ids
    if params.allowed_token_ids and forbidden.issuperset(params.allowed_token_ids):
        wanted = "want one that neither bad_words nor min_tokens forbids"
        raise BadRequest(f"allowed_token_ids: got no such id, {wanted}", param="allowed_token_ids")


def _or(asked: T | None, default: T) -> T:
    return default if asked is None else asked


def _tempered(temperature: float) -> float:
    return 0.0 if temperature < _GREEDY_BELOW else max(temperature, _COLDEST)
