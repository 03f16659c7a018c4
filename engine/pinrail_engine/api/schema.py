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
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, FailFast, Field, PlainValidator, ValidationError

from .errors import BadRequest, from_validation, shown
from .messages import Body, Message

MAX_LOGPROBS = 20  # likeliest tokens that an answer tells with each token
_MAX_BIASES = 1024

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
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
_TOKEN_KEY = re.compile(r"-?[0-9]{1,18}")
_SALT = re.compile(r"[^@/\\\0]{1,128}")


class StreamOptions(Body):
    include_usage: bool | None = None


def _listed(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


def _prompt(value: Any) -> str | list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(i) is int for i in value)):
        return value
    raise ValueError("a string, a list of token ids, or a list of exactly one of those")


def _biases(value: Any) -> dict[int, float] | None:
    """Token ids to numbers, which are cut to [-100, 100]."""
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _MAX_BIASES:
        raise ValueError(f"an object of at most {_MAX_BIASES} token ids and numbers")
    return {_token_key(key): _bias(bias) for key, bias in value.items()}


def _token_key(key: str) -> int:
    if not _TOKEN_KEY.fullmatch(key):
        raise ValueError(f"token ids as keys, not {shown(key)}")
    return int(key)


def _bias(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"numbers as values, not {shown(value)}")
    return float(min(max(value, -100), 100))


def _salt(value: str | None) -> str | None:
    if value is not None and not _SALT.fullmatch(value):
        raise ValueError("1 to 128 characters without @, /, \\ and NUL")
    return value


_StopString = Annotated[str, Field(min_length=1, max_length=1024)]
_BadWord = Annotated[str, Field(min_length=1, max_length=256)]
_TokenId = Annotated[int, Field(ge=0)]


class _Shared(Body):
    """What chat and text completions have in common."""

    model: str
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    logit_bias: Annotated[dict[int, float] | None, PlainValidator(_biases)] = None
    allowed_token_ids: Annotated[list[_TokenId] | None, FailFast(), Field(min_length=1)] = None
    bad_words: Annotated[list[_BadWord] | None, FailFast(), Field(max_length=128)] = None
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int | None = Field(None, ge=0)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    n: int | None = Field(None, ge=1, le=128)
    best_of: int | None = Field(None, ge=1, le=128)
    stop: Annotated[list[_StopString] | None, FailFast(), Field(max_length=16), BeforeValidator(_listed)] = None
    stop_token_ids: Annotated[list[_TokenId] | None, FailFast(), Field(max_length=128)] = None
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    cache_salt: Annotated[str | None, AfterValidator(_salt)] = None
    priority: int | None = Field(None, ge=-(2**63), lt=2**63)
    deadline: float | None = Field(None, gt=0, le=86400)  # ours; seconds

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatAsked(_Shared):
    messages: Annotated[list[Message], FailFast(), Field(min_length=1, max_length=4096)]
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def told_tokens(self) -> int | None:
        """Likeliest tokens to tell with each token; None where no log-probabilities are asked for."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionAsked(_Shared):
    prompt: Annotated[str | list[int], PlainValidator(_prompt)]
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def told_tokens(self) -> int | None:
        """As above."""
        return self.logprobs


Asked = ChatAsked | CompletionAsked
AskedT = TypeVar("AskedT", ChatAsked, CompletionAsked)


def parse(kind: type[AskedT], body: Mapping[str, Any]) -> AskedT:
    """Raises BadRequest."""
    for name, neutral in _NEUTRAL.items():
        _refuse_unless_neutral(name, body.get(name), neutral)
    try:
        asked = kind.model_validate(body)
    except ValidationError as e:
        raise from_validation(e) from None
    _check_together(asked)
    return asked


def _check_together(asked: Asked) -> None:
    """| field           | is refused                                   |
    |-----------------|----------------------------------------------|
    | stream_options  | without stream                               |
    | prompt_logprobs | with stream                                  |
    | top_logprobs    | above 0 without logprobs                     |
    | best_of         | other than 1 and n: we do not choose for you |
    """
    if asked.stream_options is not None and not asked.stream:
        raise BadRequest("stream_options: got it without stream, want stream to be true", param="stream_options")
    if asked.prompt_logprobs is not None and asked.stream:
        raise BadRequest("prompt_logprobs: got it with stream, want stream to be false", param="prompt_logprobs")
    if isinstance(asked, ChatAsked) and asked.top_logprobs and not asked.logprobs:
        raise BadRequest(f"top_logprobs: got {asked.top_logprobs}, want logprobs to be true", param="top_logprobs")
    if asked.best_of not in (None, 1, asked.n):
        raise BadRequest(f"best_of: got {asked.best_of}, want n ({asked.n or 1}) or nothing", param="best_of")


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
