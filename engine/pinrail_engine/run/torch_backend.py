"""The torch backend: with Triton's kernels on a GPU; on a CPU with torch's operations, which define the others.

A step is launched by one thread and waited for by another, so that the host plans the next while the device computes.
"""

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
from ..model.decoder import Batch, Weights, forward, logits
from ..weights.load import load
from .backend import Wait
from .batch import build_batch, build_decodes
from .cuda_device import CudaDevice
from .cuda_graphs import DecodeGraphs
from .device import Device, HostDevice
from .device_queue import DeviceQueue
from .logprobs import in_chunks, logprobs
from .penalties import on_device
from .sample_kernels import choose_tokens
from .table import Table
from .warm_up import largest_plan

log = logging.getLogger(__name__)

_DTYPES = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16}


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
        device: Where to compute; by default a GPU if there is one.
    """

    def __init__(
        self,
        files: Mapping[str, int],
        arch: Arch,
        options: TorchOptions,
        check_untouched: Callable[[], None],
        device: Device | None = None,
    ) -> None:
        self._files, self._arch, self._options = files, arch, options
        self._check_untouched = check_untouched
        self._dtype = _DTYPES[options.dtype]
        self._device = device or (CudaDevice() if has_accelerator() else HostDevice())
        self._queue = DeviceQueue()
        self._weights: Weights | None = None
        self._kv: Tensor | None = None  # [layers, 2, kv_blocks, block_size, kv_heads, head_dim]
        self._table: Table | None = None
        self._graphs: DecodeGraphs | None = None

    @property
    def instructions(self) -> str:
        if self._device.place.type == "cuda":
            return torch.cuda.get_device_name(self._device.place)
        return torch.backends.cpu.get_cpu_capability().lower()

    def load(self) -> None:
        self._queue.run(self._load)
        log.info("weights loaded device=%s threads=%d", self._device.place, self._options.threads)

    def measure(self, seqs: int, tokens: int) -> int:
        each = -(-tokens // seqs)
        self._queue.run(lambda: self._allocate(-(-(each + 1) // self._options.block_size), seqs, each + 1))
        plan = largest_plan(seqs, tokens, self._options.block_size)
        peak, free = self._queue.run(lambda: self._device.measure(lambda: self._step(plan)()))
        log.info("memory free_bytes=%d peak_activation_bytes=%d seqs=%d tokens=%d", free, peak, seqs, tokens)
        return max(0, free - peak)

    def allocate(self, kv_blocks: int, seqs: int, max_model_len: int) -> None:
        self._queue.run(lambda: self._allocate(kv_blocks, seqs, max_model_len))
        self._queue.run(lambda: self._record(kv_blocks, seqs))

    def launch(self, plan: StepPlan) -> Wait:
        launched = self._queue.launch(lambda: self._step(plan))
        return lambda: launched()()

    def free(self) -> None:
        self._queue.close()
        self._weights = self._kv = self._table = self._graphs = None

    def _load(self) -> None:
        torch.set_num_threads(self._options.threads)
        self._device.begin()
        self._weights = load(self._files, self._arch, self._dtype, self._device.place)
        self._check_untouched()

    def _allocate(self, kv_blocks: int, seqs: int, max_model_len: int) -> None:
        """With graphs, a block and a line of the table more than requests may have: see `cuda_graphs`."""
        arch, size, more = self._arch, self._options.block_size, self._device.record is not None
        shape = (arch.layers, 2, kv_blocks + more, size, arch.kv_heads, arch.head_dim)
        place = self._device.place
        self._kv = torch.empty(shape, dtype=self._dtype, device=place)  # what a text begins in is zeroed then
        self._table = Table(seqs + more, max_model_len, size, place)

    @torch.inference_mode()
    def _record(self, kv_blocks: int, seqs: int) -> None:
        if self._device.record is None:
            return
        self.table.blocks[seqs] = kv_blocks
        self._graphs = DecodeGraphs(self._decode, nobody=seqs, most=seqs, place=self._device.place)
        self._graphs.record(self._device.record)

    @torch.inference_mode()
    def _step(self, plan: StepPlan) -> Wait:
        table = self.table
        table.apply(plan)
        scores, prompts = self._scores(plan)
        draws = [table.draw(row) for row in plan.sampled]
        tokens = choose_tokens(scores, draws)
        if draws:
            table.put(plan.sampled, tokens)
        told = logprobs(scores, tokens, [draw.params.logprobs for draw in draws])
        wait = self._device.copy_back(tokens)
        return lambda: StepResult(wait(), told, prompts)

    def _scores(self, plan: StepPlan) -> tuple[Tensor, dict[str, list[TokenLogprobs]]]:
        """Logits [s, vocab] of the rows that are sampled, and the log-probabilities of prompts."""
        if self._graphs is not None and all(row.length == 1 and row.samples for row in plan.rows):
            return self._graphs.run([row.slot for row in plan.rows], [row.start for row in plan.rows]), {}
        x = self._forward(build_batch(plan, self.table, self._dtype))
        ends = accumulate(row.length for row in plan.rows)
        lasts = [end - 1 for end, row in zip(ends, plan.rows, strict=True) if row.samples]
        wanted = x[on_device(lasts, torch.int64, self._device.place)]
        return self._logits(wanted), self._prompt_logprobs(plan, x, self.table)

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

    def _decode(self, lines: Tensor, positions: Tensor) -> Tensor:
        return self._logits(self._forward(build_decodes(lines, positions, self.table)))

    def _forward(self, batch: Batch) -> Tensor:
        assert self._kv is not None, "allocate comes first"
        return forward(self._arch, self.weights, batch, self._kv)

    def _logits(self, x: Tensor) -> Tensor:
        return logits(self.weights, x)

    @property
    def weights(self) -> Weights:
        assert self._weights is not None, "load comes first"
        return self._weights

    @property
    def table(self) -> Table:
        assert self._table is not None, "allocate comes first"
        return self._table
