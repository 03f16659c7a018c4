"""Steps to make before the first request: they touch the memory and let libraries choose their kernels. Pure."""

from ..core.plan import Begin, Grown, Row, StepPlan
from ..core.types import SamplingParams

_PROMPT = 32  # tokens
_PARAMS = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9)


def warm_up_plans(max_num_batched_tokens: int, max_model_len: int, block_size: int) -> tuple[StepPlan, StepPlan]:
    """A short prompt, then one token after it. They write to blocks that nobody holds yet."""
    n = min(_PROMPT, max_num_batched_tokens, max_model_len - 1)
    begin = Begin("warm-up", 0, (0,) * n, n, _PARAMS)
    blocks = tuple(range(-(-(n + 1) // block_size)))
    prompt = Row("warm-up", 0, 0, n, True)
    token = Row("warm-up", 0, n, 1, n + 1 < max_model_len)
    return StepPlan(-1, (prompt,), (begin,), (Grown(0, 0, blocks),)), StepPlan(0, (token,))


def largest_plan(seqs: int, tokens: int, block_size: int) -> StepPlan:
    """A step as large as any can be: `tokens` shared out among `seqs` prompts, each of which is sampled.

    All write to the same blocks: what comes out means nothing.
    """
    each, more = divmod(tokens, seqs)
    lengths = [each + (i < more) for i in range(seqs)]
    blocks = tuple(range(-(-max(lengths) // block_size)))
    return StepPlan(
        -2,
        tuple(Row(str(i), i, 0, n, True) for i, n in enumerate(lengths)),
        tuple(Begin(str(i), i, (0,) * n, n, _PARAMS) for i, n in enumerate(lengths)),
        tuple(Grown(i, 0, blocks) for i in range(seqs)),
    )
