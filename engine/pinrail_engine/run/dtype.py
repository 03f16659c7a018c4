"""Which number type to compute in, and why. `choose` is pure; `cpu_flags` reads the machine."""

from pinrail_contract.launch import Dtype

_FAST_BF16 = ("amx_bf16", "avx512_bf16")
"""Without one of these torch multiplies bfloat16 several times slower than float32."""


def choose(wanted: Dtype, flags: frozenset[str], accelerator: bool) -> tuple[Dtype, str]:
    """The compute type and the reason, for the log.

    | wanted   | accelerator | fast bfloat16 on the CPU | chosen   |
    |----------|-------------|--------------------------|----------|
    | explicit | -           | -                        | that one |
    | auto     | yes         | -                        | bfloat16 |
    | auto     | no          | yes                      | bfloat16 |
    | auto     | no          | no                       | float32  |
    """
    if wanted is not Dtype.AUTO:
        return wanted, "--dtype asks for it"
    if accelerator:
        return Dtype.BFLOAT16, "an accelerator computes it fastest"
    found = [flag for flag in _FAST_BF16 if flag in flags]
    if found:
        return Dtype.BFLOAT16, f"this processor has {found[0]}"
    return Dtype.FLOAT32, f"this processor has none of {', '.join(_FAST_BF16)}"


def cpu_flags() -> frozenset[str]:
    """The instruction sets that Linux names in /proc/cpuinfo; empty where it does not."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            lines = [line for line in f if line.startswith("flags")]
    except OSError:
        return frozenset()
    return frozenset(lines[0].partition(":")[2].split()) if lines else frozenset()
