"""A request body becomes what the engine is asked, or is refused. Pure: no I/O, no clock; the seed is passed in."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from pinrail_engine.core.types import SamplingParams
from pinrail_engine.text.errors import PromptError
from pinrail_engine.text.pipeline import TextPipeline

from .body import parse_object
from .errors import BadRequest, NotFound, shown
from .schema import ChatAsked, CompletionAsked, ignored_fields, parse

_COMPLETION_TOKENS = 16  # OpenAI's default for text completions
_GREEDY_BELOW = 1e-5  # vLLM's bounds: colder than this is greedy,
_COLDEST = 0.01  # and no division by less than this


T = TypeVar("T")
Asked = ChatAsked | CompletionAsked


class Kind(Enum):
    CHAT = "chat"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, checked: everything that the engine and the answer's form depend on."""

    kind: Kind
    prompt: list[int]
    params: SamplingParams
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool  # in a chunk of its own; streams only
    ignored: tuple[str, ...]  # fields of the body without effect


@dataclass(frozen=True, slots=True)
class Admission:
    model_name: str
    text: TextPipeline
    max_model_len: int  # tokens of prompt and output together

    def admit(self, kind: Kind, data: bytes, fresh_seed: int) -> Ask:
        """Raises BadRequest, NotFound.

        Args:
            kind: Which body it is.
            data: The body.
            fresh_seed: Taken where the request names no seed.
        """
        body = parse_object(data)
        asked: Asked = parse(ChatAsked, body) if kind is Kind.CHAT else parse(CompletionAsked, body)
        if asked.model != self.model_name:
            raise unknown_model(asked.model)
        prompt = self._prompt_ids(asked)
        return Ask(
            kind=kind,
            prompt=prompt,
            params=self._params(asked, self._max_tokens(asked, len(prompt)), fresh_seed),
            stops=tuple(asked.stop or ()),
            stream=bool(asked.stream),
            include_usage=asked.include_usage,
            ignored=ignored_fields(body, asked),
        )

    def _prompt_ids(self, asked: Asked) -> list[int]:
        if isinstance(asked, ChatAsked):
            ids, field = self._chat_ids(asked), "messages"
        else:
            ids, field = self._raw_ids(asked.prompt), "prompt"
        if not ids:
            raise BadRequest(f"{field}: has no tokens, want at least one", param=field)
        if len(ids) >= self.max_model_len:
            raise self._too_long(f"{len(ids)} input tokens", field)
        self._check_ids(ids, field)
        return ids

    def _chat_ids(self, asked: ChatAsked) -> list[int]:
        self._check_chars(sum(len(m.content) for m in asked.messages), "messages")
        try:
            text = self.text.render([m.for_template() for m in asked.messages])
        except PromptError as e:
            raise BadRequest(str(e), param="messages") from e
        self._check_chars(len(text), "messages")
        return self.text.encode_rendered(text)

    def _raw_ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        self._check_chars(len(prompt), "prompt")
        return self.text.encode(prompt)

    def _check_chars(self, length: int, field: str) -> None:
        """Cheap, before any tokenising: a text of so many characters cannot have few enough tokens."""
        if length < self.max_model_len:
            return
        at_least = math.ceil(length / self.text.max_token_chars)
        if at_least >= self.max_model_len:
            raise self._too_long(f"at least {at_least} input tokens", field)

    def _too_long(self, seen: str, field: str) -> BadRequest:
        return BadRequest(
            f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt contains {seen} "
            "and the output needs at least one. Please reduce the length of the input.",
            param=field,
            code="context_length_exceeded",
        )

    def _check_ids(self, ids: Sequence[int], field: str) -> None:
        last = self.text.vocab_size - 1
        if ids and (min(ids) < 0 or max(ids) > last):
            wrong = next(i for i in ids if not 0 <= i <= last)
            raise BadRequest(f"{field}: got token id {shown(wrong)}, want 0 to {last}", param=field)

    def _max_tokens(self, asked: Asked, prompt_tokens: int) -> int:
        room = self.max_model_len - prompt_tokens
        if isinstance(asked, ChatAsked):
            wanted, default = asked.max_completion_tokens or asked.max_tokens, room
        else:
            wanted, default = asked.max_tokens, min(_COMPLETION_TOKENS, room)
        if wanted is not None and wanted > room:
            raise BadRequest(
                f"max_tokens: got {wanted}, want at most {room}: this model's maximum context length is "
                f"{self.max_model_len} tokens and your prompt contains {prompt_tokens} input tokens.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return wanted or default

    def _params(self, asked: Asked, max_tokens: int, fresh_seed: int) -> SamplingParams:
        """Where the request says nothing: the model's generation_config.json, then OpenAI's default."""
        defaults = self.text.defaults
        self._check_ids(asked.stop_token_ids or (), "stop_token_ids")
        stop_ids = frozenset(asked.stop_token_ids or ())
        top_k = _or(asked.top_k, defaults.top_k)
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=_tempered(_or(asked.temperature, defaults.temperature)),
            top_k=min(max(top_k, 0), self.text.vocab_size),
            top_p=_or(asked.top_p, defaults.top_p),
            seed=_or(asked.seed, fresh_seed) % 2**63,  # non-negative, whatever the sampler's integers are
            stop_token_ids=stop_ids if asked.ignore_eos else stop_ids | self.text.eos_token_ids,
        )


def unknown_model(name: str) -> NotFound:
    return NotFound(f"The model `{name[:200]}` does not exist.", param="model", code="model_not_found")


def _or(asked: T | None, default: T) -> T:
    return default if asked is None else asked


def _tempered(temperature: float) -> float:
    return 0.0 if temperature < _GREEDY_BELOW else max(temperature, _COLDEST)
