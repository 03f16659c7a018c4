"""A query means what its values are, whatever they hold."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from pinrail_contract.metrics import LOAD_SERIES, RUNNING
from pinrail_operator.load_query import SAMPLED, AnswerError, Target, query, readings

hostile = st.text(st.sampled_from('ab-.\\"}{|^$*+?()[]\n,=~#'), min_size=1, max_size=12)
targets = st.lists(st.builds(Target, hostile, hostile, hostile), min_size=1, max_size=4)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def test_a_query_asks_for_all_figures_and_for_the_time_of_one() -> None:
    whose = 'namespace=~"team",inference_service=~"chat",pod=~"a\\\\.1|b"'
    assert query([Target("team", "chat", "b"), Target("team", "chat", "a.1")]) == (
        f'{{__name__=~"{"|".join(sorted(LOAD_SERIES))}",{whose}}} or '
        f'label_replace(timestamp({RUNNING}{{{whose}}}), "{SAMPLED}", "at", "", "")'
    )


@given(targets)
def test_no_value_ends_its_string_or_means_anything_but_itself(asked: list[Target]) -> None:
    """Between the strings stands the same text for all; each string is a choice among its values and no others."""
    text = query(asked)
    plain = query([Target("a", "b", "c")])
    assert _STRING.sub("@", text) == _STRING.sub("@", plain)
    strings = [json.loads(s) for s in _STRING.findall(text)]
    for expression, values in (
        (strings[1], {t.namespace for t in asked}),
        (strings[2], {t.service for t in asked}),
        (strings[3], {t.pod for t in asked}),
    ):
        assert all(re.fullmatch(expression, v) for v in values)
        assert not any(re.fullmatch(expression, v + "x") or re.fullmatch(expression, "x" + v) for v in values)
        assert not any(re.fullmatch(expression, word) for word in ("", "zz", "team"))


texts = st.text(max_size=2)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["status", "data", "resultType", "result"]), inner, max_size=4)
    ),
    max_leaves=12,
)
metrics = st.dictionaries(st.sampled_from(["pod", "__name__", SAMPLED]), texts | st.lists(texts, max_size=1)) | anything
values = st.lists(texts | st.floats() | st.integers() | st.sampled_from(["1", "NaN", "-Inf"]), max_size=3)
samples = st.lists(st.fixed_dictionaries({"metric": metrics, "value": values | anything}), max_size=3)
vectors = samples.map(lambda found: {"status": "success", "data": {"resultType": "vector", "result": found}})


@given((anything | vectors).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60))
def test_whatever_is_answered_is_a_reading_or_an_answer_error(body: bytes) -> None:
    target, said = Target("", "", ""), "got …, want …"
    try:
        assert readings(body, [target]).keys() == {target}
    except AnswerError as e:
        said = str(e)
    assert re.fullmatch("got .+, want .+", said, re.DOTALL)
