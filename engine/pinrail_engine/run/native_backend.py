"""The native backend: the C++ kernels of `pinrail_kernels.native` on numpy arrays, for CPUs. No torch in the process.

Weights and cache are kept as they are asked for; everything is computed in float32, except that avx512_bf16 rounds what
bfloat16 weights are multiplied with, and avx512_fp16 multiplies them in float16. A row's numbers do not depend on what
else is in its batch, nor on how its text is cut.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pinrail_contract.launch import Dtype, Quantization
from pinrail_kernels.native import GATE, K_STEP, Array, Decoder, Kind, Native, NativeError, Shape, room

from ..core.plan import StepPlan, StepResult
from ..core.types import TokenLogprobs
from ..model.arch import Arch
from ..weights.pack import Storage, pack
from . import memory
from .backend import Wait
from .device_queue import DeviceQueue
from .native_batch import build_batch, last_rows
from .native_logprobs import in_chunks, logprobs
from .native_sample import sample
from .native_table import NativeTable
from .warm_up import largest_plan

log = logging.getLogger(__name__)

_KINDS = {Dtype.FLOAT32: Kind.F32, Dtype.BFLOAT16: Kind.BF16}
_GROUP = 32  # inputs that share a scale, with int4


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    dtype: Dtype  # of weights and cache; not AUTO
    quantization: Quantization  # of the weights, instead
    block_size: int  # tokens
    threads: int


class NativeBackend:
    """Weights, cache and table in this process's memory.

    Args:
        files: Weight files, name -> open descriptor; read by `load`.
        check_untouched: Called when they are read; raises where they changed meanwhile.

    Raises NativeError where `problem` is not empty.
    """

    def __init__(
        self, files: Mapping[str, int], arch: Arch, options: NativeOptions, check_untouched: Callable[[], None]
    ) -> None:
        self._files, self._arch, self._check_untouched = files, arch, check_untouched
        self._shape, self._storage = shape_of(arch, options), storage_of(options)
        _check_widths(arch, self._storage)
        self._native = Native(options.threads)
        self._queue = DeviceQueue()
        self._decoder: Decoder | None = None
        self._kv: Array | None = None  # [layers, kv_blocks, block_elements]
        self._table: NativeTable | None = None

    @property
    def instructions(self) -> str:
        return self._native.isa

    def load(self) -> None:
        self._queue.run(self._load)

    def measure(self, seqs: int, tokens: int) -> int:
        each, size = -(-tokens // seqs), self._shape.block_size
        self.allocate(-(-(each + 1) // size), seqs, each + 1)
        free = memory.free_bytes()
        plan = largest_plan(seqs, tokens, size)
        peak = memory.peak_of(lambda: self._queue.run(lambda: self._reserve(plan)))
        log.info("memory free_bytes=%d peak_activation_bytes=%d seqs=%d tokens=%d", free, peak, seqs, tokens)
        return max(0, free - peak)

    def allocate(self, kv_blocks: int, seqs: int, max_model_len: int) -> None:
        self._queue.run(lambda: self._allocate(kv_blocks, seqs, max_model_len))

    def launch(self, plan: StepPlan) -> Wait:
        return self._queue.launch(lambda: self._step(plan))

    def free(self) -> None:
        self._queue.close()
        if self._decoder is not None:
            self._decoder.close()
        self._decoder = self._kv = self._table = None

    def _load(self) -> None:
        weights = pack(self._native, self._files, self._arch, self._storage)
        self._check_untouched()
        self._decoder = self._native.decoder(self._shape, weights.layers, weights.embed, weights.head, weights.norm)
        log.info("weights loaded isa=%s threads=%d bytes=%d", self._native.isa, self._native.threads, weights.nbytes)

    def _allocate(self, kv_blocks: int, seqs: int, max_model_len: int) -> None:
        shape = self._shape
        kv = room(shape.layers * kv_blocks * shape.block_elements * shape.kv_type.itemsize)
        self._kv = kv.view(shape.kv_type).reshape(shape.layers, kv_blocks, shape.block_elements)
        self._table = NativeTable(seqs, max_model_len, shape.block_size)

    def _reserve(self, plan: StepPlan) -> None:
        """Take what memory a step works with; the network, which takes nearly all of its time, is left out."""
        decoder, kv, table = self._parts()
        table.apply(plan)
        decoder.reserve(build_batch(plan, table, kv))
        self._choose(plan, decoder, table)

    def _step(self, plan: StepPlan) -> StepResult:
        decoder, kv, table = self._parts()
        table.apply(plan)
        decoder.forward(build_batch(plan, table, kv))
        prompts = self._prompt_logprobs(plan, decoder, table)
        return StepResult(*self._choose(plan, decoder, table), prompts) if plan.sampled else StepResult((), (), prompts)

    def _choose(
        self, plan: StepPlan, decoder: Decoder, table: NativeTable
    ) -> tuple[list[int], Sequence[TokenLogprobs | None]]:
        """The tokens after the rows of `plan.sampled`, and what is told of them."""
        scores = decoder.logits(last_rows(plan))
        draws = [table.draw(row) for row in plan.sampled]
        tokens = sample(self._native, scores, draws)
        table.put(plan.sampled, tokens)
        return tokens.tolist(), logprobs(scores, tokens, [draw.params.logprobs for draw in draws])

    def _parts(self) -> tuple[Decoder, Array, NativeTable]:
        assert self._decoder is not None, "load comes first"
        assert self._kv is not None, "allocate comes first"
        assert self._table is not None, "allocate comes first"
        return self._decoder, self._kv, self._table

    def _prompt_logprobs(self, plan: StepPlan, decoder: Decoder, table: NativeTable) -> dict[str, list[TokenLogprobs]]:
        """Of the tokens after each row's, where they are of the prompt and asked for."""
        told: dict[str, list[TokenLogprobs]] = {}
        first = 0  # row of the batch
        for row in plan.rows:
            wanted = table.params[row.slot].prompt_logprobs
            n = min(row.end, table.prompt_lens[row.slot] - 1) - row.start
            if wanted is not None and n > 0:
                following = table.tokens[row.slot, row.start + 1 : row.start + 1 + n]
                rows = np.arange(first, first + n, dtype=np.int32)
                told[row.request_id] = in_chunks(rows, decoder.logits, following, wanted)
            first += row.length
        return told


