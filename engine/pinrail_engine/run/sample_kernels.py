"""Sampling where there are kernels: plain rows by `pinrail_kernels.draw`, all others as everywhere, by `sample`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pinrail_kernels.dispatch import on_triton
from pinrail_kernels.draw import draw

from .draw import uniform
from .penalties import on_device
from .sample import Draw, sample

_COLDEST = 1e-30  # temperature above 0, as in `sample`


def choose_tokens(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """`sample`: one token id per row [s], -1 where there is none. Nothing is read back from a device."""
    if not on_triton(logits):
        return sample(logits, draws)
    plain = [i for i, one in enumerate(draws) if not (one.is_adjusted or one.is_cut)]
    if len(plain) == len(draws):
        return _draw_plain(logits, draws)
    tokens = torch.empty(len(draws), dtype=torch.int64, device=logits.device)
    others = sorted(set(range(len(draws))) - set(plain))
    for rows, choose in ((plain, _draw_plain), (others, sample)):
        if rows:
            index = on_device(rows, torch.int64, logits.device)
            tokens[index] = choose(logits[index], [draws[i] for i in rows])
    return tokens


def _draw_plain(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    temperatures = [one.params.temperature and max(one.params.temperature, _COLDEST) for one in draws]
    uniforms = [uniform(one.params.seed, one.position) for one in draws]
    return draw(
        logits,
        on_device(temperatures, torch.float32, logits.device),
        on_device(uniforms, torch.float64, logits.device),
    )
