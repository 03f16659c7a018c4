"""What the prefix cache holds, for routers: there only where it is asked for."""

from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine

from pinrail_engine.api.app import ServerInfo, create_app
from pinrail_engine.core.types import CacheEvent, CacheEvents
from pinrail_engine.text.pipeline import TextPipeline

EVENTS = CacheEvents(
    3, False, (CacheEvent(1, "stored", "aa", "00"), CacheEvent(2, "removed", "aa"), CacheEvent(3, "cleared"))
)


@dataclass
class Api:
    text: TextPipeline
    shown: bool

    async def get(self, path: str) -> httpx.Response:
        info = ServerInfo(model_name="tiny", manifest_digest="", verification="Verified", cache_events=self.shown)
        app = httpx.ASGITransport(create_app(FakeEngine(events=EVENTS), self.text, info))
        async with httpx.AsyncClient(transport=app, base_url="http://x") as client:
            return await client.get(path)


def listed(*numbers: int) -> list[dict[str, Any]]:
    return [event._asdict() for event in EVENTS.events if event.number in numbers]


@pytest.mark.parametrize(
    ("query", "numbers"), [("", (1, 2, 3)), ("?after=0", (1, 2, 3)), ("?after=2", (3,)), ("?after=" + "9" * 18, ())]
)
async def test_events_after(text: TextPipeline, query: str, numbers: tuple[int, ...]) -> None:
    answer = await Api(text, shown=True).get("/cache_events" + query)
    assert answer.json() == {"last": 3, "complete": False, "events": listed(*numbers)}


async def test_an_event_has_four_fields(text: TextPipeline) -> None:
    answer = await Api(text, shown=True).get("/cache_events")
    assert answer.json()["events"][0] == {"number": 1, "kind": "stored", "block": "aa", "parent": "00"}


@pytest.mark.parametrize("after", ["", "-1", "1.5", "x", "\uff11", "9" * 19])
async def test_a_wrong_number_is_refused(text: TextPipeline, after: str) -> None:
    answer = await Api(text, shown=True).get(f"/cache_events?after={after}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "after"
    assert answer.json()["error"]["message"] == f'after: got "{after}", want a whole number, 0 or above'


async def test_there_is_no_such_path_unless_asked_for(text: TextPipeline) -> None:
    assert (await Api(text, shown=False).get("/cache_events")).status_code == 404
