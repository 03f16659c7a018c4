"""A conversation's messages: what each role may hold, and how templates get to see it. Pure."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator

from .body import parse_object
from .errors import BadRequest


class Body(BaseModel):
    """Base of all that a body holds."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


def _joined(content: Any) -> Any:
    """Text parts stand on lines of their own, as vLLM puts them; most templates take one string alone."""
    if not isinstance(content, list):
        return content
    if not all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in content):
        raise ValueError("a string, or parts of type text alone")
    return "\n".join(part["text"] for part in content)


def _arguments(value: Any) -> dict[str, Any]:
    """OpenAI sends JSON in a string; templates are written for the object in it. An empty string is no arguments."""
    if not isinstance(value, str):
        raise ValueError("a JSON object in a string")
    try:
        return parse_object(value.encode() or b"{}")
    except BadRequest as e:
        raise ValueError("a JSON object in a string") from e


_Name = Annotated[str, Field(min_length=1, max_length=256)]


class _Function(Body):
    name: _Name
    arguments: Annotated[dict[str, Any], BeforeValidator(_arguments)]


class _ToolCall(Body):
    id: _Name
    type: Literal["function"] = "function"
    function: _Function


class Message(Body):
    """| field          | of                | may be left out                |
    |----------------|-------------------|--------------------------------|
    | content        | every role        | beside tool_calls              |
    | tool_calls     | assistant         | yes                            |
    | tool_call_id   | tool              | yes                            |
    | name           | every role        | yes                            |

    Content that is null reads as "", but beside tool calls, where templates tell null from "".
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | None, BeforeValidator(_joined)] = None
    name: str | None = None
    tool_calls: Annotated[list[_ToolCall] | None, FailFast(), Field(max_length=128)] = None
    tool_call_id: Annotated[str | None, Field(max_length=256)] = None

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls in messages of role assistant alone")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("tool_call_id in messages of role tool alone")
        if not self.tool_calls and "content" not in self.model_fields_set:
            raise ValueError("content in it")
        return self

    def for_template(self) -> dict[str, Any]:
        others = self.model_dump(exclude={"content"}, exclude_none=True)
        if not self.tool_calls:
            others.pop("tool_calls", None)
        return {**others, "content": self.content if self.tool_calls else self.content or ""}
