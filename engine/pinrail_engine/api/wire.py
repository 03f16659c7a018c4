"""The JSON that answers are made of: whole completions, chunks, usage. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pinrail_engine.core.types import TokenLogprobs
from pinrail_engine.text.output import End, Piece, ScoredToken

from . import logprobs
from .admission import Kind

_PREFIX = {Kind.CHAT: "chatcmpl", Kind.TEXT: "cmpl"}
_OBJECT = {Kind.CHAT: "chat.completion", Kind.TEXT: "text_completion"}
_CHUNK = {Kind.CHAT: "chat.completion.chunk", Kind.TEXT: "text_completion"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What every chunk of one answer depends on."""

    id: str
    kind: Kind
    model: str
    created: int  # seconds since 1970
    prompt: Sequence[int]
    token_of: logprobs.TokenOf
    include_usage: bool = False
    prompt_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole answer."""

    text: str
    end: End
    scores: tuple[ScoredToken, ...] = ()
    prompt_scores: tuple[TokenLogprobs, ...] = ()

    @staticmethod
    def of(pieces: Sequence[Piece], end: End) -> "Choice":
        return Choice(
            "".join(piece.text for piece in pieces),
            end,
            tuple(score for piece in pieces for score in piece.scores),
            tuple(score for piece in pieces for score in piece.prompt_scores),
        )


def new_id(kind: Kind, unique: str) -> str:
    return f"{_PREFIX[kind]}-{unique}"


def usage(envelope: Envelope, ends: Sequence[End]) -> dict[str, Any]:
    """The prompt counts once, and what of it was cached is as the first choice found it."""
    prompt, completion = len(envelope.prompt), sum(end.completion_tokens for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": ends[0].cached_tokens},
    }


def whole(envelope: Envelope, choices: Sequence[Choice]) -> dict[str, Any]:
    """The answer of a request that did not ask for a stream."""
    answer: dict[str, Any] = {
        **_head(envelope, _OBJECT),
        "choices": [_whole_choice(envelope, i, choice) for i, choice in enumerate(choices)],
        "usage": usage(envelope, [choice.end for choice in choices]),
    }
    if envelope.prompt_logprobs:
        holder = answer if envelope.kind is Kind.CHAT else answer["choices"][0]  # as in vLLM, but only once
        holder["prompt_logprobs"] = logprobs.of_prompt(envelope.prompt, choices[0].prompt_scores, envelope.token_of)
    return answer


def _whole_choice(envelope: Envelope, index: int, choice: Choice) -> dict[str, Any]:
    content: dict[str, Any] = {"text": choice.text}
    if envelope.kind is Kind.CHAT:
        content = {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
    return {
        "index": index,
        **content,
        "logprobs": _logprobs(envelope, choice.scores),
        "finish_reason": str(choice.end.reason),
        "stop_reason": choice.end.stop,
    }


def role_chunk(envelope: Envelope, index: int) -> dict[str, Any]:
    return _chunk(envelope, index, {"delta": {"role": "assistant", "content": ""}})


def text_chunk(envelope: Envelope, index: int, piece: Piece) -> dict[str, Any]:
    content = {"delta": {"content": piece.text}} if envelope.kind is Kind.CHAT else {"text": piece.text}
    return _chunk(envelope, index, content, piece.scores)


def finish_chunk(envelope: Envelope, index: int, end: End, scores: Sequence[ScoredToken]) -> dict[str, Any]:
    """Holds no text: clients drop the delta of a chunk that has a finish_reason."""
    empty: dict[str, Any] = {"delta": {}} if envelope.kind is Kind.CHAT else {"text": ""}
    return _chunk(envelope, index, empty, scores, finish_reason=str(end.reason), stop_reason=end.stop)


def usage_chunk(envelope: Envelope, ends: Sequence[End]) -> dict[str, Any]:
    return {**_head(envelope, _CHUNK), "choices": [], "usage": usage(envelope, ends)}


def _head(envelope: Envelope, objects: dict[Kind, str]) -> dict[str, Any]:
    return {
        "id": envelope.id,
        "object": objects[envelope.kind],
        "created": envelope.created,
        "model": envelope.model,
    }


def _chunk(
    envelope: Envelope, index: int, content: dict[str, Any], scores: Sequence[ScoredToken] = (), **ended: Any
) -> dict[str, Any]:
    choice = {"index": index, **content, "logprobs": _logprobs(envelope, scores), "finish_reason": None, **ended}
    chunk = {**_head(envelope, _CHUNK), "choices": [choice]}
    return {**chunk, "usage": None} if envelope.include_usage else chunk


def _logprobs(envelope: Envelope, scores: Sequence[ScoredToken]) -> dict[str, Any] | None:
    """None where there are none: an answer for which they were asked has some."""
    if not scores:
        return None
    form = logprobs.of_chat if envelope.kind is Kind.CHAT else logprobs.of_text
    return form(scores, envelope.token_of)
