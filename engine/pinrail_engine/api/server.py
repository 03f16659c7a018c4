"""The process's life: listen while the engine loads, serve, drain on SIGTERM, exit."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from pinrail_contract.launch import LaunchSpec
from pinrail_engine.core.types import Engine
from pinrail_engine.text.pipeline import TextPipeline

from .app import ServerInfo, create_app
from .keys import ApiKeys

__all__ = ["ServerInfo", "serve"]

_log = logging.getLogger("pinrail.api")

_MAX_HEAD_BYTES = 32 * 2**10  # request line and headers, unless they arrive in one read (of at most 256 KiB)
_FLUSH_SECONDS = 5  # after the drain: for answers that are ended but not yet sent
_TICK_SECONDS = 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(engine: Engine, text: TextPipeline, spec: LaunchSpec, info: ServerInfo, keys: ApiKeys | None = None) -> int:
    """Blocks until SIGTERM or SIGINT, and to the end of the drain; a second signal ends the process at once.

    The port is open from the start: while the engine loads, /health is 200 and /ready 503.

    Returns:
        0 after a drain; 1 when the port is taken or the engine has failed.
    """
    try:
        listener = _listen(spec.host, spec.port)
    except OSError as e:
        _log.error("cannot listen address=%s port=%d error=%s", spec.host, spec.port, e.strerror)
        return 1
    with listener:
        _log.info("listening address=%s port=%d", spec.host, spec.port)
        return asyncio.run(_serve(engine, create_app(engine, text, info, keys), listener, spec.drain_timeout))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


def uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    """h11, because httptools has no limit on headers; a time limit, because one stalled reader would block the exit."""
    return uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        loop="asyncio",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_FLUSH_SECONDS,
    )


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to `_serve`: uvicorn's own handler would close the port before the drain."""
        yield


async def _serve(engine: Engine, app: ASGIApp, listener: socket.socket, drain_timeout: float) -> int:
    server = _Server(uvicorn_config(app))
    stop = _stop_event()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    watching = asyncio.create_task(_watch(engine, stop))
    await asyncio.wait({serving, watching}, return_when=asyncio.FIRST_COMPLETED)
    failed = watching.done() and watching.result()
    if not failed:
        _log.info("draining timeout=%g", drain_timeout)
        await _drain(engine, drain_timeout)
    server.should_exit = True
    await serving
    _log.info("stopped failed=%s", str(failed).lower())
    return int(failed)


async def _watch(engine: Engine, stop: asyncio.Event) -> bool:
    """Until the engine has failed (True) or the process is to stop (False); says when it is ready."""
    said = False
    while not stop.is_set():
        state = engine.state
        if state == "failed":
            return True
        if state == "ready" and not said:
            said = True
            _log.info("ready max_model_len=%d", engine.max_model_len)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _TICK_SECONDS)
    return False


async def _drain(engine: Engine, timeout: float) -> None:
    """In a thread that cannot hold up the exit, should the engine hang."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_then, args=(lambda: engine.drain(timeout), loop, done), daemon=True).start()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), timeout + _FLUSH_SECONDS)


def _then(work: Callable[[], None], loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    try:
        work()
    finally:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done.set)


def _stop_event() -> asyncio.Event:
    """Set by the first signal; the next one has its default effect."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def first(_number: int) -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, first, number)
    return stop
