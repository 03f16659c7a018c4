"""The library runs on any processor of its architecture: an instruction set's code stays where it is asked for.

The compiler may put a function that two of our files share, such as one of std::vector's, into the library once, from
whichever file comes first. Compiled with AVX-512 there, it would end the process on a processor without. What is given
something of our own namespace, such as a comparison, is a function of each file's own.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

# The namespace, as it stands in its functions' names; '' for all that any processor may run.
PARTS = {
    "avx512_bf16": "11avx512_bf16",
    "avx512_fp16": "11avx512_fp16",
    "avx512": "6avx512",
    "avx2": "4avx2",
    "": "",
}
AVX = r"%[yz]mm|%k[0-7]|\tv[a-z]"
AVX512 = r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3[01])"
BF16 = r"\tv(dpbf16ps|cvtne2?ps2bf16)"
FP16 = r"\tv(f?n?m(add|sub)\w*|add|sub|mul|div|cvtps2)phx?\b"


@pytest.fixture(scope="module")
def code(native_library: Path) -> dict[str, dict[str, str]]:
    """Each part's functions by name, as objdump shows them."""
    if not shutil.which("objdump"):
        pytest.skip("no objdump (Debian's binutils)")
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(native_library)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "elf64-x86-64" not in said:
        pytest.skip("one instruction set on this architecture")
    parts: dict[str, dict[str, str]] = {part: {} for part in PARTS}
    for function in re.split(r"\n(?=[0-9a-f]+ <)", said):
        name = function.partition("\n")[0]
        parts[next(part for part, mark in PARTS.items() if mark in name)][name] = function
    return parts


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [
        pytest.param("", AVX, id="shared code has no AVX"),
        pytest.param("avx2", AVX512, id="avx2 has no AVX-512"),
        pytest.param("avx512", f"{BF16}|{FP16}", id="avx512 has neither bf16 nor fp16 instructions"),
        pytest.param("avx512_fp16", BF16, id="avx512_fp16 has no bf16 instructions"),
        pytest.param("avx512_bf16", FP16, id="avx512_bf16 has no fp16 instructions"),
    ],
)
def test_no_instruction_leaks(part: str, forbidden: str, code: dict[str, dict[str, str]]) -> None:
    assert [name for name, body in code[part].items() if re.search(forbidden, body)] == []


@pytest.mark.parametrize(
    ("part", "used"), [("avx2", AVX), ("avx512", AVX512), ("avx512_bf16", BF16), ("avx512_fp16", FP16)]
)
def test_each_part_uses_what_it_is_named_for(part: str, used: str, code: dict[str, dict[str, str]]) -> None:
    assert any(re.search(used, body) for body in code[part].values())
