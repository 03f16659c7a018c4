"""What bytes a token stands for, read from the `decoder` of tokenizer.json. Pure.

Two families cover the models we serve; anything else is refused at load, never guessed at:

| decoder                                   | a token's bytes                                          |
|-------------------------------------------|----------------------------------------------------------|
| ByteLevel (GPT-2, Llama 3, Qwen, SmolLM)  | each character is one byte, by GPT-2's table             |
| Replace, ByteFallback, Fuse[, Strip]      | `<0x0A>` is that byte, any other token its own UTF-8     |
| (Llama 2, Mistral, Gemma, Phi-3)          | with `▁` replaced by a space; Strip drops leading spaces |

Source: the tokenizers library, `decoders/{byte_level,byte_fallback,fuse,strip}.rs`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import TokenizerError

_FILE = "tokenizer.json"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class PieceFormat:
    to_bytes: Callable[[str], bytes]
    strip_left: int = 0  # spaces dropped from the very start of the text, at most


def piece_format(decoder: Any) -> PieceFormat:
    """Raises TokenizerError for a decoder of neither family."""
    steps = _steps(decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return PieceFormat(_byte_level)
    plain = [kind for kind in kinds if kind != "Replace"]
    if plain in (["ByteFallback", "Fuse"], ["ByteFallback", "Fuse", "Strip"]) and kinds[-len(plain) :] == plain:
        replaced = [_replacement(step) for step in steps[: -len(plain)]]
        return PieceFormat(_byte_fallback(replaced), _strip_left(steps[-1]))
    raise TokenizerError(_FILE, f"decoder: got {kinds}, want ByteLevel or Replace + ByteFallback + Fuse [+ Strip]")


def _steps(decoder: Any) -> list[Mapping[str, Any]]:
    if not isinstance(decoder, Mapping):
        raise TokenizerError(_FILE, "decoder: missing, want ByteLevel or a byte-fallback sequence")
    return list(decoder["decoders"]) if decoder.get("type") == "Sequence" else [decoder]


def _replacement(step: Mapping[str, Any]) -> tuple[str, str]:
    pattern = step.get("pattern")
    if not isinstance(pattern, Mapping) or "String" not in pattern:
        raise TokenizerError(_FILE, "decoder: Replace has a regular expression, want a plain string")
    return str(pattern["String"]), str(step.get("content", ""))


def _strip_left(step: Mapping[str, Any]) -> int:
    if step.get("type") != "Strip":
        return 0
    if step.get("content") != " " or step.get("stop") != 0:
        raise TokenizerError(_FILE, "decoder: Strip is not of leading spaces alone")
    return int(step["start"])


def _byte_fallback(replaced: list[tuple[str, str]]) -> Callable[[str], bytes]:
    def to_bytes(token: str) -> bytes:
        for old, new in replaced:
            token = token.replace(old, new)
        byte = _BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.encode()

    return to_bytes


def _byte_level(token: str) -> bytes:
    """A token with a character outside the table (an added token, say) stands for its own UTF-8."""
    try:
        return bytes(_BYTE_OF[char] for char in token)
    except KeyError:
        return token.encode()


def byte_table() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = byte_table()
