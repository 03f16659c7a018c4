"""From flags and verified files to an engine: everything is checked here, nothing is loaded yet."""

import logging
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pinrail_contract.canonical import loads_strict
from pinrail_contract.errors import ModelError
from pinrail_contract.launch import Dtype, LaunchSpec, Switch, Verification
from pinrail_contract.pins import Architecture

from ..core import prefix
from ..core.door import Caps
from ..core.kv_blocks import KvBlocks
from ..core.state import State
from ..metrics import Identity, Metrics
from ..model.arch import Arch
from ..weights.verify import VerifiedModel
from . import dtype, sizes, threads
from .backend import Backend
from .loop import EngineLoop, LoopOptions, RootOf
from .torch_backend import ELEMENT_SIZES, TorchBackend, TorchOptions, has_accelerator

if TYPE_CHECKING:
    from ..tracing import Tracer

log = logging.getLogger(__name__)

_TARGET_STEP_MS = {False: 200, True: 50}  # by whether there is an accelerator
_STEPS_IN_FLIGHT = {False: 1, True: 2}


def engine_for(spec: LaunchSpec, model: VerifiedModel) -> EngineLoop:
    """An engine in the state `loading`, whose thread is not started; `model` must stay open until it has loaded.

    Raises ModelError, ConfigError or LaunchError.
    """
    config = _config(model)
    arch = Arch.from_config(config)
    _check_architecture(config, model, spec.verification)
    accelerator = has_accelerator()
    chosen, reason = dtype.choose(spec.dtype, dtype.processor(), accelerator)
    sizes.check(spec, arch, ELEMENT_SIZES[chosen])
    log.info("compute type dtype=%s reason=%s", chosen, reason)
    options = TorchOptions(dtype=chosen, block_size=spec.block_size, threads=threads.allowed())
    backend = TorchBackend(model.weights(), arch, options, model.check_untouched)
    return EngineLoop(
        lambda: _lay_out(spec, arch, chosen, backend),
        backend,
        Metrics(_identity(spec, model)),
        LoopOptions(
            caps=Caps(
                max_queued=spec.max_queued, max_queued_tokens=spec.max_queued_tokens, max_wait=spec.max_queue_wait
            ),
            steps_in_flight=spec.steps_in_flight or _STEPS_IN_FLIGHT[accelerator],
            policy=spec.policy,
            root_of=_root(spec, model, chosen),
        ),
        tracer=_tracer(spec),
    )


def _lay_out(spec: LaunchSpec, arch: Arch, chosen: Dtype, backend: Backend) -> State:
    """With the weights loaded: measure if asked to, take the cache's memory, and say what led to its size."""
    free = 0
    if not spec.kv_cache_memory:
        free = backend.measure(sizes.seqs(spec), spec.max_num_batched_tokens)
    target = (spec.target_step_ms or _TARGET_STEP_MS[has_accelerator()]) / 1000
    size = sizes.sizes(spec, arch, ELEMENT_SIZES[chosen], free, target)
    backend.allocate(size.kv_blocks, size.limits.max_num_seqs, size.limits.max_model_len)
    log.info(
        "sizes kv_blocks=%d block_size=%d kv_bytes=%d free_bytes=%s max_model_len=%d",
        size.kv_blocks,
        spec.block_size,
        size.kv_blocks * arch.kv_block_bytes(spec.block_size, ELEMENT_SIZES[chosen]),
        free or "unmeasured",
        size.limits.max_model_len,
    )
    return State(size.limits, KvBlocks(size.kv_blocks, spec.block_size))


def _root(spec: LaunchSpec, model: VerifiedModel, chosen: Dtype) -> RootOf | None:
    if spec.prefix_cache is Switch.OFF:
        return None
    return lambda salt: prefix.root(model=model.digest, dtype=chosen, block_size=spec.block_size, salt=salt)


def _tracer(spec: LaunchSpec) -> "Tracer | None":
    """Imported where wanted alone: it takes time."""
    if not spec.otlp_traces_endpoint:
        return None
    from ..tracing import Tracer

    return Tracer.from_settings(spec.otlp_traces_endpoint, "pinrail", spec.served_model_name)


def _config(model: VerifiedModel) -> Any:
    data = model.read("config.json")
    if data is None:
        raise ModelError("config.json: missing, want the description of the network")
    return loads_strict(data, "config.json")


def _check_architecture(config: Any, model: VerifiedModel, mode: Verification) -> None:
    """config.json against the manifest's own record of the shape."""
    seen, wanted = Architecture.from_config(config).to_json(), model.manifest.architecture.to_json()
    wrong = [f"{key} is {seen[key]}, want {wanted[key]}" for key in wanted if seen[key] != wanted[key]]
    if not wrong:
        return
    message = f"config.json: differs from the manifest's architecture: {'; '.join(wrong)}"
    if mode is Verification.ENFORCE:
        raise ModelError(message)
    log.warning("%s", message)


def _identity(spec: LaunchSpec, model: VerifiedModel) -> Identity:
    return Identity(
        model_name=spec.served_model_name,
        digest=model.digest,
        engine_version=version("pinrail"),
        verification=model.verdict,
        block_size=spec.block_size,
        max_num_seqs=sizes.seqs(spec),
    )
