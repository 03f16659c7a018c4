"""Messages as templates see them: tool calls and their answers are there, and null stays null beside them."""

from datetime import datetime
from typing import Any

import pytest

from pinrail_engine.api.errors import BadRequest
from pinrail_engine.api.messages import Message
from pinrail_engine.api.schema import ChatAsked, parse
from pinrail_engine.text.chat import ChatTemplate

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
SEEN = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
HERMES = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.content is not none %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls %}{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.tool_call_id }}{% endfor %}"
)


def seen(message: dict[str, Any]) -> dict[str, Any]:
    return Message.model_validate(message).for_template()


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        pytest.param({"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}, id="text"),
        pytest.param({"role": "user", "content": None}, {"role": "user", "content": ""}, id="null alone is empty"),
        pytest.param(
            {"role": "user", "content": [{"type": "text", "text": t} for t in "ab"], "name": "Ann"},
            {"role": "user", "content": "a\nb", "name": "Ann"},
            id="parts are lines",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "assistant", "content": None, "tool_calls": [SEEN]},
            id="a call",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "assistant", "content": None, "tool_calls": [SEEN]},
            id="a call without content",
        ),
        pytest.param(
            {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
            {"role": "assistant", "content": "Let me see.", "tool_calls": [SEEN]},
            id="a call with text",
        ),
        pytest.param(
            {"role": "assistant", "content": "no", "tool_calls": []},
            {"role": "assistant", "content": "no"},
            id="no calls are none",
        ),
        pytest.param(
            {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
            {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
            id="the answer to a call",
        ),
    ],
)
def test_for_template(message: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert seen(message) == wanted


def test_empty_arguments_are_none() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": ""}}
    made = seen({"role": "assistant", "content": "", "tool_calls": [call]})
    assert made["tool_calls"] == [{"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}]


def test_a_template_writes_the_call_and_its_answer() -> None:
    messages = [
        seen({"role": "assistant", "tool_calls": [CALL]}),
        seen({"role": "tool", "content": "rain", "tool_call_id": "call_1"}),
    ]
    text = ChatTemplate(HERMES, {}).render(messages, datetime(2026, 1, 1))
    assert text == '[assistant]weather {"city": "Köln"}[tool]raincall_1'


def call(**changes: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **changes}


def calling(calls: Any, role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "content": None, "tool_calls": calls}


REFUSED: dict[str, Any] = {
    "tool calls are no list": calling("x"),
    "too many tool calls": calling([call()] * 129),
    "a tool call is no object": calling([5]),
    "without an id": calling([{"function": {"name": "f", "arguments": "{}"}}]),
    "of another type": calling([call(type="custom")]),
    "without a function": calling([{"id": "a", "type": "function"}]),
    "without a name": calling([call(function={"arguments": "{}"})]),
    "with an empty name": calling([call(function={"name": "", "arguments": "{}"})]),
    "with a long name": calling([call(function={"name": "x" * 257, "arguments": "{}"})]),
    "without arguments": calling([call(function={"name": "f"})]),
    "arguments are no string": calling([call(function={"name": "f", "arguments": {}})]),
    "arguments are no JSON": calling([call(function={"name": "f", "arguments": "{"})]),
    "arguments are no object": calling([call(function={"name": "f", "arguments": "[1]"})]),
    "arguments hold NaN": calling([call(function={"name": "f", "arguments": '{"x": NaN}'})]),
    "arguments hold half a character": calling([call(function={"name": "f", "arguments": '{"x": "\\ud800"}'})]),
    "arguments are nested": calling([call(function={"name": "f", "arguments": '{"x":' * 65 + "1" + "}" * 65})]),
    "a user calls": calling([call()], role="user"),
    "an answer to a call by a user": {"role": "user", "content": "x", "tool_call_id": "call_1"},
    "a long id": {"role": "tool", "content": "x", "tool_call_id": "x" * 257},
    "no content": {"role": "assistant"},
    "no content beside no calls": {"role": "assistant", "tool_calls": []},
}


@pytest.mark.parametrize("message", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(message: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}, message]}
    with pytest.raises(BadRequest, match=r"^messages\.1[^ ]*: (got .*, want .|is required)") as caught:
        parse(ChatAsked, body)
    assert caught.value.param == "messages"
