"""`spec.engine`, `spec.parallelism`, `spec.limits` and `spec.scheduling`: what one replica's engine is told. Pure."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from pinrail_contract.launch import BackendName, Dtype, Policy, Quantization, Switch, Verification, parse_bytes

from . import engine_args, environment
from .errors import SpecError
from .fields import Fields

MAX_QUEUED = 256  # requests; the default
KV_CACHE_MEMORY = "512Mi"  # the default
ENGINE_FIELDS = {
    "type", "image", "backend", "dtype", "quantization", "prefixCache", "cacheEvents", "tracesEndpoint", "env",
    "args",
}  # fmt: skip
LIMIT_FIELDS = {
    "maxModelLen", "maxNumSeqs", "maxNumBatchedTokens", "maxQueued", "maxQueuedTokens", "maxQueueWaitSeconds",
    "blockSize", "kvCacheMemory",
}  # fmt: skip


class EngineType(StrEnum):
    PINRAIL = "pinrail"  # ours
    VLLM = "vllm"  # any that takes vLLM's flags and speaks its metric names; an init container verifies its files


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`spec.engine`"""

    type: EngineType
    image: str  # empty: the operator's default
    backend: BackendName
    dtype: Dtype
    quantization: Quantization
    prefix_cache: Switch
    cache_events: Switch
    traces_endpoint: str  # URL of an OTLP/HTTP collector; empty: no traces
    env: tuple[environment.Variable, ...]
    args: tuple[str, ...]  # further flags, one a word; of an engine that is not ours

    @classmethod
    def parse(cls, f: Fields, verification: Verification) -> Self:
        kind = f.choice("type", EngineType.PINRAIL)
        image = f.text("image", pattern=r"\S+", wanted="an image reference", default="")
        if image and verification is Verification.ENFORCE and not is_pinned(image):
            wanted = "want a reference that ends in @sha256:<64 hex digits> while spec.verification.mode is Enforce"
            raise SpecError(f.path("image"), f"got {image!r}, {wanted}")
        backend, quantization = f.choice("backend", BackendName.AUTO), f.choice("quantization", Quantization.NONE)
        if backend is BackendName.TORCH and quantization is not Quantization.NONE:
            wanted = "want none while spec.engine.backend is torch: the native backend alone keeps weights so"
            raise SpecError(f.path("quantization"), f"got {str(quantization)!r}, {wanted}")
        args = engine_args.parse(f, verification)
        if args and kind is EngineType.PINRAIL:
            wanted = "want none while spec.engine.type is pinrail: every flag of that engine is a field of its own"
            raise SpecError(f.path("args"), f"got {args[0]!r}, {wanted}")
        return cls(
            type=kind,
            image=image,
            backend=backend,
            dtype=f.choice("dtype", Dtype.AUTO),
            quantization=quantization,
            prefix_cache=_switch(f.flag("prefixCache", True)),
            cache_events=_switch(f.flag("cacheEvents", False)),
            traces_endpoint=f.text("tracesEndpoint", pattern=r"https?://\S+", wanted="an http(s) URL", default=""),
            env=environment.parse(f),
            args=args,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """`spec.parallelism`: how one replica is spread over the devices of its pod, `tensor` times `pipeline` of them."""

    tensor: int  # devices that share each layer
    pipeline: int  # stages, each with its share of the layers

    @property
    def devices(self) -> int:
        """That one replica computes on."""
        return self.tensor * self.pipeline

    @classmethod
    def parse(cls, f: Fields, kind: EngineType) -> Self:
        found = {name: f.integer(name, least=1, most=64, default=1) for name in ("tensor", "pipeline")}
        for name, count in found.items():
            if count > 1 and kind is EngineType.PINRAIL:
                wanted = "want 1 while spec.engine.type is pinrail: that engine computes on one device"
                raise SpecError(f.path(name), f"got {count}, {wanted}")
        return cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`spec.limits`, per replica"""

    max_model_len: int  # tokens; 0: what the model and the cache allow
    max_num_seqs: int  # requests that run at once
    max_num_batched_tokens: int  # tokens in one step
    max_queued: int  # requests that may wait
    max_queued_tokens: int  # prompt tokens that may wait; 0: no bound
    max_queue_wait: int  # seconds that a request may wait for its first step; 0: no bound
    block_size: int  # tokens in one KV block
    kv_cache_memory: int  # bytes; 0: what is free in the pod, as the engine measures it

    @classmethod
    def parse(cls, f: Fields) -> Self:
        return cls(
            max_model_len=f.optional_integer("maxModelLen", least=1, most=2**24) or 0,
            max_num_seqs=f.integer("maxNumSeqs", least=1, most=4096, default=32),
            max_num_batched_tokens=f.integer("maxNumBatchedTokens", least=1, most=2**20, default=512),
            max_queued=f.integer("maxQueued", least=1, most=10**6, default=MAX_QUEUED),
            max_queued_tokens=f.optional_integer("maxQueuedTokens", least=1, most=2**40) or 0,
            max_queue_wait=f.optional_integer("maxQueueWaitSeconds", least=1, most=86400) or 0,
            block_size=f.integer("blockSize", least=1, most=1024, default=16),
            kv_cache_memory=_memory(f),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """`spec.scheduling`: how one replica fills its steps."""

    policy: Policy
    target_step: int  # milliseconds that a step should take while texts are continued; 0: by the device
    steps_in_flight: int  # steps launched before the first one's tokens are known; 0: by the device

    @classmethod
    def parse(cls, f: Fields) -> Self:
        return cls(
            policy=f.choice("policy", Policy.FCFS),
            target_step=f.optional_integer("targetStepMilliseconds", least=1, most=60_000) or 0,
            steps_in_flight=f.optional_integer("stepsInFlight", least=1, most=8) or 0,
        )


def is_pinned(image: str) -> bool:
    """Whether an image reference names its content by digest."""
    return re.search(r"@sha256:[0-9a-f]{64}$", image) is not None


def _memory(f: Fields) -> int:
    """Bytes, or 0 for `auto`."""
    text = f.text("kvCacheMemory", pattern=r".*", wanted="bytes such as 512Mi, or auto", default=KV_CACHE_MEMORY)
    if text == "auto":
        return 0
    try:
        size = parse_bytes(text)
    except ValueError as e:
        raise SpecError(f.path("kvCacheMemory"), str(e)) from e
    if not 2**16 <= size <= 2**44:
        raise SpecError(f.path("kvCacheMemory"), f"got {text!r}, want 64Ki to 16Ti, such as 512Mi or 2Gi, or auto")
    return size


def _switch(on: bool) -> Switch:
    return Switch.ON if on else Switch.OFF
