"""The engine's command line: the operator renders it, the engine parses it. Pure.

One dataclass stands for both, and `LaunchSpec.parse(spec.args()) == spec` is tested.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from . import endpoints


class Verification(StrEnum):
    ENFORCE = "Enforce"  # a mismatch refuses to start
    WARN = "Warn"  # a mismatch is reported, and served


class Dtype(StrEnum):
    AUTO = "auto"  # the fastest that this processor computes well
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class BackendName(StrEnum):
    """What computes."""

    AUTO = "auto"  # torch where it finds an accelerator, else the native kernels where they can, else torch
    NATIVE = "native"  # the C++ kernels, on this processor
    TORCH = "torch"


class Quantization(StrEnum):
    """How weights are kept in memory; what is computed with them is in float32."""

    NONE = "none"  # in the compute type
    INT8 = "int8"  # a scale for each output
    INT4 = "int4"  # a scale for 32 inputs of each output; embedding table and head in int8


class Policy(StrEnum):
    """Who of the queue is served first."""

    FCFS = "fcfs"  # first come, first served
    PRIORITY = "priority"  # the lowest `priority` of the request's body; waiting raises it
    SJF = "sjf"  # the shortest prompt; waiting makes it shorter
    EDF = "edf"  # the earliest `deadline` of the request's body


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


_SUFFIX = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def parse_bytes(text: str) -> int:
    """Bytes of a Kubernetes quantity such as 512Mi or 2G; raises ValueError."""
    match = re.fullmatch(r"(\d+)(|k|M|G|T|Ki|Mi|Gi|Ti)", text)
    if not match or int(match[1]) == 0:
        raise ValueError(f"got {text!r}, want bytes above 0 such as 512Mi or 2Gi")
    return int(match[1]) * _SUFFIX[match[2]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Everything that `pinrail serve` is told."""

    model_dir: str
    manifest: str  # path of the manifest, JSON or YAML
    digest: str = ""  # sha256:… that the manifest must have; empty accepts any
    served_model_name: str = "model"
    host: str = "127.0.0.1"
    port: int = endpoints.PORT
    verification: Verification = Verification.ENFORCE
    backend: BackendName = BackendName.AUTO
    dtype: Dtype = Dtype.AUTO
    quantization: Quantization = Quantization.NONE
    max_model_len: int = 0  # tokens; 0: what the model and the cache allow
    max_num_seqs: int = 32  # requests that run at once
    max_num_batched_tokens: int = 512  # tokens in one step
    policy: Policy = Policy.FCFS
    target_step_ms: int = 0  # milliseconds that a step should take while texts are continued; 0: by the device
    steps_in_flight: int = 0  # steps launched before the first one's tokens are known; 0: by the device
    max_queued: int = 256  # requests that may wait
    max_queued_tokens: int = 0  # prompt tokens that may wait; 0: no bound
    max_queue_wait: int = 0  # seconds that a request may wait for its first step; 0: no bound
    block_size: int = 16  # tokens in one KV block
    kv_cache_memory: int = 0  # bytes; 0: what is free, as measured after the weights are loaded
    prefix_cache: Switch = Switch.ON
    cache_events: Switch = Switch.OFF
    otlp_traces_endpoint: str = ""  # URL of an OTLP/HTTP collector; empty: no traces
    api_keys_dir: str = ""  # folder with a key in each file; empty: whoever reaches the port may ask
    drain_timeout: int = 30  # seconds that running requests have after SIGTERM

    def __post_init__(self) -> None:
        for name, least, most in _BOUNDS:
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{_flag(name)}: got {value}, want {least} to {most}")
        if 0 < self.kv_cache_memory < _LEAST_KV:
            raise ValueError(f"--kv-cache-memory: got {self.kv_cache_memory}, want 0 or at least {_LEAST_KV}")

    def args(self) -> list[str]:
        """The command line that parses to this; defaults are left out."""
        words: list[str] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value != f.default:
                words.append(f"{_flag(f.name)}={value}")
        return words

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """Raises ValueError for values out of bounds; exits with 2 for words that are no flags."""
        return cls(**vars(_parser(cls).parse_args(list(words))))


