"""From flags and verified files to an engine: everything is checked here, nothing is loaded yet."""

import logging
from importlib.metadata import version
from typing import Any

from pinrail_contract.canonical import loads_strict
from pinrail_contract.errors import ModelError
from pinrail_contract.launch import LaunchSpec, Verification
from pinrail_contract.pins import Architecture

from ..core.kv_blocks import KvBlocks
from ..core.state import State
from ..metrics import Identity, Metrics
from ..model.arch import Arch
from ..weights.verify import VerifiedModel
from . import dtype, threads
from .loop import EngineLoop
from .sizes import sizes
from .torch_backend import ELEMENT_SIZES, TorchBackend, TorchOptions, has_accelerator

log = logging.getLogger(__name__)


def engine_for(spec: LaunchSpec, model: VerifiedModel) -> EngineLoop:
    """An engine in the state `loading`, whose thread is not started; `model` must stay open until it has loaded.

    Raises ModelError, ConfigError or LaunchError.
    """
    config = _config(model)
    arch = Arch.from_config(config)
    _check_architecture(config, model, spec.verification)
    chosen, reason = dtype.choose(spec.dtype, dtype.processor(), has_accelerator())
    size = sizes(spec, arch, ELEMENT_SIZES[chosen])
    log.info("compute type dtype=%s reason=%s", chosen, reason)
    log.info(
        "sizes kv_blocks=%d block_size=%d max_model_len=%d", size.kv_blocks, spec.block_size, size.limits.max_model_len
    )
    options = TorchOptions(
        dtype=chosen, kv_blocks=size.kv_blocks, block_size=spec.block_size, threads=threads.allowed()
    )
    state = State(size.limits, KvBlocks(size.kv_blocks, spec.block_size))
    backend = TorchBackend(model.weights(), arch, options, model.check_untouched)
    return EngineLoop(state, backend, Metrics(_identity(spec, model, state)), max_queued=spec.max_queued)


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


def _identity(spec: LaunchSpec, model: VerifiedModel, state: State) -> Identity:
    return Identity(
        model_name=spec.served_model_name,
        digest=model.digest,
        engine_version=version("pinrail"),
        verification=model.verdict,
        kv_blocks=state.kv.total,
        block_size=state.kv.block_size,
        max_num_seqs=state.limits.max_num_seqs,
    )
