"""From flags and verified files to an engine: everything is checked here, nothing is loaded yet."""

import logging
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pinrail_contract.canonical import loads_strict
from pinrail_contract.errors import ModelError
from pinrail_contract.launch import BackendName, Dtype, LaunchSpec, Switch, Verification
from pinrail_contract.metrics import ENGINE_DIFFERS, VERIFIED
from pinrail_contract.pins import Architecture

from ..core import prefix
from ..core.door import Caps
from ..core.kv_blocks import KvBlocks
from ..core.state import State
from ..errors import MismatchError
from ..metrics import Computing, Identity, Metrics
from ..model.arch import Arch
from ..weights.verify import VerifiedModel
from . import accelerator, dtype, sizes, threads
from .backend import Backend
from .choice import choose_backend
from .dtype import ELEMENT_SIZES
from .loop import EngineLoop, LoopOptions, RootOf

if TYPE_CHECKING:
    from ..tracing import Tracer
    from .native_backend import NativeOptions

log = logging.getLogger(__name__)

_TARGET_STEP_MS = {False: 100, True: 50}  # by whether there is an accelerator
_STEPS_IN_FLIGHT = {False: 1, True: 2}


def engine_for(spec: LaunchSpec, model: VerifiedModel) -> EngineLoop:
    """An engine in the state `loading`, whose thread is not started; `model` must stay open until it has loaded.

    Raises ModelError, ConfigError, LaunchError or MismatchError.
    """
    config = _config(model)
    arch = Arch.from_config(config)
    _check_architecture(config, model, spec.verification)
    chosen = _choose(spec, arch)
    sizes.check(spec, arch, ELEMENT_SIZES[chosen.dtype])
    backend = _backend(spec, arch, model, chosen)
    identity = _identity(spec, model, _computing(spec, chosen, backend))
    return EngineLoop(
        lambda: _lay_out(spec, arch, chosen, backend),
        backend,
        Metrics(identity),
        LoopOptions(
            caps=Caps(
                max_queued=spec.max_queued, max_queued_tokens=spec.max_queued_tokens, max_wait=spec.max_queue_wait
            ),
            steps_in_flight=spec.steps_in_flight or _STEPS_IN_FLIGHT[chosen.accelerator],
            policy=spec.policy,
            root_of=_root(spec, model, chosen),
        ),
        tracer=_tracer(spec),
    )


@dataclass(frozen=True, slots=True)
class _Chosen:
    backend: BackendName  # not AUTO
    dtype: Dtype  # not AUTO
    accelerator: bool  # it computes there


def _choose(spec: LaunchSpec, arch: Arch) -> _Chosen:
    """What computes, in which type; says why in the log. Raises LaunchError."""
    on_accelerator = spec.backend is not BackendName.NATIVE and _has_accelerator()
    backend, why = choose_backend(
        spec.backend,
        spec.quantization,
        torch=accelerator.has_torch(),
        accelerator=on_accelerator,
        native_problem=lambda: _native_problem(spec, arch),
    )
    log.info("backend backend=%s reason=%s", backend, why)
    on_accelerator = on_accelerator and backend is BackendName.TORCH
    chosen, why = dtype.choose(spec.dtype, backend, dtype.processor(), on_accelerator)
    log.info("number type dtype=%s quantization=%s reason=%s", chosen, spec.quantization, why)
    return _Chosen(backend, chosen, on_accelerator)


def _has_accelerator() -> bool:
    if not (accelerator.has_torch() and accelerator.has_nvidia()):
        return False
    from .torch_backend import has_accelerator

    return has_accelerator()


def _native_problem(spec: LaunchSpec, arch: Arch) -> str:
    from .native_backend import problem

    chosen, _ = dtype.choose(spec.dtype, BackendName.NATIVE, dtype.Processor(), False)
    return problem(arch, _native_options(spec, chosen))


def _backend(spec: LaunchSpec, arch: Arch, model: VerifiedModel, chosen: _Chosen) -> Backend:
    """Backends are imported here, each only where it is chosen: torch alone takes seconds and half a gigabyte."""
    if chosen.backend is BackendName.NATIVE:
        from .native_backend import NativeBackend

        return NativeBackend(model.weights(), arch, _native_options(spec, chosen.dtype), model.check_untouched)
    from .torch_backend import TorchBackend, TorchOptions

    options = TorchOptions(dtype=chosen.dtype, block_size=spec.block_size, threads=threads.allowed())
    return TorchBackend(model.weights(), arch, options, model.check_untouched)


def _native_options(spec: LaunchSpec, chosen: Dtype) -> "NativeOptions":
    from .native_backend import NativeOptions

    return NativeOptions(
        dtype=chosen, quantization=spec.quantization, block_size=spec.block_size, threads=threads.allowed()
    )


def _lay_out(spec: LaunchSpec, arch: Arch, chosen: _Chosen, backend: Backend) -> State:
    """With the weights loaded: measure if asked to, take the cache's memory, and say what led to its size."""
    free = 0
    if not spec.kv_cache_memory:
        free = backend.measure(sizes.seqs(spec), spec.max_num_batched_tokens)
    target = (spec.target_step_ms or _TARGET_STEP_MS[chosen.accelerator]) / 1000
    size = sizes.sizes(spec, arch, ELEMENT_SIZES[chosen.dtype], free, target)
    backend.allocate(size.kv_blocks, size.limits.max_num_seqs, size.limits.max_model_len)
    log.info(
        "sizes kv_blocks=%d block_size=%d kv_bytes=%d free_bytes=%s max_model_len=%d",
        size.kv_blocks,
        spec.block_size,
        size.kv_blocks * arch.kv_block_bytes(spec.block_size, ELEMENT_SIZES[chosen.dtype]),
        free or "unmeasured",
        size.limits.max_model_len,
    )
    return State(size.limits, KvBlocks(size.kv_blocks, spec.block_size))


def _root(spec: LaunchSpec, model: VerifiedModel, chosen: _Chosen) -> RootOf | None:
    if spec.prefix_cache is Switch.OFF:
        return None
    return lambda salt: prefix.root(
        model=model.digest,
        dtype=chosen.dtype,
        block_size=spec.block_size,
        quantization=spec.quantization,
        salt=salt,
    )


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


def _computing(spec: LaunchSpec, chosen: _Chosen, backend: Backend) -> Computing:
    return Computing(
        backend=chosen.backend,
        instructions=backend.instructions,
        dtype=chosen.dtype,
        quantization=spec.quantization,
        threads=threads.allowed(),
    )


def _identity(spec: LaunchSpec, model: VerifiedModel, computing: Computing) -> Identity:
    """What this engine says of itself; raises MismatchError where the manifest pins another, and verification is on."""
    identity = Identity(
        model_name=spec.served_model_name,
        digest=model.digest,
        engine_version=version("pinrail"),
        verification=model.verdict,
        block_size=spec.block_size,
        max_num_seqs=sizes.seqs(spec),
        computing=computing,
    )
    different = model.manifest.runtime.differences(identity.runtime)
    if different and spec.verification is Verification.ENFORCE:
        raise MismatchError(model.digest, different)
    for difference in different:
        log.warning("the manifest pins another engine, served all the same: %s", difference)
    if different and identity.verification == VERIFIED:
        return replace(identity, verification=ENGINE_DIFFERS)
    return identity
