"""A request body becomes what the engine is asked, or is refused. Pure: no I/O, no clock; the seed is passed in."""

import math
from dataclasses import dataclass, replace
from enum import Enum

from pinrail_engine.core.types import SamplingParams, Terms
from pinrail_engine.text.errors import PromptError
from pinrail_engine.text.pipeline import TextPipeline

from .body import parse_object
from .errors import BadRequest, NotFound
from .sampling import sampling_params
from .schema import Asked, ChatAsked, CompletionAsked, ignored_fields, parse
from .terms import Caller, terms
from .token_ids import check_ids

_COMPLETION_TOKENS = 16  # OpenAI's default for text completions


class Kind(Enum):
    CHAT = "chat"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, checked: everything that the engine and the answer's form depend on."""

    kind: Kind
    prompt: list[int]
    params: SamplingParams  # of the first choice
    terms: Terms
    choices: int  # answers to make of the one prompt
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool  # in a chunk of its own; streams only
    ignored: tuple[str, ...]  # fields of the body without effect

    def params_of(self, choice: int) -> SamplingParams:
        """Each choice has a seed of its own; the prompt is scored once, with the first."""
        if choice == 0:
            return self.params
        return replace(self.params, seed=(self.params.seed + choice) % 2**63, prompt_logprobs=None)


@dataclass(frozen=True, slots=True)
class Admission:
    model_name: str
    text: TextPipeline
    max_model_len: int  # tokens of prompt and output together
    policy: str  # how the engine's queue is ordered

    def admit(self, kind: Kind, data: bytes, caller: Caller, fresh_seed: int) -> Ask:
        """Raises BadRequest, NotFound.

        Args:
            kind: Which body it is.
            data: The body.
            caller: Of whom it came.
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
            params=sampling_params(asked, self.text, self._max_tokens(asked, len(prompt)), fresh_seed),
            terms=terms(asked, caller, self.policy),
            choices=asked.n or 1,
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
        check_ids(ids, field, self.text.vocab_size)
        return ids

    def _chat_ids(self, asked: ChatAsked) -> list[int]:
        self._check_chars(sum(len(m.content or "") for m in asked.messages), "messages")
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


def unknown_model(name: str) -> NotFound:
    return NotFound(f"The model `{name[:200]}` does not exist.", param="model", code="model_not_found")
