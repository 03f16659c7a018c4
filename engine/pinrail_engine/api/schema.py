"""OpenAI's request bodies: types, bounds and what is refused. Pure.

| field                                   | what happens                                       |
|-----------------------------------------|----------------------------------------------------|
| of the models below                     | checked                                            |
| in `_NEUTRAL`, with a neutral value     | accepted: it asks for what happens anyway          |
| in `_NEUTRAL`, with any other value     | refused: it would change the answer, we cannot yet |
| in `_NO_EFFECT`                         | accepted                                           |
| any other                               | ignored, and named in a response header            |
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    ValidationError,
)

from .errors import BadRequest, from_validation, shown

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "min_p": (0, 0.0),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "prompt_embeds": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
}

_NO_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "parallel_tool_calls",
    }
)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_MAX_NAMED = 16


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class StreamOptions(_Body):
    include_usage: bool | None = None


def _joined(content: Any) -> Any:
    """A list of text parts is their texts in a row."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    if not all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in content):
        raise ValueError("want a string, or parts of type text alone")
    return "".join(part["text"] for part in content)


class Message(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str, BeforeValidator(_joined)]
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        return self.model_dump(exclude_none=True)


def _listed(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


def _prompt(value: Any) -> str | list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(i) is int for i in value)):
        return value
    raise ValueError("want a string, a list of token ids, or a list of exactly one of those")


_StopString = Annotated[str, Field(min_length=1, max_length=1024)]
_TokenId = Annotated[int, Field(ge=0)]


class Asked(_Body):
    """What chat and text completions share."""

    model: str
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[_StopString] | None, FailFast(), Field(max_length=16), BeforeValidator(_listed)] = None
    stop_token_ids: Annotated[list[_TokenId] | None, FailFast(), Field(max_length=128)] = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


AskedT = TypeVar("AskedT", bound=Asked)


class ChatAsked(Asked):
    messages: Annotated[list[Message], FailFast(), Field(min_length=1, max_length=4096)]
    max_completion_tokens: int | None = Field(None, ge=1)


class CompletionAsked(Asked):
    prompt: Annotated[str | list[int], PlainValidator(_prompt)]


def parse(kind: type[AskedT], body: Mapping[str, Any]) -> AskedT:
    """Raises BadRequest."""
    for name, neutral in _NEUTRAL.items():
        _refuse_unless_neutral(name, body.get(name), neutral)
    try:
        asked = kind.model_validate(body)
    except ValidationError as e:
        raise from_validation(e) from None
    if asked.stream_options is not None and not asked.stream:
        raise BadRequest("stream_options: want stream to be true beside it", param="stream_options")
    return asked


def ignored_fields(body: Mapping[str, Any], asked: Asked) -> tuple[str, ...]:
    """Names of the body that mean nothing here, fit for a header: odd names read `?`, long lists are cut."""
    known = {*type(asked).model_fields, *_NEUTRAL, *_NO_EFFECT}
    unknown = sorted(name for name in body if name not in known)
    return tuple(name if _PLAIN_NAME.fullmatch(name) else "?" for name in unknown[:_MAX_NAMED])


def _refuse_unless_neutral(name: str, value: Any, neutral: tuple[Any, ...]) -> None:
    if value is None or any(type(value) is type(n) and value == n for n in neutral):
        return
    wanted = f"want {shown(neutral[0])} or nothing" if neutral else "leave it out"
    raise BadRequest(f"{name}: got {shown(value)}, which is not supported yet; {wanted}", param=name)
