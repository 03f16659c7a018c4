"""The torch backend: the definition that others are compared with, on CPUs, and on GPUs until kernels come."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from pinrail_contract.launch import Dtype

from ..core.plan import StepPlan, StepResult
from ..core.types import TokenLogprobs
from ..model.arch import Arch
from ..model.decoder import Weights, forward, logits
from ..weights.load import load
from . import memory
from .backend import Wait
from .batch import build_batch
from .device_queue import DeviceQueue
from .logprobs import in_chunks, logprobs
from .sample import sample
from .table import Table
from .warm_up import largest_plan

log = logging.getLogger(__name__)

_DTYPES = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16}
ELEMENT_SIZES = {name: dtype.itemsize for name, dtype in _DTYPES.items()}  # bytes


def has_accelerator() -> bool:
    return torch.cuda.is_available()


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptions:
    dtype: Dtype  # not AUTO
    block_size: int  # tokens
    threads: int


class TorchBackend:
    """Weights, cache and table on one device.

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
        self._queue = DeviceQueue()
        self._weights: Weights | None = None
        self._kv: Tensor | None = None  # [layers, 2, kv_blocks, block_size, kv_heads, head_dim]
        self._table: Table | None = None

    def load(self) -> None:
        self._queue.run(self._load)
        log.info("weights loaded device=%s threads=%d", self._device, self._options.threads)

    def measure(self, seqs: int, tokens: int) -> int:
        each = -(-tokens // seqs)
        self.allocate(-(-(each + 1) // self._options.block_size), seqs, each + 1)
        plan = largest_plan(seqs, tokens, self._options.block_size)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.launch(plan)()
            peak = torch.cuda.max_memory_allocated() - before
            free, _ = torch.cuda.mem_get_info()
        else:
            peak = memory.peak_of(self.launch(plan))
            free = memory.free_bytes()
        log.info("memory free_bytes=%d peak_activation_bytes=%d seqs=%d tokens=%d", free, peak, seqs, tokens)
        return max(0, free - peak)

    def allocate(self, kv_blocks: int, seqs: int, max_model_len: int) -> None:
        self._queue.run(lambda: self._allocate(kv_blocks, seqs, max_model_len))

    def launch(self, plan: StepPlan) -> Wait:
        return self._queue.launch(lambda: self._step(plan))

    def free(self) -> None:
        self._queue.close()
        self._weights = self._kv = self._table = None

    def _load(self) -> None:
        torch.set_num_threads(self._options.threads)
        self._weights = load(self._files, self._arch, self._dtype, self._device)
        self._check_untouched()

    def _allocate(self, kv_blocks: int, seqs: int, max_model_len: int) -> None:
        arch, size = self._arch, self._options.block_size
        shape = (arch.layers, 2, kv_blocks, size, arch.kv_heads, arch.head_dim)
        self._kv = torch.empty(shape, dtype=self._dtype, device=self._device)  # what a text begins in is zeroed then
        self._table = Table(seqs, max_model_len, size, self._device)

    @torch.inference_mode()
    def _step(self, plan: StepPlan) -> StepResult:
        assert self._weights is not None, "load comes first"
        assert self._kv is not None, "allocate comes first"
        assert self._table is not None, "allocate comes first"
        self._table.apply(plan)
        batch = build_batch(plan, self._table, self._dtype)
        x = forward(self._arch, self._weights, batch, self._kv)
        prompts = self._prompt_logprobs(plan, x, self._table)
        if not plan.sampled:
            return StepResult((), (), prompts)
        ends = accumulate(row.length for row in plan.rows)
        lasts = [end - 1 for end, row in zip(ends, plan.rows, strict=True) if row.samples]
        scores = logits(self._arch, self._weights, x[lasts])
        draws = [self._table.draw(row) for row in plan.sampled]
        tokens = sample(scores, draws)
        self._table.put(plan.sampled, tokens)
        told = logprobs(scores, tokens, [draw.params.logprobs for draw in draws])
        return StepResult(tokens.tolist(), told, prompts)

    def _prompt_logprobs(self, plan: StepPlan, x: Tensor, table: Table) -> dict[str, list[TokenLogprobs]]:
        """Of the tokens after each row's, where they are of the prompt and asked for."""
        told: dict[str, list[TokenLogprobs]] = {}
        first = 0  # row of the batch
        for row in plan.rows:
            wanted = table.params[row.slot].prompt_logprobs
            n = min(row.end, table.prompt_lens[row.slot] - 1) - row.start
            if wanted is not None and n > 0:
                following = table.tokens[row.slot, row.start + 1 : row.start + 1 + n]
                told[row.request_id] = in_chunks(x[first : first + n], self._logits, following, wanted)
            first += row.length
        return told

    def _logits(self, x: Tensor) -> Tensor:
        assert self._weights is not None, "load comes first"
        return logits(self._arch, self._weights, x)
