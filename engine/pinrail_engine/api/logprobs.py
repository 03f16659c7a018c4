"""Log-probabilities as OpenAI's and vLLM's answers show them. Pure.

JSON has no -Infinity: it reads -9999.0.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pinrail_engine.core.types import TokenLogprobs
from pinrail_engine.text.output import ScoredToken
from pinrail_engine.text.pipeline import Token

TokenOf = Callable[[int], Token]
_LOWEST = -9999.0


def of_chat(scores: Sequence[ScoredToken], token_of: TokenOf) -> dict[str, Any]:
    content = [
        {
            **_entry(token_of(score.token_id), score.logprobs.logprob),
            "top_logprobs": [_entry(token_of(top_id), logprob) for top_id, logprob in score.logprobs.top],
        }
        for score in scores
    ]
    return {"content": content, "refusal": None}


def _entry(token: Token, logprob: float) -> dict[str, Any]:
    return {"token": token.text, "logprob": _finite(logprob), "bytes": list(token.data)}


def of_text(scores: Sequence[ScoredToken], token_of: TokenOf) -> dict[str, Any]:
    """`text_offset` counts characters of the answer; a token inside a character has the offset of that character."""
    return {
        "tokens": [token_of(score.token_id).text for score in scores],
        "token_logprobs": [_finite(score.logprobs.logprob) for score in scores],
        "top_logprobs": [_by_text(score, token_of) for score in scores],
        "text_offset": [score.offset for score in scores],
    }


def _by_text(score: ScoredToken, token_of: TokenOf) -> dict[str, float]:
    """The chosen token first, as one of up to `logprobs` + 1; of tokens with one text, the first is kept."""
    found: dict[str, float] = {}
    for token_id, logprob in ((score.token_id, score.logprobs.logprob), *score.logprobs.top):
        found.setdefault(token_of(token_id).text, _finite(logprob))
    return found


def of_prompt(prompt: Sequence[int], scores: Sequence[TokenLogprobs], token_of: TokenOf) -> list[Any]:
    """vLLM's form: by token id, the prompt's own token first; null for the first token, which nothing predicts."""
    return [None, *(_by_id(i, score, token_of) for i, score in zip(prompt[1:], scores, strict=True))]


def _by_id(token_id: int, score: TokenLogprobs, token_of: TokenOf) -> dict[str, Any]:
    ranked = [(token_id, score.logprob, score.rank)]
    ranked += [(top_id, logprob, rank) for rank, (top_id, logprob) in enumerate(score.top, 1) if top_id != token_id]
    return {
        str(i): {"logprob": _finite(logprob), "rank": rank, "decoded_token": token_of(i).text}
        for i, logprob, rank in ranked
    }


def _finite(logprob: float) -> float:
    return max(_LOWEST, logprob)
