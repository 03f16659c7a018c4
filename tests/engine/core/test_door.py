"""Who is let in: the module's table, fairness among clients, and who has waited too long."""

import pytest
from world import Sizes, World

from pinrail_contract.launch import Policy
from pinrail_engine.core.door import Caps, has_waited_too_long, refuse_never_fitting, to_send_away
from pinrail_engine.core.request import Request
from pinrail_engine.core.types import Refused, SamplingParams, Terms


def newcomer(world: World, tokens: int = 4, terms: Terms | None = None) -> Request:
    terms = Terms() if terms is None else terms
    params = SamplingParams(max_tokens=8)
    return Request.new("new", [1] * tokens, params, world.state.limits.max_model_len, world.now, terms)


def queue(world: World, *clients: str, tokens: int = 4) -> None:
    """One request for each, named by its client and its number."""
    for i, client in enumerate(clients):
        world.now += 1.0
        world.arrive(f"{client}{i}", tokens, terms=Terms(client=client))


def gone(world: World, request: Request, caps: Caps) -> list[str]:
    return [r.id for r in to_send_away(world.state, request, caps)]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "the prompt has no tokens, want at least 1"),
        ([1] * 64, "the prompt has 64 tokens, want at most 63: the window is 64 tokens, and one is for the output"),
        ([5, 100], "token ids 5 to 100, want 0 to 99"),
        ([-1], "token ids -1 to -1, want 0 to 99"),
    ],
    ids=["empty", "too long", "no such token", "below 0"],
)
def test_what_never_fits_is_refused_for_good(prompt: list[int], said: str) -> None:
    with pytest.raises(Refused, match=said) as caught:
        refuse_never_fitting(World().state.limits, prompt)
    assert (caught.value.retry_after, caught.value.overloaded) == (None, False)


def test_the_longest_prompt_that_leaves_room_for_a_token_is_let_in() -> None:
    refuse_never_fitting(World().state.limits, [99] * 63)


@pytest.mark.parametrize(
    ("caps", "client", "leaves"),
    [
        pytest.param(Caps(), "heavy", [], id="no bound: let in"),
        pytest.param(Caps(max_queued=5), "heavy", [], id="has room for one more"),
        pytest.param(Caps(max_queued_tokens=20), "heavy", [], id="has room for its tokens"),
        pytest.param(Caps(max_queued=4), "heavy", ["new"], id="full: the last of the heaviest client is refused"),
        pytest.param(Caps(max_queued_tokens=19), "heavy", ["new"], id="tokens full: likewise"),
        pytest.param(Caps(max_queued=4), "light", ["heavy2"], id="full: anyone else's is let in, and that one leaves"),
        pytest.param(Caps(max_queued_tokens=19), "other", ["heavy2"], id="tokens full: likewise"),
        pytest.param(Caps(max_queued_tokens=15), "other", ["heavy2", "heavy1"], id="as many leave as must"),
    ],
)
def test_who_is_let_in_and_who_leaves(caps: Caps, client: str, leaves: list[str]) -> None:
    """The module's table; three requests of `heavy` and one of `light` wait, with 4 tokens each."""
    world = World()
    queue(world, "heavy", "heavy", "heavy", "light")
    assert gone(world, newcomer(world, terms=Terms(client=client)), caps) == leaves


def test_nobody_is_sent_away_for_one_that_is_refused_all_the_same() -> None:
    """13 tokens are too many: the last of `heavy` would go, and then the newcomer is the heaviest itself."""
    world = World()
    queue(world, "heavy", "heavy", "heavy", "heavy")
    assert gone(world, newcomer(world, 13, Terms(client="other")), Caps(max_queued_tokens=16)) == ["new"]


def test_the_heaviest_client_is_the_one_with_most_tokens_not_most_requests() -> None:
    world = World()
    queue(world, "many", "many", "many")
    world.arrive("long", 30, terms=Terms(client="few"))
    assert gone(world, newcomer(world, terms=Terms(client="new")), Caps(max_queued=4)) == ["long"]


