"""Leadership in numbers: no write of an old leader is under way when the next one starts."""

import asyncio
import contextlib
import threading
from types import SimpleNamespace
from typing import Any

from pinrail_operator import api, leader


def test_a_write_begun_in_the_last_moment_of_belief_ends_before_the_lease_does() -> None:
    assert leader.BELIEF + sum(api.WRITE_TIMEOUT) < leader.LEASE


class Lease:
    """An election that is held, and notes what is written."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.begun, self.answer = threading.Event(), threading.Event()
        self.election_config = SimpleNamespace(lock=self)
        self.name = self.namespace = self.identity = "me"

    def try_acquire_or_renew(self) -> bool:
        self.begun.set()
        assert self.answer.wait(20)
        self.written.append("me")
        return True

    def get(self, name: str, namespace: str) -> tuple[bool, Any]:
        return True, SimpleNamespace(holder_identity="me", acquire_time="", renew_time="")

    def update(self, name: str, namespace: str, record: Any) -> bool:
        self.written.append(record.holder_identity)
        return True


async def test_a_renewal_that_is_under_way_does_not_take_back_what_is_released() -> None:
    lease = Lease()
    one = leader.Leadership(lease)
    one._until = one.clock() + leader.BELIEF
    renewing = asyncio.create_task(one.run())
    assert await asyncio.to_thread(lease.begun.wait, 20)
    renewing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await renewing
    releasing = asyncio.create_task(one.release())
    await asyncio.sleep(0.05)
    lease.answer.set()
    await releasing
    assert lease.written == ["me", ""]
    assert not one._try(), "nor does a later one"
    assert lease.written == ["me", ""]
