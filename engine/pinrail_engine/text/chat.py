"""Messages to prompt text: the only place where a Jinja template runs.

Templates come from the pinned files alone, never from a request. The sandbox stops escapes and long ranges, not long
output, so that is capped here. Same names as transformers gives to templates.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import PromptError, TokenizerError

MAX_RENDERED = 16 * 2**20  # characters

Message = Mapping[str, Any]
"""At least `role` and `content`: text, or None beside `tool_calls`, whose `arguments` are an object."""


class ChatTemplate:
    """A compiled template.

    Args:
        source: Jinja, from the model's pinned files.
        special_tokens: `bos_token` and its like, as the template names them.

    Raises TokenizerError when the source does not compile.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as e:
            raise TokenizerError("chat template", f"does not compile: {e}") from e

    def render(self, messages: Sequence[Message], now: datetime) -> str:
        """The prompt, up to where the answer begins; raises PromptError."""
        names = self._special_tokens | {"strftime_now": lambda form: now.strftime(form)}
        try:
            return _bounded(self._template, {**names, "messages": messages, "add_generation_prompt": True})
        except TemplateError as e:
            raise PromptError(f"messages: the model's chat template refuses them: {str(e)[:200]}") from e
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as e:
            raise PromptError("messages: the model's chat template cannot render them") from e


def _bounded(template: Template, names: Mapping[str, Any]) -> str:
    parts: list[str] = []
    length = 0
    for part in template.generate(names):
        length += len(part)
        if length > MAX_RENDERED:
            raise PromptError(f"messages: rendered to more than {MAX_RENDERED} characters")
        parts.append(part)
    return "".join(parts)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks answers for training; for us it is its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML; models were not trained on that."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
