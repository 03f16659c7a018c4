"""Puts the operator together and runs it: Kopf watches, the queue reconciles, the Lease says who may write."""

import asyncio
import contextlib
import itertools
import logging
import random
import signal
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import kopf

from . import handlers, health, names
from .api import Api, connect
from .cluster import Cluster
from .errors import NotLeader
from .leader import Leadership
from .metrics import Scraper
from .prometheus import NoServer, Prometheus
from .queue import KeyQueue
from .reconcile import Reconciler
from .settings import Settings
from .telemetry import Telemetry
from .types import ServiceKey

log = logging.getLogger("pinrail.operator")

WATCH_PAUSES = (1.0, 2.0, 5.0, 10.0)  # seconds before the watches are begun anew; after the last, the process fails
WATCH_LASTED = 60.0  # seconds after which watches that end count as the first that do
WATCH_SILENCE = 70.0  # seconds; a watch that lives says something each minute, and is believed dead after these


def run(settings: Settings) -> int:
    """Returns when a signal ends it; raises OperatorError where it cannot even start."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("leaderelection").setLevel(logging.WARNING)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    asyncio.run(_run(settings))
    return 0


async def _run(settings: Settings) -> None:
    queue: KeyQueue[ServiceKey] = KeyQueue(settings.concurrency)
    telemetry = Telemetry(lambda: leadership.is_leader(), queue)
    http = connect(telemetry.requested)
    leadership = Leadership.candidate(http, settings.lease_namespace, settings.lease_name, settings.lease_identity)
    api = Api(http, leadership.is_leader)
    cluster = Cluster(api)
    scraper = Scraper.create()
    prometheus = _prometheus(settings, telemetry)
    reconciler = Reconciler(
        cluster=cluster,
        scraper=telemetry.counted(scraper),
        prometheus=prometheus,
        engine_image=settings.engine_image,
        host_caches=settings.allowed_host_caches,
        namespace=settings.own_namespace(),
        tick=settings.tick,
        resync=settings.resync,
        told=telemetry.told,
    )

    async def work(key: ServiceKey) -> float | None:
        if not leadership.is_leader():
            raise NotLeader("another operator leads")
        return await reconciler.reconcile(key)

    await cluster.require_crds()
    server = await health.serve(health.application(queue, leadership, telemetry.registry), settings.health_port)
    try:
        await _first_ended(
            queue.run(telemetry.measured(work)),
            leadership.run(),
            _watch(settings, handlers.Watch(queue, reconciler.touch)),
        )
    finally:
        await leadership.release()
        await scraper.close()
        await prometheus.close()
        await server.cleanup()
        api.close()


def _prometheus(settings: Settings, telemetry: Telemetry) -> Prometheus | NoServer:
    if not settings.prometheus_url:
        return NoServer()
    where, token = settings.prometheus_url, settings.prometheus_token_file
    return Prometheus.create(where, token, settings.tick, telemetry.queried)


async def _first_ended(*parts: Coroutine[Any, Any, None]) -> None:
    """None of them ends but the watch, on a signal; if one fails, the process does."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(settings: Settings, watch: handlers.Watch) -> None:
    """Returns on a signal, and fails where Kopf does again and again.

    Kopf gives up when a watch is told of any error but 410, as an API server does that starts or is overloaded. It is
    begun anew then, and lists all objects again; the queue and the Lease go on meanwhile.
    """
    pauses, stopped = iter(WATCH_PAUSES), asyncio.Event()
    _listen(stopped)
    while not stopped.is_set():
        began = time.monotonic()
        try:
            await _kopf(settings, watch, stopped)
            return
        except Exception as e:
            pauses = iter(WATCH_PAUSES) if time.monotonic() - began > WATCH_LASTED else pauses
            pause = next(pauses, None)
            if pause is None:
                raise
            log.warning("the watches ended: %s: %s; again in %.0f s", type(e).__name__, e, pause)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), pause)


def _listen(stopped: asyncio.Event) -> None:
    for sign in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sign, stopped.set)


async def _kopf(settings: Settings, watch: handlers.Watch, stopped: asyncio.Event) -> None:
    """As `kopf.operator`, which would keep the signals to itself and hear none while it fails, for seconds."""
    others = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=handlers.registry,
        settings=_kopf_settings(),
        memo=watch,
        standalone=True,  # leadership is the Lease's, and peers are not looked for
        clusterwide=not settings.watched,
        namespaces=settings.watched,
        stop_flag=stopped,
    )
    _listen(stopped)
    await kopf.run_tasks(tasks, ignored=others)


class _BackOff:
    """Seconds between retries of Kopf's own requests: for ever, since a watch that gives up is never started again."""

    def __iter__(self) -> Iterator[float]:
        for seconds in itertools.chain((1, 2, 5, 10), itertools.repeat(20)):
            yield seconds * random.uniform(0.8, 1.2)


def _kopf_settings() -> kopf.OperatorSettings:
    """Kopf as a watcher: no events of its own, and connections that never hang for good."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    settings.networking.error_backoffs = _BackOff()
    settings.watching.connect_timeout = 10.0
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.inactivity_timeout = WATCH_SILENCE
    settings.process.ultimate_exiting_timeout = None  # or Kopf kills this process, though it was begun anew
    settings.queueing.worker_limit = None  # with a limit, Kopf waits for ever to index more objects than that
    for child in handlers.CHILDREN:
        settings.watching.label_selectors[child] = names.SERVICE
    return settings
