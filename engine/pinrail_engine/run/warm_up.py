"""Steps to make before the first request: they touch the memory, let libraries choose their kernels, and show how long
steps take. Pure."""

from typing import NamedTuple

from ..core.plan import Begin, Grown, Row, StepPlan
from ..core.types import SamplingParams

_FIRST, _MEASURED = 8, 32  # tokens of a prompt
_PARAMS = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9)


class WarmUp(NamedTuple):
    first: tuple[StepPlan, ...]  # their times mean nothing
    measured: tuple[StepPlan, ...]


def warm_up_plans(max_num_batched_tokens: int, max_model_len: int, block_size: int) -> WarmUp:
    """Twice a short prompt and one token after it. They write to blocks that nobody holds yet."""
    most = min(max_num_batched_tokens, max_model_len - 1)
    first = _request(-4, min(_FIRST, most), max_model_len, block_size)
    return WarmUp(first, _request(-2, min(_MEASURED, most), max_model_len, block_size))


def _request(number: int, n: int, max_model_len: int, block_size: int) -> tuple[StepPlan, StepPlan]:
    """Args: number: of the first step; n: tokens of the prompt."""
    begin = Begin("warm-up", 0, (0,) * n, n, _PARAMS)
    blocks = tuple(range(-(-(n + 1) // block_size)))
    prompt = Row("warm-up", 0, 0, n, True)
    token = Row("warm-up", 0, n, 1, n + 1 < max_model_len)
    return StepPlan(number, (prompt,), (begin,), (Grown(0, 0, blocks),)), StepPlan(number + 1, (token,))


def largest_plan(seqs: int, tokens: int, block_size: int) -> StepPlan:
    """A step as large as any can be: `tokens` shared out among `seqs` prompts, each of which is sampled.

    All write to the same blocks: what comes out means nothing.
    """
    each, more = divmod(tokens, seqs)
    lengths = [each + (i < more) for i in range(seqs)]
    blocks = tuple(range(-(-max(lengths) // block_size)))
    return StepPlan(
        -5,
        tuple(Row(str(i), i, 0, n, True) for i, n in enumerate(lengths)),
        tuple(Begin(str(i), i, (0,) * n, n, _PARAMS) for i, n in enumerate(lengths)),
        tuple(Grown(i, 0, blocks) for i in range(seqs)),
    )
