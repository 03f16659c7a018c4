"""The JSON that answers are made of: whole completions, chunks, usage. Pure."""

from dataclasses import dataclass
from typing import Any

from pinrail_engine.text.output import End

from .admission import Kind

_PREFIX = {Kind.CHAT: "chatcmpl", Kind.TEXT: "cmpl"}
_OBJECT = {Kind.CHAT: "chat.completion", Kind.TEXT: "text_completion"}
_CHUNK = {Kind.CHAT: "chat.completion.chunk", Kind.TEXT: "text_completion"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What every chunk of one answer repeats."""

    id: str
    kind: Kind
    model: str
    created: int  # seconds since 1970
    prompt_tokens: int
    include_usage: bool = False


def new_id(kind: Kind, unique: str) -> str:
    return f"{_PREFIX[kind]}-{unique}"


def usage(envelope: Envelope, end: End) -> dict[str, int]:
    return {
        "prompt_tokens": envelope.prompt_tokens,
        "completion_tokens": end.completion_tokens,
        "total_tokens": envelope.prompt_tokens + end.completion_tokens,
    }


def whole(envelope: Envelope, text: str, end: End) -> dict[str, Any]:
    """The answer of a request that did not ask for a stream."""
    content: dict[str, Any] = {"text": text}
    if envelope.kind is Kind.CHAT:
        content = {"message": {"role": "assistant", "content": text, "refusal": None}}
    ended = {"logprobs": None, "finish_reason": str(end.reason), "stop_reason": end.stop}
    return {
        **_head(envelope, _OBJECT),
        "choices": [{"index": 0, **content, **ended}],
        "usage": usage(envelope, end),
    }


def role_chunk(envelope: Envelope) -> dict[str, Any]:
    return _chunk(envelope, {"delta": {"role": "assistant", "content": ""}})


def text_chunk(envelope: Envelope, text: str) -> dict[str, Any]:
    return _chunk(envelope, {"delta": {"content": text}} if envelope.kind is Kind.CHAT else {"text": text})


def finish_chunk(envelope: Envelope, end: End) -> dict[str, Any]:
    """Holds no text: clients drop the delta of a chunk that has a finish_reason."""
    empty: dict[str, Any] = {"delta": {}} if envelope.kind is Kind.CHAT else {"text": ""}
    return _chunk(envelope, empty, finish_reason=str(end.reason), stop_reason=end.stop)


def usage_chunk(envelope: Envelope, end: End) -> dict[str, Any]:
    return {**_head(envelope, _CHUNK), "choices": [], "usage": usage(envelope, end)}


def _head(envelope: Envelope, objects: dict[Kind, str]) -> dict[str, Any]:
    return {
        "id": envelope.id,
        "object": objects[envelope.kind],
        "created": envelope.created,
        "model": envelope.model,
    }


def _chunk(envelope: Envelope, content: dict[str, Any], **ended: Any) -> dict[str, Any]:
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": None, **ended}
    chunk = {**_head(envelope, _CHUNK), "choices": [choice]}
    return {**chunk, "usage": None} if envelope.include_usage else chunk
