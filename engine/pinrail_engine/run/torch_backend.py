"""The torch backend: the definition that others are compared with, on CPUs, and on GPUs until kernels come."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pinrail_contract.launch import Dtype

from ..core.plan import StepPlan
from ..model.arch import Arch
from ..model.decoder import Weights, forward
from ..weights.load import load
from .batch import build_batch
from .sample import Draw, sample

log = logging.getLogger(__name__)

_DTYPES = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16}
ELEMENT_SIZES = {name: dtype.itemsize for name, dtype in _DTYPES.items()}  # bytes


def has_accelerator() -> bool:
    return torch.cuda.is_available()


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptions:
    dtype: Dtype  # not AUTO
    kv_blocks: int
    block_size: int  # tokens
    threads: int


class TorchBackend:
    """Weights and cache on one device.

    Args:
        files: Weight files, name -> open descriptor; read by `load`.
        check_untouched: Called when they are read; raises where they changed meanwhile.
    """

    def __init__(
        self, files: Mapping[str, int], arch: Arch, options: TorchOptions, check_untouched: Callable[[], None]
    ) -> None:
        self._files, self._arch, self._options = files, arch, options
        self._check_untouched = check_untouched
        self._dtype = _DTYPES[options.dtype]
        self._device = torch.device("cuda" if has_accelerator() else "cpu")
        self._weights: Weights | None = None
        self._kv: Tensor | None = None  # [layers, 2, kv_blocks, block_size, kv_heads, head_dim]

    def load(self) -> None:
        torch.set_num_threads(self._options.threads)
        self._weights = load(self._files, self._arch, self._dtype, self._device)
        self._check_untouched()
        arch, options = self._arch, self._options
        shape = (arch.layers, 2, options.kv_blocks, options.block_size, arch.kv_heads, arch.head_dim)
        self._kv = torch.zeros(shape, dtype=self._dtype, device=self._device)
        log.info("backend loaded device=%s threads=%d kv_blocks=%d", self._device, options.threads, options.kv_blocks)

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> list[int]:
        assert self._weights is not None, "load comes first"
        assert self._kv is not None, "load comes first"
        batch = build_batch(plan, self._options.block_size, self._dtype, self._device)
        logits = forward(self._arch, self._weights, batch, self._kv)
        return sample(logits, [Draw(row.params, row.end) for row in plan.sampled])

    def free(self) -> None:
        self._weights = self._kv = None
