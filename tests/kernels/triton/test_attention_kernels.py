"""The attention kernels: what they compute, and that a row does not know what is beside it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import TOLERANCES, Heads, Shape, case

from pinrail_kernels.paged_attention import CAUSAL, Rule, plan_attention
from pinrail_kernels.paged_attention_triton import SPLIT, TritonPlan, attend, plan_decodes

DTYPES = list(TOLERANCES)
SHAPES = {  # (start, count) of each sequence
    "one decode": [(0, 1)],
    "decodes on both sides of a split": [(SPLIT - 1, 1), (SPLIT, 1), (2 * SPLIT + 9, 1)],
    "a whole prompt of three tiles": [(0, 70)],
    "all at once": [(17, 1), (0, 6), (300, 1), (40, 3)],
}
RULES = {
    "causal": CAUSAL,
    "window": Rule(window=5),
    "window of many splits": Rule(window=300),
    "soft cap": Rule(soft_cap=1.5),
    "all": Rule(window=11, soft_cap=0.5, scale=2.0),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_rule_is_the_definition_s(shape: Shape, rule: Rule) -> None:
    batch = case(shape, Heads(4, 2, 64), 16)
    torch.testing.assert_close(batch.attend(rule), batch.wanted(rule), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("group", range(1, 9))
def test_any_number_of_heads_may_share_keys(group: int) -> None:
    batch = case([(9, 1), (4, 7)], Heads(2 * group, 2, 64), 8)
    torch.testing.assert_close(batch.attend(), batch.wanted(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 192, 256])
def test_heads_of_any_even_size(dim: int, dtype: torch.dtype) -> None:
    batch = case([(33, 1), (20, 5)], Heads(3, 1, dim), 16, dtype)
    batch.spoil(float("nan"))  # the slot after a head's last number, too
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(batch.attend(), batch.wanted(), atol=tolerance, rtol=tolerance)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_batch_matches_the_definition(data: st.DataObject) -> None:
    sequence = st.tuples(st.integers(0, 80), st.just(1) | st.integers(1, 9) | st.integers(1, 40))
    shape = data.draw(st.lists(sequence, min_size=1, max_size=4), label="shape")
    kv, group = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 8))
    heads = Heads(kv * group, kv, data.draw(st.sampled_from([2, 18, 64, 80, 128])))
    dtype = data.draw(st.sampled_from(DTYPES))
    rule = Rule(
        window=data.draw(st.none() | st.integers(1, 100)),
        soft_cap=data.draw(st.none() | st.sampled_from([0.3, 20.0])),
        scale=data.draw(st.none() | st.just(0.2)),
    )
    batch = case(shape, heads, data.draw(st.integers(1, 64), label="block size"), dtype)
    batch.spoil(float("nan"))
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(batch.attend(rule), batch.wanted(rule), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("rule", "dtype"), [(CAUSAL, torch.bfloat16), (Rule(window=70), torch.float32)], ids=["causal", "window"]
)
def test_a_row_has_the_same_bits_alone_and_beside_others(rule: Rule, dtype: torch.dtype) -> None:
    batch = case([(5, 1), (SPLIT + 30, 1), (20, 40), (0, 5)], Heads(4, 2, 64), 16, dtype)
    together = batch.attend(rule)
    for i, s in enumerate(batch.sequences):
        assert torch.equal(together[s.row : s.row + s.count], batch.only(i).attend(rule))


@pytest.mark.parametrize("rule", [CAUSAL, Rule(window=40)], ids=["causal", "window"])
@pytest.mark.parametrize("start", [1, 17, 64, 88])
def test_a_row_has_the_same_bits_wherever_its_chunk_begins(start: int, rule: Rule) -> None:
    batch = case([(0, 90)], Heads(4, 2, 64), 16, torch.bfloat16)
    assert torch.equal(batch.attend(rule)[start:], batch.only(0, start).attend(rule))


def test_a_row_alone_is_that_of_a_chunk() -> None:
    """By the decode kernel and by the prefill kernel: another shape of product, so not bit for bit."""
    batch = case([(SPLIT, 40)], Heads(4, 2, 64), 16)
    alone = batch.only(0, SPLIT + 39).attend()
    torch.testing.assert_close(alone, batch.attend()[39:], atol=1e-5, rtol=1e-5)


def test_nothing_behind_a_context_is_read() -> None:
    batch = case([(5, 1), (9, 3), (300, 1), (0, 40)], Heads(4, 2, 64), 16)
    before = batch.attend()
    batch.spoil(float("nan"))
    assert torch.equal(batch.attend(), before)


def test_decodes_planned_on_the_device_are_those_planned_on_the_host() -> None:
    """With room for longer contexts than there are, as in a captured graph."""
    batch = case([(5, 1), (300, 1), (0, 1)], Heads(4, 2, 64), 16)
    lines, contexts = (torch.tensor(x) for x in ([0, 1, 2], [6, 301, 1]))
    plan = plan_decodes(lines, contexts, batch.tables, 4 * SPLIT, CAUSAL)
    assert torch.equal(attend(batch.q, batch.k, batch.v, plan), batch.attend())


def test_the_plan_is_the_kernels_own() -> None:
    """Or all of the above would compare torch with torch."""
    batch = case([(5, 1), (9, 3)], Heads(4, 2, 64), 16)
    plan = plan_attention(batch.sequences, batch.tables, 16, torch.float32)
    assert isinstance(plan, TritonPlan)
    assert (plan.decodes.tolist(), plan.prefills.tolist()) == ([[0, 6, 0]], [[1, 9, 3, 1]])
    assert (plan.longest, plan.widest) == (6, 3)
