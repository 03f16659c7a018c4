"""Compiles every kernel for devices that are not here, and prints how large each binary is; run by a test.

In a process of its own: kernels that are made to be interpreted cannot be compiled. `ptxas` is in Triton's package.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"  # read when triton is imported

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pinrail_kernels import draw, linear, rms_norm, rope_store_kv, silu_mul
from pinrail_kernels import paged_attention_triton as attend

POINTERS = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
OF_X = ["x_ptr", "residual_ptr", "w_ptr", "y_ptr", "sum_ptr", "gate_up_ptr", "qkv_ptr", "cos_ptr", "sin_ptr"]
OF_X += ["q_ptr", "k_ptr", "v_ptr", "out_ptr"]
TYPES = {
    **dict.fromkeys(["slots_ptr", "tables_ptr", "tokens_ptr", "sums_ptr"], "*i64"),
    **dict.fromkeys(["prefills_ptr", "decodes_ptr"], "*i32"),
    **dict.fromkeys(["scales_ptr", "part_ptr", "peak_ptr", "peaks_ptr", "logits_ptr", "temperatures_ptr"], "*fp32"),
    "uniforms_ptr": "*fp64",
    **dict.fromkeys(["eps", "inner", "outer", "unit"], "fp32"),
}  # what is not here is i32
MULTIPLES = ["x_stride", "residual_stride", "stride", "qkv_stride", "q_stride", "slot_stride", "out_stride"]
MULTIPLES += ["d", "f", "half", "out", "width"]
"""Of 16, as in real models: the compiler then copies through shared memory in stages, whose size is to be checked."""


@dataclass(frozen=True)
class Variant:
    name: str
    kernel: Any
    dtype: torch.dtype  # of x
    constants: dict[str, Any]  # and the launch's options


def attention(name: str, heads: int, kv_heads: int, d: int, dtype: torch.dtype) -> list[Variant]:
    """As the launchers have them, of tensors without memory."""
    q = torch.empty(1, heads, d, dtype=dtype, device="meta")
    cache = torch.empty(1, 16, kv_heads, d, dtype=dtype, device="meta")
    capped = {"CAPPED": d == 256}
    return [
        Variant(f"prefill {name}", attend.prefill_kernel, dtype, attend.prefill_sizes(q, cache) | capped),
        Variant(f"decode {name}", attend.decode_kernel, dtype, attend.decode_sizes(q, cache) | capped),
    ]


def products(dtype: torch.dtype) -> Iterator[Variant]:
    for bits, group in ((16, 1), (8, 1), (4, 128)):
        for n in (1, 999):
            constants = {"BITS": bits, "GROUP": group} | linear.tile_sizes(n, dtype)
            yield Variant(f"linear of {bits} bits, {n} rows", linear.linear_kernel, dtype, constants)


def variants() -> list[Variant]:
    """Each kernel once; more where shape or dtype make other code."""
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    spans = {"SPAN": draw.SPAN, "SPANS": 128}
    plain = {"BITS": 16, "GROUP": 1} | linear.tile_sizes(1, f32)
    return [
        Variant("rms_norm", rms_norm.rms_norm_kernel, bf16, {"ADD": False, "BLOCK": 4096, "num_warps": 8}),
        Variant("add_rms_norm", rms_norm.rms_norm_kernel, bf16, {"ADD": True, "BLOCK": 4096, "num_warps": 8}),
        Variant("silu_mul", silu_mul.silu_mul_kernel, bf16, {"BLOCK": 1024}),
        Variant("rope_store_kv", rope_store_kv.rope_store_kv_kernel, bf16, {"HEADS": 8, "HALF": 64}),
        Variant("peaks", draw.peaks_kernel, f32, {"SPAN": draw.SPAN}),
        Variant("sums", draw.sums_kernel, f32, spans),
        Variant("choose", draw.choose_kernel, f32, spans),
        Variant("merge", attend.merge_kernel, bf16, {"SPLIT": attend.SPLIT, "DIM": 128}),
        *attention("of 128 wide heads", 32, 8, 128, bf16),
        *attention("of 256 wide heads, capped", 16, 8, 256, bf16),
        *attention("of 64 wide heads, float16", 9, 3, 64, f16),
        *products(bf16),
        Variant("linear of float32", linear.linear_kernel, f32, plain),
    ]


def size_of(variant: Variant, capability: int) -> dict[str, int]:
    """Bytes of the binary, and of shared memory that a program of it takes."""
    kernel = variant.kernel
    options = {k: v for k, v in variant.constants.items() if k.startswith("num_")}
    constexprs = {k: v for k, v in variant.constants.items() if k not in options}
    signature = {name: type_of(name, variant.dtype, constexprs) for name in kernel.arg_names}
    aligned = [i for i, (name, kind) in enumerate(signature.items()) if kind[0] == "*" or name in MULTIPLES]
    source = ASTSource(kernel, signature, constexprs, {(i,): [["tt.divisibility", 16]] for i in aligned})
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert f"sm_{capability}" in compiled.asm["ptx"]
    return {"cubin": len(compiled.asm["cubin"]), "shared": compiled.metadata.shared}


def type_of(name: str, dtype: torch.dtype, constexprs: dict[str, Any]) -> str:
    if name in constexprs:
        return "constexpr"
    if name == "w_ptr" and constexprs.get("BITS", 16) < 16:
        return "*i8" if constexprs["BITS"] == 8 else "*u8"
    return POINTERS[dtype] if name in OF_X else TYPES.get(name, "i32")


def main(capability: int) -> None:
    print(json.dumps({variant.name: size_of(variant, capability) for variant in variants()}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
