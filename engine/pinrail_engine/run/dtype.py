"""Which number type weights and cache are kept in, and why. `choose` is pure; `processor` reads the machine."""

from dataclasses import dataclass

from pinrail_contract.launch import BackendName, Dtype

ELEMENT_SIZES = {Dtype.FLOAT32: 4, Dtype.BFLOAT16: 2}  # bytes of one number


@dataclass(frozen=True, slots=True)
class Processor:
    """What Linux says of the CPU; empty where it says nothing."""

    vendor: str = ""  # such as GenuineIntel
    flags: frozenset[str] = frozenset()  # instruction sets

    @property
    def fast_bfloat16(self) -> str:
        """The instructions that make torch multiply bfloat16 faster than float32, or '' where none do.

        avx512_bf16 alone does so on AMD's (twice as fast). On Intel's without AMX float32 was measured 1.65 times as
        fast in prefill and level in a batch of 32; without either, bfloat16 is several times slower.
        """
        if "amx_bf16" in self.flags:
            return "amx_bf16"
        return "avx512_bf16" if "avx512_bf16" in self.flags and self.vendor == "AuthenticAMD" else ""


def choose(wanted: Dtype, backend: BackendName, cpu: Processor, accelerator: bool) -> tuple[Dtype, str]:
    """The type of weights and cache, and the reason, for the log.

    | wanted   | backend | accelerator | fast bfloat16 on the CPU | chosen   |
    |----------|---------|-------------|--------------------------|----------|
    | explicit | -       | -           | -                        | that one |
    | auto     | native  | -           | -                        | bfloat16 |
    | auto     | torch   | yes         | -                        | bfloat16 |
    | auto     | torch   | no          | yes                      | bfloat16 |
    | auto     | torch   | no          | no                       | float32  |

    The torch backend computes in it, too; the native one in float32, which it widens weights to as it reads them.
    """
    if wanted is not Dtype.AUTO:
        return wanted, "--dtype asks for it"
    if backend is BackendName.NATIVE:
        return Dtype.BFLOAT16, "it is half as much to read, and the CPU kernels add up in float32"
    if accelerator:
        return Dtype.BFLOAT16, "an accelerator computes it fastest"
    if cpu.fast_bfloat16:
        return Dtype.BFLOAT16, f"this processor has {cpu.fast_bfloat16}"
    return Dtype.FLOAT32, "this processor multiplies bfloat16 no faster"


def processor() -> Processor:
    """The first processor of /proc/cpuinfo; an empty one where there is no such file."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            first = f.read().partition("\n\n")[0]
    except OSError:
        return Processor()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    return Processor(fields.get("vendor_id", ""), frozenset(fields.get("flags", "").split()))
