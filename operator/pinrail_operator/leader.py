"""Which of several operators may write: the one that holds a Lease. I/O.

The client's own `leaderelection` keeps the Lease; its loop, which blocks a thread and ends the process, is not used.
Leadership is believed for less time than the Lease lasts, so the old leader stops before a new one starts.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

import urllib3
from kubernetes import client
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

log = logging.getLogger("pinrail.operator")

LEASE = 20  # seconds that others wait after the last renewal
BELIEF = 10.0  # seconds after the start of the last renewal in which we write
RETRY = 2.0  # seconds between two renewals, and between two tries


@dataclass(slots=True)
class Leadership:
    """One candidate."""

    election: Any
    clock: Callable[[], float] = time.monotonic
    tried_at: float = 0.0  # when the API server last answered or failed
    _until: float = field(default=-1.0)  # on `clock`
    _one: threading.Lock = field(default_factory=threading.Lock)  # at a time: a renewal goes on when its task is ended
    _is_released: bool = False

    @classmethod
    def candidate(cls, http: client.ApiClient, namespace: str, name: str, identity: str) -> Self:
        """A candidate for the Lease `name`; nothing is asked yet."""
        lock: Any = LeaseLock(name, namespace, identity)  # type: ignore[no-untyped-call]
        lock.api_instance = _Timed(client.CoordinationV1Api(http))
        settings = SimpleNamespace(lock=lock, lease_duration=LEASE)
        return cls(LeaderElection(settings))  # type: ignore[no-untyped-call]

    def is_leader(self) -> bool:
        return self.clock() < self._until

    async def run(self) -> None:
        """Take the Lease or renew it, for ever."""
        while True:
            led = self.is_leader()
            started = self.clock()
            held = await asyncio.to_thread(self._try)
            self.tried_at = self.clock()
            if held:
                self._until = started + BELIEF
            if self.is_leader() and not led:
                log.info("leading, as %s", self.election.election_config.lock.identity)
            elif led and not self.is_leader():
                log.warning("no longer leading: the Lease could not be renewed")
            await asyncio.sleep(RETRY)

    async def release(self) -> None:
        """Let the next operator take over at once."""
        if self.is_leader():
            self._until = -1.0
            await asyncio.to_thread(self._give_up)

    def _try(self) -> bool:
        try:
            with self._one:
                return not self._is_released and bool(self.election.try_acquire_or_renew())
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as e:
            log.warning("the Lease could not be read or written: %s", e)
            return False

    def _give_up(self) -> None:
        """Once a renewal that is under way has ended, which would take the Lease back for its whole time."""
        with self._one:
            self._is_released = True
            self._empty()

    def _empty(self) -> None:
        """It is read first: the client keeps the version from before its own last renewal, whose update is refused."""
        lock = self.election.election_config.lock
        try:
            is_read, record = lock.get(lock.name, lock.namespace)
            if not is_read or record.holder_identity != lock.identity:
                return
            empty = LeaderElectionRecord("", "1", record.acquire_time, record.renew_time)  # type: ignore[no-untyped-call]
            if not lock.update(lock.name, lock.namespace, empty):
                log.warning("the Lease could not be released: another has written it")
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError) as e:
            log.warning("the Lease could not be released: %s", e)


class _Timed:
    """The Lease calls with a time-out: without one, a hung API server would hang the election.

    What the API server refuses is told: the election takes it for a Lease that another holds, and waits for ever.
    """

    def __init__(self, api: client.CoordinationV1Api) -> None:
        self._api = api

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._api, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs, _request_timeout=BELIEF / 2)
            except client.ApiException as e:
                if e.status not in (404, 409):  # to be made, or just taken by another
                    log.warning("the Lease could not be read or written: %s %s", e.status, e.reason)
                raise

        return timed
