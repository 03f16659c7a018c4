"""What an engine runs, in the words that a manifest pins. Pure."""

from pinrail_contract.launch import BackendName, Dtype, Quantization
from pinrail_contract.runtime import Runtime

_NARROW = {"avx512_fp16": "float16", "avx512_bf16": "bfloat16"}
"""Instruction sets of the CPU kernels that multiply bfloat16 weights in another type than float32."""


def runtime_of(engine_version: str, *, backend: str, dtype: str, quantization: str, instructions: str = "") -> Runtime:
    """The engine and its numerics, from what its start has resolved; weights are named by what their values are in.

    Embedding table and head are in int8 where `quantization` is int4, as ever.
    """
    return Runtime(
        engine_version=engine_version,
        backend=backend,
        instructions=instructions,
        weight_dtype=dtype if quantization == Quantization.NONE else quantization,
        compute_dtype=compute_dtype(backend, dtype, quantization, instructions),
        kv_cache_dtype=dtype,
    )


def compute_dtype(backend: str, dtype: str, quantization: str, instructions: str) -> str:
    """What weights are multiplied in.

    | backend | dtype    | quantization | instructions | computes in |
    |---------|----------|--------------|--------------|-------------|
    | torch   | any      | none         | any          | the dtype   |
    | native  | bfloat16 | none         | avx512_fp16  | float16     |
    | native  | bfloat16 | none         | avx512_bf16  | bfloat16    |
    | native  | bfloat16 | none         | any other    | float32     |
    | native  | float32  | none         | any          | float32     |
    | native  | any      | int8, int4   | any          | float32     |
    """
    if backend != BackendName.NATIVE:
        return dtype
    is_narrow = dtype == Dtype.BFLOAT16 and quantization == Quantization.NONE
    return _NARROW.get(instructions, str(Dtype.FLOAT32)) if is_narrow else str(Dtype.FLOAT32)
