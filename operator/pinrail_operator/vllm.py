"""A vLLM-compatible engine in place of ours: its command line from our fields, and what it cannot be asked for. Pure.

The image's own entry point is kept, since images differ in it; what they agree on is the flags. Nothing is fetched: the
folder that was verified is all that the engine gets, and it is told that there is no hub.
"""

from typing import Any

from pinrail_contract.launch import BackendName, Policy, Quantization, Switch, Verification, parse_bytes

from .engine_args import FORBIDDEN_ENV
from .engine_fields import KV_CACHE_MEMORY, MAX_QUEUED
from .errors import SpecError
from .types import InferenceService

OFFLINE = (("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1"))
"""Variables, before the user's own."""

_DEFAULT_CACHE = parse_bytes(KV_CACHE_MEMORY)
_POLICIES = (Policy.FCFS, Policy.PRIORITY)


def command_line(service: InferenceService, *, model_dir: str, host: str, port: int) -> list[str]:
    """The words after the image's entry point; the user's own come last."""
    limits, engine = service.limits, service.engine
    parallel = {"tensor": service.parallelism.tensor, "pipeline": service.parallelism.pipeline}
    flags: dict[str, Any] = {
        "model": model_dir,
        "served-model-name": service.model.name,
        "host": host,
        "port": port,
        "dtype": engine.dtype,
        **({"max-model-len": limits.max_model_len} if limits.max_model_len else {}),
        **{f"{name}-parallel-size": count for name, count in parallel.items() if count > 1},
        "max-num-seqs": limits.max_num_seqs,
        "max-num-batched-tokens": limits.max_num_batched_tokens,
        "block-size": limits.block_size,
        "scheduling-policy": service.scheduling.policy,
        **({"otlp-traces-endpoint": engine.traces_endpoint} if engine.traces_endpoint else {}),
    }
    cache = "--enable-prefix-caching" if engine.prefix_cache is Switch.ON else "--no-enable-prefix-caching"
    return [*(f"--{name}={value}" for name, value in flags.items()), cache, *engine.args]


def require_suitable(service: InferenceService) -> None:
    """Raises SpecError for the first field that such an engine has no counterpart of, so that none is ignored."""
    for field, seen, allowed, wanted in _asked(service):
        if not allowed:
            raise SpecError(field, f"got {seen!s}, want {wanted} while spec.engine.type is vllm")
    if service.verification is Verification.ENFORCE:
        for i, variable in enumerate(service.engine.env):
            if FORBIDDEN_ENV.fullmatch(variable.name):
                wanted = "want none that loads or runs something else than what is pinned"
                raise SpecError(f"spec.engine.env[{i}].name", f"got {variable.name!r}, {wanted}")


def _asked(service: InferenceService) -> tuple[tuple[str, object, bool, str], ...]:
    """Field, value, whether it can be honoured, and what can."""
    engine, limits, scheduling = service.engine, service.limits, service.scheduling
    left_out, size = "it left out", "it left out (spec.engine.args takes --gpu-memory-utilization)"
    return (
        ("spec.engine.image", "none", bool(engine.image), "the image of a vLLM-compatible engine"),
        ("spec.engine.backend", engine.backend, engine.backend is BackendName.AUTO, "auto"),
        ("spec.engine.quantization", engine.quantization, engine.quantization is Quantization.NONE, "none"),
        ("spec.engine.cacheEvents", "true", engine.cache_events is Switch.OFF, "false"),
        ("spec.limits.maxQueued", limits.max_queued, limits.max_queued == MAX_QUEUED, left_out),
        ("spec.limits.maxQueuedTokens", limits.max_queued_tokens, not limits.max_queued_tokens, left_out),
        ("spec.limits.maxQueueWaitSeconds", limits.max_queue_wait, not limits.max_queue_wait, left_out),
        ("spec.limits.kvCacheMemory", limits.kv_cache_memory, limits.kv_cache_memory in (0, _DEFAULT_CACHE), size),
        ("spec.scheduling.policy", scheduling.policy, scheduling.policy in _POLICIES, "fcfs or priority"),
        ("spec.scheduling.targetStepMilliseconds", scheduling.target_step, not scheduling.target_step, left_out),
        ("spec.scheduling.stepsInFlight", scheduling.steps_in_flight, not scheduling.steps_in_flight, left_out),
        ("spec.security.apiKeySecretRef", service.api_key_secret, not service.api_key_secret,
         "none, since it takes keys from its command line alone,"),
    )  # fmt: skip