def test_the_last_is_the_policys_word() -> None:
    world = World(Sizes(policy=Policy.PRIORITY))
    world.arrive("urgent", 4, terms=Terms(priority=-1))
    world.arrive("patient", 4, terms=Terms(priority=1))
    world.arrive("plain", 4)
    assert gone(world, newcomer(world), Caps(max_queued=3)) == ["patient"]
    assert gone(world, newcomer(world, terms=Terms(priority=2)), Caps(max_queued=3)) == ["new"]


def test_a_newcomer_is_after_those_that_came_at_the_same_time() -> None:
    world = World()
    world.arrive("a", 4)
    assert gone(world, newcomer(world), Caps(max_queued=1)) == ["new"]


def test_a_single_request_may_have_more_tokens_than_may_wait() -> None:
    world = World()
    assert gone(world, newcomer(world, 40), Caps(max_queued_tokens=10)) == []
    queue(world, "a")
    assert gone(world, newcomer(world, 40), Caps(max_queued_tokens=10)) == ["new"]


def preempt_one(world: World) -> None:
    """`a` runs, and `b` has given its blocks up."""
    for name in "ab":
        world.arrive(name, 4, output=12)
        world.now += 1.0
    while not world.preempted:
        world.step()


TIGHT = Sizes(blocks=4, block_size=4, budget=16, window=16, reckless=True)


def test_who_has_run_is_never_sent_away() -> None:
    world = World(TIGHT)
    preempt_one(world)
    queue(world, "x")
    assert gone(world, newcomer(world, terms=Terms(client="y")), Caps(max_queued=1)) == ["new"]
    assert gone(world, newcomer(world, terms=Terms(client="y")), Caps(max_queued=2)) == ["new"]
    world.now += 1_000.0
    (b, x) = world.state.waiting
    assert has_waited_too_long(b, Caps(max_wait=1.0), world.now) == ""
    assert has_waited_too_long(x, Caps(max_wait=1.0), world.now) == "waited"


def test_who_has_run_counts_as_waiting() -> None:
    world = World(TIGHT)
    preempt_one(world)
    queue(world, "x")
    assert gone(world, newcomer(world), Caps(max_queued=3)) == []
    assert gone(world, newcomer(world), Caps(max_queued=2)) != []


@pytest.mark.parametrize(
    ("deadline", "max_wait", "waited", "why"),
    [
        pytest.param(None, 0.0, 1e9, "", id="no bound"),
        pytest.param(None, 5.0, 4.9, "", id="not yet"),
        pytest.param(None, 5.0, 5.0, "waited", id="as long as may be"),
        pytest.param(3.0, 5.0, 2.9, "", id="its own bound is not yet over"),
        pytest.param(3.0, 5.0, 3.0, "deadline", id="its own bound"),
        pytest.param(9.0, 5.0, 5.0, "waited", id="the queue's bound is the shorter"),
        pytest.param(0.0, 0.0, 0.0, "deadline", id="no time at all"),
    ],
)
def test_who_has_waited_too_long(deadline: float | None, max_wait: float, waited: float, why: str) -> None:
    world = World(now=100.0)
    request = world.arrive("a", 4, terms=Terms(deadline=deadline))
    assert has_waited_too_long(request, Caps(max_wait=max_wait), 100.0 + waited) == why


def test_a_client_that_floods_a_full_queue_displaces_itself_alone() -> None:
    """Two others come now and then, and always get in; each is served before the next one comes."""
    world = World()
    for i in range(60):
        world.now += 1.0
        client = ("a", "b")[i // 6 % 2] if i % 6 == 0 else "flood"
        request = newcomer(world, terms=Terms(client=client))
        leaves = gone(world, request, Caps(max_queued=8))
        assert all(name.startswith("flood") or name == "new" for name in leaves)
        assert client == "flood" or "new" not in leaves
        if "new" not in leaves:
            for name in leaves:
                world.abort(name)
            world.arrive(f"{client}{i}", 4, terms=request.terms)
        assert len(world.state.waiting) == min(8, i + 1 - i // 6)
        if i % 6 == 5:
            world.abort(next(r.id for r in world.state.waiting if r.terms.client != "flood"))
