"""The template sandbox: what a template may do, what it may not, and who is told."""

from datetime import datetime

import pytest

from pinrail_engine.text import chat
from pinrail_engine.text.chat import ChatTemplate
from pinrail_engine.text.errors import PromptError, TokenizerError

NOW = datetime(2026, 3, 9, 8, 5)
HI = [{"role": "user", "content": "hi"}]


def render(source: str, **special: str) -> str:
    return ChatTemplate(source, special).render(HI, NOW)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}\n    {% if true %}\nx{{ m.content }}\n{% endif %}\n{% endfor %}", "xhi\n"),
        ("{{ bos_token }}{{ messages[0]['role'] }}", "<s>user"),
        ("{{ strftime_now('%d %b %Y') }}", "09 Mar 2026"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}x{% endgeneration %}y", "xy"),
        ("{% if add_generation_prompt %}go{% endif %}{{ undefined_name }}", "go"),
    ],
)
def test_renders_as_models_expect(source: str, text: str) -> None:
    assert render(source, bos_token="<s>") == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ messages.append(1) }}",
        "{{ range(200000) | list }}",
        "{{ strftime_now.__globals__ }}{{ strftime_now.__globals__.x }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ none.x.y }}",
    ],
)
def test_what_a_template_cannot_do_is_the_requests_error(source: str) -> None:
    with pytest.raises(PromptError, match=r"^messages: the model's chat template "):
        render(source)


def test_raise_exception_reaches_the_client() -> None:
    with pytest.raises(PromptError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_RENDERED", 1000)
    with pytest.raises(PromptError, match="more than 1000 characters"):
        render("{% for i in range(600) %}ab{% endfor %}")


def test_a_template_that_does_not_compile_stops_the_load() -> None:
    with pytest.raises(TokenizerError, match=r"^chat template: does not compile"):
        ChatTemplate("{% if %}", {})
