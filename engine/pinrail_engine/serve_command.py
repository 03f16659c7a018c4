"""`pinrail serve`: check the pins, then serve the model over HTTP until told to stop.

Nothing is served before the manifest and every file are what was pinned; the port opens while the weights load.
Hashing and loading give the interpreter up: the engine is imported beside the first, the HTTP side beside the other.
"""

import importlib
import logging
import os
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pinrail_contract.command import Command
from pinrail_contract.documents import read_manifest
from pinrail_contract.errors import ModelError, PinrailError
from pinrail_contract.launch import LaunchSpec, Switch
from pinrail_contract.pins import ModelManifest
from pinrail_contract.progress import ProgressBar
from pinrail_contract.termination import ExitCode, Reason, Termination, write

from .errors import KeysError, MismatchError

if TYPE_CHECKING:
    from .api.keys import ApiKeys
    from .run.loop import EngineLoop
    from .weights.verify import VerifiedModel


def _run(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        spec = LaunchSpec.parse(argv)
    except ValueError as e:
        print(f"pinrail serve: {e}", file=sys.stderr)
        return ExitCode.USAGE
    try:
        return _serve_pinned(spec)
    except ModelError as e:
        return _end(ExitCode.MODEL_MISMATCH, Reason.MODEL_MISMATCH, str(e))
    except MismatchError as e:
        return _end(ExitCode.ENGINE_MISMATCH, Reason.ENGINE_MISMATCH, str(e))
    except KeysError as e:
        return _end(ExitCode.FAILED, Reason.API_KEYS_MISSING, str(e))
    except PinrailError as e:
        return _end(ExitCode.FAILED, Reason.FAILED, str(e))
    except OSError as e:
        if e.filename is None:
            raise
        return _end(ExitCode.FAILED, Reason.FAILED, f"{e.filename}: {e.strerror}")


def _serve_pinned(spec: LaunchSpec) -> int:
    manifest = read_manifest(Path(spec.manifest))
    if spec.digest and manifest.digest != spec.digest:
        message = f"{spec.manifest}: has digest {manifest.digest}, want {spec.digest}"
        return _end(ExitCode.MANIFEST_MISMATCH, Reason.MANIFEST_MISMATCH, message)
    with ExitStack() as files:
        keys = files.enter_context(_keys(Path(spec.api_keys_dir))) if spec.api_keys_dir else None
        began = time.monotonic()
        model = _verify(spec, manifest, files)
        verified = time.monotonic()
        engine = _assemble(spec, model)
        engine.metrics.started("verify", verified - began)
        engine.metrics.started("import", time.monotonic() - verified)
        return _serve(spec, model, engine, keys)


def _keys(folder: Path) -> "ApiKeys":
    from .api.keys import ApiKeys

    return ApiKeys(folder)


def _verify(spec: LaunchSpec, manifest: ModelManifest, files: ExitStack) -> "VerifiedModel":
    from .weights.verify import open_verified

    imports = threading.Thread(target=_import_ahead, name="imports", daemon=True)
    imports.start()
    with ProgressBar("hashing", manifest.total_size) as progress:
        model = files.enter_context(open_verified(Path(spec.model_dir), manifest, spec.verification, progress))
    imports.join()  # nobody else may import meanwhile: half a module would be found
    return model


def _import_ahead() -> None:
    """What the engine's thread needs, for it imports nothing.

    What cannot be imported is left to those who need it: they say so. numpy's own threads, which would begin by waiting
    actively, have nothing to do here.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in (".run.start", ".run.native_backend"):
        with suppress(ImportError):
            importlib.import_module(name, __package__)


def _assemble(spec: LaunchSpec, model: "VerifiedModel") -> "EngineLoop":
    from .run.start import engine_for

    return engine_for(spec, model)


def _serve(spec: LaunchSpec, model: "VerifiedModel", engine: "EngineLoop", keys: "ApiKeys | None") -> int:
    engine.start()
    try:
        code = _serve_http(spec, model, engine, keys)
    finally:
        engine.stop()
    if isinstance(engine.failure, PinrailError):
        raise engine.failure
    if engine.failure is not None:
        return _end(ExitCode.FAILED, Reason.FAILED, f"{type(engine.failure).__name__}: {engine.failure}")
    return code


def _serve_http(spec: LaunchSpec, model: "VerifiedModel", engine: "EngineLoop", keys: "ApiKeys | None") -> int:
    from .api.server import ServerInfo, serve
    from .run.watchdog import Watchdog
    from .text.pipeline import TextPipeline

    text, identity = TextPipeline.from_files(model.read), engine.metrics.identity
    differing = model.manifest.runtime.differences(identity.runtime)
    info = ServerInfo(
        model_name=spec.served_model_name,
        manifest_digest=model.digest,
        verification=identity.verification,
        mismatches=tuple(str(m) for m in (*model.mismatches, *differing)),
        runtime=identity.runtime,
        created=int(time.time()),
        cache_events=spec.cache_events is Switch.ON,
    )
    with Watchdog(engine):
        return serve(engine, text, spec, info, keys)


def _end(code: int, reason: Reason, message: str) -> int:
    """Say why on stderr and where the kubelet looks."""
    print(f"pinrail serve: {message}", file=sys.stderr)
    write(Termination(reason, message))
    return code


command = Command("check the pins, then serve a model over HTTP", _run)
