"""The table of `compute_dtype`, then what an engine says of itself."""

import pytest

from pinrail_contract.runtime import Runtime
from pinrail_engine.numerics import compute_dtype, runtime_of


@pytest.mark.parametrize(
    ("backend", "dtype", "quantization", "instructions", "wanted"),
    [
        ("torch", "bfloat16", "none", "NVIDIA H200", "bfloat16"),
        ("torch", "float32", "none", "avx512", "float32"),
        ("native", "bfloat16", "none", "avx512_fp16", "float16"),
        ("native", "bfloat16", "none", "avx512_bf16", "bfloat16"),
        ("native", "bfloat16", "none", "avx512", "float32"),
        ("native", "bfloat16", "none", "neon", "float32"),
        ("native", "float32", "none", "avx512_fp16", "float32"),
        ("native", "bfloat16", "int8", "avx512_fp16", "float32"),
        ("native", "bfloat16", "int4", "avx512_bf16", "float32"),
    ],
)
def test_what_weights_are_multiplied_in(
    backend: str, dtype: str, quantization: str, instructions: str, wanted: str
) -> None:
    assert compute_dtype(backend, dtype, quantization, instructions) == wanted


def test_quantised_weights_are_named_so_and_the_cache_keeps_its_own_type() -> None:
    said = runtime_of("0.1.0", backend="native", dtype="bfloat16", quantization="int8", instructions="avx2")
    assert said == Runtime(
        engine_version="0.1.0",
        backend="native",
        instructions="avx2",
        weight_dtype="int8",
        compute_dtype="float32",
        kv_cache_dtype="bfloat16",
    )
