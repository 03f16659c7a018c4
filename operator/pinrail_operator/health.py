"""/livez, /readyz and /metrics of the operator. I/O.

Alive means that the queue turns and the Lease is still asked for: what a watch that went silent costs is bounded by
the resync, which the same queue does.
"""

import asyncio
import time

from aiohttp import web
from prometheus_client import CollectorRegistry, exposition

from .leader import Leadership
from .queue import KeyQueue
from .types import ServiceKey

PATIENCE = 60.0  # seconds without a turn, after which the process is better restarted


def application(queue: KeyQueue[ServiceKey], leadership: Leadership, registry: CollectorRegistry) -> web.Application:
    def silent() -> dict[str, float]:
        """Seconds since each part last moved."""
        loop = asyncio.get_running_loop()
        return {"queue": loop.time() - queue.turned_at, "lease": time.monotonic() - leadership.tried_at}

    async def livez(_: web.Request) -> web.Response:
        stuck = {part: round(age) for part, age in silent().items() if age > PATIENCE}
        return web.json_response({"stuck": stuck, "leader": leadership.is_leader()}, status=503 if stuck else 200)

    async def readyz(_: web.Request) -> web.Response:
        asked = leadership.tried_at > 0
        return web.json_response({"leader": leadership.is_leader()}, status=200 if asked else 503)

    async def metrics(_: web.Request) -> web.Response:
        page = exposition.generate_latest(registry)
        return web.Response(body=page, headers={"Content-Type": exposition.CONTENT_TYPE_PLAIN_0_0_4})

    app = web.Application()
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


async def serve(app: web.Application, port: int) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    if port:
        await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