def problem(arch: Arch, options: NativeOptions) -> str:
    """Why the kernels cannot compute this network here, as the options say; '' where they can."""
    try:
        shape_of(arch, options)
        _check_widths(arch, storage_of(options))
        Native(options.threads)
    except (NativeError, OSError) as e:  # OSError: of a library that does not fit this system
        return str(e)
    return ""


def shape_of(arch: Arch, options: NativeOptions) -> Shape:
    """Raises NativeError where the kernels have no such shape."""
    return Shape(
        hidden=arch.hidden,
        intermediate=arch.intermediate,
        layers=arch.layers,
        heads=arch.heads,
        kv_heads=arch.kv_heads,
        head_dim=arch.head_dim,
        vocab=arch.vocab,
        block_size=options.block_size,
        kv_kind=_KINDS[options.dtype],
        eps=arch.eps,
        rope_theta=arch.rope_theta,
    )


def storage_of(options: NativeOptions) -> Storage:
    """| quantization | layers    | embedding and head |
    |--------------|-----------|--------------------|
    | none         | the dtype | the dtype          |
    | int8         | int8      | int8               |
    | int4         | int4      | int8               |
    """
    if options.quantization is Quantization.NONE:
        kind = _KINDS[options.dtype]
        return Storage(layers=kind, head=kind)
    if options.quantization is Quantization.INT8:
        return Storage(layers=Kind.INT8, head=Kind.INT8)
    return Storage(layers=Kind.INT4, head=Kind.INT8, group=_GROUP)


def _check_widths(arch: Arch, storage: Storage) -> None:
    """Matrices are packed so many inputs at a time; raises NativeError."""
    step = storage.group or K_STEP
    for name, width, multiple in (
        ("hidden_size", arch.hidden, step),
        ("heads times head_dim", arch.q_size, step),
        ("intermediate_size", arch.intermediate, max(step, GATE)),
    ):
        if width % multiple:
            raise NativeError(f"{name} is {width}, want a multiple of {multiple}")
