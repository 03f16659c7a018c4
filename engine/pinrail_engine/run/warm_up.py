"""Steps to make before the first request: they touch the memory and let libraries choose their kernels. Pure."""

from ..core.kv_blocks import KvBlocks
from ..core.plan import Row, StepPlan
from ..core.types import SamplingParams

_PROMPT = 32  # tokens


def warm_up_plans(max_num_batched_tokens: int, max_model_len: int, kv: KvBlocks) -> tuple[StepPlan, StepPlan]:
    """A short prompt, then one token after it. They write to blocks that nobody holds yet."""
    n = min(_PROMPT, max_num_batched_tokens, max_model_len - 1)
    blocks = tuple(range(kv.blocks_for(n + 1)))
    params = SamplingParams(max_tokens=1, temperature=1.0)
    prompt = Row("warm-up", 0, (0,) * n, blocks, True, params)
    token = Row("warm-up", n, (0,), blocks, True, params)
    return StepPlan((prompt,)), StepPlan((token,))
