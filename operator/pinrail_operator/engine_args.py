"""Further flags of a vLLM-compatible engine, and those that would undo what is pinned. Pure.

A flag stands in one word, `--name=value`, so that what it names can be told. argparse takes any beginning of a name for
the name, so a beginning is refused like the name itself; a vLLM that reads `--name.key=value` as a part of `--name` is
met the same way. New releases bring new flags: the lists hold those that are known to load something else than the
verified folder, or to run code that the image does not hold.
"""

import re
from collections.abc import Iterable

from pinrail_contract.launch import Verification

from .errors import SpecError
from .fields import Fields

MOST = 32
_WORD = re.compile(r"--(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)(?:\.[A-Za-z0-9_.+-]+)?(?:=(?s:.*))?")

OURS = (
    "model", "served-model-name", "host", "port", "dtype", "max-model-len", "max-num-seqs", "max-num-batched-tokens",
    "block-size", "scheduling-policy", "enable-prefix-caching", "no-enable-prefix-caching", "otlp-traces-endpoint",
    "tensor-parallel-size", "pipeline-parallel-size",
    "api-key", "uds", "config", "ssl-keyfile", "ssl-certfile", "root-path", "headless", "disable-log-stats",
)  # fmt: skip
"""Rendered from other fields, or what the operator needs to reach and read the engine; never taken."""

UNPINNING = (
    "trust-remote-code", "revision", "code-revision", "tokenizer", "tokenizer-revision", "tokenizer-mode",
    "hf-overrides", "hf-config-path", "hf-token", "config-format", "load-format", "model-loader-extra-config",
    "download-dir", "generation-config", "override-generation-config", "chat-template", "lora-modules", "enable-lora",
    "speculative-config", "quantization-param-path", "worker-cls", "worker-extension-cls", "middleware",
    "tool-parser-plugin", "reasoning-parser-plugin", "logits-processors", "logits-processor-pattern",
    "kv-transfer-config", "weight-transfer-config", "rope-scaling", "rope-theta", "enable-prompt-embeds",
    "trust-request-chat-template", "io-processor-plugin",
)  # fmt: skip
"""Refused while verification is enforced."""

FORBIDDEN_ENV = re.compile(
    r"(HF|HUGGING|TRANSFORMERS)_?.*|VLLM_(PLUGINS|API_KEY|USE_MODELSCOPE|SERVER_DEV_MODE|ALLOW_INSECURE_.*|ALLOW_RUNTIME_.*)"
)
"""Variables that would do the same."""


def parse(f: Fields, verification: Verification) -> tuple[str, ...]:
    """The words of `args`; raises SpecError for one that is no flag, or one that must not be given."""
    words = f.items("args", MOST)
    for i, word in enumerate(words):
        _require_allowed(f.path(f"args[{i}]"), word, verification)
    return tuple(words)


def _require_allowed(path: str, word: object, verification: Verification) -> None:
    match = _WORD.fullmatch(word) if isinstance(word, str) and len(word) <= 256 else None
    if match is None:
        raise SpecError(
            path, f"got {str(word)[:80]!r}, want one flag a word, as --name or --name=value, of at most 256"
        )
    name = match["name"]
    if _begins(name, OURS):
        raise SpecError(path, f"got {'--' + name}, want none that other fields of the spec or the operator set")
    if verification is Verification.ENFORCE and _begins(name, UNPINNING):
        wanted = (
            "want none that loads or runs something else than what is pinned while spec.verification.mode is Enforce"
        )
        raise SpecError(path, f"got {'--' + name}, {wanted}")


def _begins(name: str, flags: Iterable[str]) -> bool:
    return any(flag.startswith(name) for flag in flags)
