"""What the inside of the engine raises on purpose.

PinrailError (of the contract)
└── EngineError
    ├── ConfigError    config.json describes a network that this engine does not compute
    ├── WeightsError   the weight files do not hold the tensors that config.json asks for
    ├── LaunchError    the flags do not fit the model or the machine
    ├── KeysError      the folder of API keys lets nobody in
    └── MismatchError  the manifest pins another engine, or other numerics
"""

from collections.abc import Iterable
from pathlib import Path

from pinrail_contract.errors import PinrailError
from pinrail_contract.runtime import Difference


class EngineError(PinrailError):
    """Base of the errors above; anything else that escapes is a bug."""


class ConfigError(EngineError):
    """A field of config.json cannot be honoured.

    Args:
        field: Key inside config.json, e.g. "rope_parameters.rope_type".
        seen: The value found there.
        wanted: What would be right, in words.
    """

    def __init__(self, field: str, seen: object, wanted: str) -> None:
        shown = repr(seen)
        super().__init__(f"config.json: {field}: got {shown if len(shown) < 200 else shown[:200] + '…'}, want {wanted}")
        self.field = field


class WeightsError(EngineError):
    """The message names every tensor, or the file, and what is wrong with it."""


class KeysError(EngineError):
    """A server that asks for keys and has none does not start: it could only refuse."""

    def __init__(self, folder: Path, problem: str) -> None:
        super().__init__(f"--api-keys-dir: {folder} {problem}, want a folder with a key in each file")


class MismatchError(EngineError):
    """This engine, or what it would compute in, is not what the manifest pins; the message names every field.

    Args:
        digest: Of the manifest.
        differences: Between what it pins and what this engine is.
    """

    def __init__(self, digest: str, differences: Iterable[Difference]) -> None:
        listed = "; ".join(str(d) for d in differences)
        step = "run the version and the flags (--backend, --dtype, --quantization) that it pins, or pin what runs here"
        super().__init__(f"manifest {digest} pins another engine: {listed}; {step}")


class LaunchError(EngineError):
    """A flag, what it was, and what would be right."""

    def __init__(self, flag: str, seen: object, wanted: str) -> None:
        super().__init__(f"{flag}: got {seen}, want {wanted}")
        self.flag = flag
