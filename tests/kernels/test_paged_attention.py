"""Torch's path against the definition, and the definition against torch's attention without pages."""

import pytest
import torch
import torch.nn.functional as F
from ragged import TOLERANCES, Heads, Shape, case

from pinrail_kernels.paged_attention import Rule, TorchPlan, plan_attention

BLOCK = 4
RAGGED = {  # (start, count) of each sequence
    "one decode": [(0, 1)],
    "decodes of unlike lengths": [(0, 1), (3, 1), (4, 1), (30, 1), (62, 1)],
    "a whole prompt": [(0, 9)],
    "a chunk": [(5, 7)],
    "all at once": [(17, 1), (0, 6), (8, 8), (2, 1), (40, 3)],
}
RULES = {
    "causal": Rule(),
    "window": Rule(window=5),
    "window of one": Rule(window=1),
    "soft cap": Rule(soft_cap=1.5),
    "scale": Rule(scale=0.7),
    "all": Rule(window=3, soft_cap=0.5, scale=2.0),
}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", RAGGED.values(), ids=RAGGED.keys())
@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (9, 3), (7, 1)])
def test_matches_the_definition(heads: tuple[int, int], shape: Shape, dtype: torch.dtype) -> None:
    batch = case(shape, Heads(*heads, 16), BLOCK, dtype)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(batch.attend(), batch.wanted(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("shape", RAGGED.values(), ids=RAGGED.keys())
def test_every_rule_is_the_definition_s(shape: Shape, rule: Rule) -> None:
    batch = case(shape, Heads(6, 2, 16), BLOCK)
    torch.testing.assert_close(batch.attend(rule), batch.wanted(rule), atol=1e-5, rtol=1e-5)


def test_the_definition_is_causal_attention() -> None:
    batch = case([(0, 11)], Heads(6, 2, 16), BLOCK)
    k, v = (c[batch.tables[0, :3]].flatten(0, 1)[:11].transpose(0, 1) for c in (batch.k, batch.v))
    wanted = F.scaled_dot_product_attention(batch.q.transpose(0, 1), k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(batch.wanted(), wanted.transpose(0, 1), atol=1e-5, rtol=1e-5)


def test_a_window_of_one_sees_the_row_s_own_value() -> None:
    batch = case([(3, 2)], Heads(1, 1, 16), BLOCK)
    own = batch.v[batch.tables[0, :2]].flatten(0, 1)[3:5]
    torch.testing.assert_close(batch.wanted(Rule(window=1)), own)


def test_a_soft_cap_near_zero_makes_all_keys_equal() -> None:
    batch = case([(3, 1)], Heads(1, 1, 16), BLOCK)
    mean = batch.v[batch.tables[0, :1]].flatten(0, 1)[:4].mean(0)
    torch.testing.assert_close(batch.wanted(Rule(soft_cap=1e-6))[0], mean, atol=1e-5, rtol=1e-5)


def test_a_short_text_is_not_padded_to_a_long_one() -> None:
    batch = case([(3, 1), (2, 1), (62, 1)], Heads(1, 1, 16), BLOCK)
    plan = plan_attention(batch.sequences, batch.tables, BLOCK, torch.float32)
    assert isinstance(plan, TorchPlan)
    assert len(plan.extents) == 2


def test_what_lies_behind_a_context_does_not_matter() -> None:
    batch = case([(5, 1), (9, 3)], Heads(4, 2, 16), BLOCK)
    before = batch.attend()
    batch.spoil(1e4)
    assert torch.equal(batch.attend(), before)


def test_what_blocks_of_others_hold_does_not_matter() -> None:
    """Texts of unlike lengths are padded to one, but never with a block that another may have filled with NaN."""
    batch = case([(4, 1), (9, 1), (9, 3)], Heads(4, 2, 16), BLOCK)
    before = batch.attend()
    own = {int(b) for s in batch.sequences for b in batch.tables[s.line, : s.blocks(BLOCK)]}
    others = list(set(range(batch.k.shape[0])) - own)
    batch.k[others] = batch.v[others] = float("nan")
    assert torch.equal(batch.attend(), before)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"window": 0}, "window must be 1 or more tokens, got 0"),
        ({"soft_cap": 0.0}, "soft_cap must be above 0, got 0.0"),
    ],
)
def test_a_rule_that_is_none_is_refused(rule: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**rule)  # type: ignore[arg-type]