_BOUNDS = (
    ("port", 1, 65535),
    ("max_model_len", 0, 2**24),
    ("max_num_seqs", 1, 4096),
    ("max_num_batched_tokens", 1, 2**20),
    ("target_step_ms", 0, 60_000),
    ("steps_in_flight", 0, 8),
    ("max_queued", 1, 10**6),
    ("max_queued_tokens", 0, 2**40),
    ("max_queue_wait", 0, 86400),
    ("block_size", 1, 1024),
    ("kv_cache_memory", 0, 2**44),
    ("drain_timeout", 0, 86400),
)

_LEAST_KV = 2**16  # bytes

_HELP = {
    "model_dir": "folder that holds exactly the files of the manifest",
    "manifest": "ModelManifest, JSON or YAML",
    "digest": "sha256:… that the manifest must have",
    "served_model_name": "the name that requests give in `model`",
    "host": "address to listen on",
    "port": "port to listen on",
    "verification": "Enforce refuses to start on a mismatch, Warn reports it and serves",
    "backend": "what computes: native kernels or torch; auto takes torch where it finds an accelerator, else native "
    "where it can",
    "quantization": "weights in memory: none keeps the compute type; int8 or int4, of the native backend, take less",
    "dtype": "compute type; auto takes the fastest that this processor computes well",
    "max_model_len": "longest prompt plus output, tokens; 0: what the model and the cache allow",
    "max_num_seqs": "requests that run at once",
    "max_num_batched_tokens": "tokens in one step: prefill is cut into chunks of at most this",
    "policy": "who is served first: fcfs, priority, sjf (shortest prompt), edf (earliest deadline); all count waiting",
    "target_step_ms": "milliseconds that a step should take while texts are continued: bounds its prompt tokens; "
    "0: 100 on a CPU, 50 on an accelerator",
    "steps_in_flight": "steps launched before the first one's tokens are known; 0: 1 on a CPU, 2 on an accelerator",
    "max_queued": "requests that may wait; past it the answer is 429",
    "max_queued_tokens": "prompt tokens that may wait; past it the answer is 429; 0: no bound",
    "max_queue_wait": "seconds that a request may wait for its first step, then the answer is 429; 0: no bound",
    "block_size": "tokens in one KV block",
    "kv_cache_memory": "bytes for the KV cache, such as 512Mi; 0: what is free once the weights are loaded",
    "prefix_cache": "on: prompts that begin alike share the KV blocks of what they have in common",
    "cache_events": "on: GET /cache_events tells routers which blocks are cached",
    "otlp_traces_endpoint": "URL that traces are sent to by OTLP/HTTP, such as http://collector:4318/v1/traces",
    "api_keys_dir": "folder with an API key in each file, as a Secret is mounted; requests need one of them, and the "
    "folder is read again when it changes",
    "drain_timeout": "seconds that running requests have after SIGTERM",
}


def _parser(cls: type[LaunchSpec]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pinrail serve", description="Serve one pinned model over HTTP.")
    for f in fields(cls):
        options: dict[str, Any] = {"help": _HELP[f.name], "dest": f.name}
        kind: Any = f.type
        if f.name == "kv_cache_memory":
            options["type"] = _bytes_argument
        elif isinstance(kind, type) and issubclass(kind, StrEnum):
            options |= {"type": kind, "choices": list(kind)}
        else:
            options["type"] = kind
        if f.name in ("model_dir", "manifest"):
            options["required"] = True
        else:
            options["default"] = f.default
        parser.add_argument(_flag(f.name), **options)
    return parser


def _bytes_argument(text: str) -> int:
    try:
        return 0 if text == "0" else parse_bytes(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
