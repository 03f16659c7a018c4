"""What a request changes in its logits before a token is chosen from them.

In this order, as in vLLM: only the allowed tokens; no stop token before `min_tokens`; nothing that completes a bad
word; logit bias; then with c(t) the count of a token in the output

    repetition:            x <- x / r  where x > 0, else x * r, for each token of prompt and output
    frequency, presence:   x <- x - f * c(t) - p * [c(t) > 0]

All is counted anew from the sequence at each token, so there is no state that preemption would have to undo, and
nothing is read back from the device. Rows are changed one by one: penalties touch a row where its tokens are, no more.

`adjust_ref` is the definition. Sources: Keskar et al. 2019, https://arxiv.org/abs/1909.05858, section 4.1
(repetition); OpenAI's API reference (frequency, presence); vLLM's `v1/sample` (order, bad words).
"""

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.types import SamplingParams
from .draw import is_adjusted as is_adjusted  # whether `adjust` would change anything


def adjust(logits: Tensor, params: SamplingParams, tokens: Tensor, prompt_len: int) -> None:
    """Change the logits of one row, in place.

    A mask is -inf added, not written, so a row that has NaN somewhere is still seen to be broken.

    Args:
        logits: [vocab] float32, contiguous.
        params: What is asked for.
        tokens: [n] int32, same device: the sequence so far, the prompt first. -1, of a broken step, counts as 0.
        prompt_len: Tokens of the prompt.
    """
    seen = tokens.clamp(min=0).long()
    output = seen[prompt_len:]
    _mask(logits, params, output)
    _bias(logits, params.logit_bias)
    if params.repetition_penalty != 1:
        values = logits[seen]
        repeated = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        logits.scatter_(0, seen, repeated)  # a token's duplicates all write the same
    if params.frequency_penalty or params.presence_penalty:
        counts = torch.zeros_like(logits).scatter_add_(0, output, torch.ones_like(output, dtype=logits.dtype))
        penalty = counts[output] * params.frequency_penalty + params.presence_penalty
        logits.scatter_(0, output, logits[output] - penalty)


def adjust_ref(logits: Tensor, params: SamplingParams, tokens: Sequence[int], prompt_len: int) -> Tensor:
    """The definition: the changed logits [vocab] in float64."""
    tokens = [max(t, 0) for t in tokens]
    output = tokens[prompt_len:]
    x: list[float] = logits.double().tolist()
    allowed = set(params.allowed_token_ids or range(len(x)))
    stops = params.stop_token_ids if len(output) < params.min_tokens else frozenset()
    for t in range(len(x)):
        if t not in allowed or t in stops:
            x[t] -= math.inf
    for *head, last in params.bad_words:
        if len(head) <= len(output) and output[len(output) - len(head) :] == head:
            x[last] -= math.inf
    for t, bias in params.logit_bias:
        x[t] += bias
    for t in set(tokens):
        x[t] = x[t] / params.repetition_penalty if x[t] > 0 else x[t] * params.repetition_penalty
    for t, count in Counter(output).items():
        x[t] -= count * params.frequency_penalty + params.presence_penalty
    return torch.tensor(x, dtype=torch.float64)


def on_device(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers, nested as the tensor is, brought to the device without waiting for what it does."""
    tensor = torch.tensor(values, dtype=dtype, device="cpu")
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _mask(logits: Tensor, params: SamplingParams, output: Tensor) -> None:
    vocab, n_output = logits.shape[0], output.shape[0]
    if params.allowed_token_ids:
        allowed = on_device(params.allowed_token_ids, torch.int64, logits.device)
        logits += torch.full_like(logits, -math.inf).index_fill_(0, allowed, 0.0)
    if n_output < params.min_tokens:
        _bias(logits, [(t, -math.inf) for t in params.stop_token_ids if t < vocab])  # others never come
    words = [word for word in params.bad_words if len(word) - 1 <= n_output]
    if words:
        _mask_bad_words(logits, words, output)


def _mask_bad_words(logits: Tensor, words: Sequence[tuple[int, ...]], output: Tensor) -> None:
    """Mask the last token of each word whose head ends the output; as in vLLM, no head begins in the prompt."""
    longest = max(map(len, words)) - 1
    heads = on_device([(-1,) * (longest + 1 - len(word)) + word[:-1] for word in words], torch.int64, logits.device)
    tail = output[output.shape[0] - longest :]
    is_met = ((heads == tail) | (heads < 0)).all(-1)
    lasts = on_device([word[-1] for word in words], torch.int64, logits.device)
    logits.index_add_(0, lasts, torch.zeros_like(lasts, dtype=logits.dtype).masked_fill_(is_met, -math.inf))


def _bias(logits: Tensor, biases: Sequence[tuple[int, float]]) -> None:
    if biases:
        ids = on_device([t for t, _ in biases], torch.int64, logits.device)
        logits.index_add_(0, ids, on_device([bias for _, bias in biases], logits.dtype, logits.device))
