"""The engine on a backend that is arithmetic: lossless, bounded, honest, and every request ends once."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fake_device import text

from pinrail_contract.metrics import parse
from pinrail_engine.core.plan import StepPlan, StepWork
from pinrail_engine.core.types import FinishReason, Refused, SamplingParams, TokenEvent
from pinrail_engine.errors import WeightsError
from pinrail_engine.run import loop
from pinrail_engine.run.backend import Wait
from pinrail_engine.run.step import launch

MakeRig = Callable[..., Any]


class Client:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[TokenEvent] = []

    def __call__(self, event: TokenEvent) -> None:
        self.events.append(event)

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events for token in event.token_ids]

    @property
    def ends(self) -> list[FinishReason]:
        return [event.finish for event in self.events if event.finish is not None]


def submit(rig: Any, name: str, prompt: list[int], output: int = 8, stop: frozenset[int] = frozenset()) -> Client:
    client = Client()
    rig.engine.submit(name, prompt, SamplingParams(max_tokens=output, stop_token_ids=stop), client)
    return client


def expected(rig: Any, prompt: list[int], output: int) -> list[int]:
    return text(prompt, SamplingParams(max_tokens=output), rig.engine.max_model_len, rig.backend.vocab)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    ("blocks", "seqs", "budget", "share"),
    [
        pytest.param(64, 8, 64, False, id="room for all"),
        pytest.param(64, 8, 64, True, id="prefixes shared"),
        pytest.param(64, 1, 64, True, id="one at a time"),
        pytest.param(64, 3, 3, True, id="prompts in chunks of 1 to 3"),
        pytest.param(12, 8, 16, True, id="blocks for two or three: preempted again and again"),
    ],
)
def test_texts_do_not_depend_on_who_else_is_served(
    make_rig: MakeRig, blocks: int, seqs: int, budget: int, share: bool, depth: int
) -> None:
    """P8: the fake reads the whole context back from the cache, so one lost or shared slot changes the text."""
    rig = make_rig(blocks=blocks, seqs=seqs, budget=budget, window=40, max_queued=16, share=share, depth=depth).load()
    dice = random.Random(0)
    prompts = [
        [7] * dice.choice([0, 8]) + [dice.randrange(1009) for _ in range(dice.randint(1, 12))] for _ in range(10)
    ]
    clients = [submit(rig, str(i), prompt, 20) for i, prompt in enumerate(prompts)]
    rig.run()
    for prompt, client in zip(prompts, clients, strict=True):
        assert client.tokens == expected(rig, prompt, 20)
        assert client.ends == [FinishReason.LENGTH]
    if blocks == 12:
        assert rig.figure("vllm:num_preemptions_total") > 0
    assert (rig.figure("vllm:prefix_cache_hits_total") > 0) == share
    assert rig.figure("vllm:prefix_cache_hits_total") <= rig.figure("vllm:prefix_cache_queries_total")


def test_a_stop_token_ends_a_text_and_is_part_of_it(rig: Any) -> None:
    first, second, *_ = expected(rig, [1, 2], 8)
    client = submit(rig, "a", [1, 2], stop=frozenset({second}))
    rig.run()
    assert (client.tokens, client.ends) == ([first, second], [FinishReason.STOP])


def test_a_request_that_never_fits_is_refused_without_a_time(rig: Any) -> None:
    with pytest.raises(Refused, match="at most 63") as caught:
        submit(rig, "a", [1] * 64)
    assert (caught.value.retry_after, caught.value.overloaded) == (None, False)
    assert rig.figure("vllm:request_success_total", finished_reason="rejected") == 1


def test_a_full_queue_says_when_half_of_it_will_be_gone(make_rig: MakeRig) -> None:
    rig = make_rig(seqs=1, max_queued=4).load()
    submit(rig, "first", [1], output=1)
    rig.turn(seconds=6.0)  # one request leaves after 6 s
    for i in range(4):
        submit(rig, str(i), [1])
    with pytest.raises(Refused, match="4 requests of 4 tokens wait already") as caught:
        submit(rig, "a", [1])
    assert (caught.value.retry_after, caught.value.overloaded) == (12, True)


def test_nobody_is_let_in_while_it_loads(make_rig: MakeRig) -> None:
    rig = make_rig()
    assert rig.engine.state == "loading"
    with pytest.raises(Refused, match="the server is loading") as caught:
        submit(rig, "a", [1])
    assert (caught.value.retry_after, caught.value.overloaded) == (5, False)
    assert rig.load().engine.state == "ready"


def test_an_abort_frees_at_once_even_while_a_step_runs(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.engine.start()
    rig.engine.wait_until_loaded()
    rig.backend.gate.clear()
    client = submit(rig, "a", [1, 2, 3])
    while rig.state.kv.live == 0:
        threading.Event().wait(0.001)
    rig.engine.finish("a", FinishReason.ABORT)
    assert rig.state.kv.live == 0
    rig.backend.gate.set()
    rig.engine.drain(5)
    assert client.events == []
    assert rig.figure("pinrail_cancellation_release_seconds_count", phase="prefill") == 1


def test_an_unknown_or_ended_id_is_ignored(rig: Any) -> None:
    submit(rig, "a", [1], output=1)
    rig.run()
    rig.engine.finish("a", FinishReason.ABORT)
    rig.engine.finish("never", FinishReason.ABORT)
    assert rig.figure("vllm:request_success_total", finished_reason="length") == 1
    assert rig.figure("vllm:request_success_total", finished_reason="abort") == 0


def test_a_stop_string_is_no_cancellation(rig: Any) -> None:
    submit(rig, "a", [1])
    rig.turn()
    rig.engine.finish("a", FinishReason.STOP)
    assert rig.figure("vllm:request_success_total", finished_reason="stop") == 1
    assert rig.figure("pinrail_cancellation_release_seconds_count", phase="decode") == 0


def test_a_failed_step_ends_its_requests_and_the_next_ones_are_served(rig: Any) -> None:
    rig.backend.broken = RuntimeError("out of memory")
    broken = submit(rig, "a", [1, 2])
    rig.turn()
    assert broken.events == [
        TokenEvent((), FinishReason.ERROR, "the engine failed to compute this request (RuntimeError)")
    ]
    fine = submit(rig, "b", [1, 2], output=3)
    rig.run()
    assert fine.tokens == expected(rig, [1, 2], 3)


def test_a_turn_whose_last_request_has_just_left_computes_nothing(rig: Any) -> None:
    """An abort may take the lock between the look for work and the plan."""
    steps = rig.backend.steps
    submit(rig, "a", [1])
    rig.engine.finish("a", FinishReason.ABORT)
    rig.turn()
    assert rig.backend.steps == steps
    assert rig.figure("pinrail_steps_total") == 0


def test_whoever_comes_right_after_an_empty_plan_is_served_by_the_next(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last request leaves before the plan is made, and another comes before the turn is over."""
    clients: list[Client] = []

    def then_another_comes(*args: Any) -> Any:
        flight = launch(*args)
        clients.append(submit(rig, "b", [1, 2], output=1))
        return flight

    monkeypatch.setattr(loop, "launch", then_another_comes)
    rig.turn()
    monkeypatch.undo()
    rig.turn()
    assert clients[0].tokens == expected(rig, [1, 2], 1)


def test_a_model_that_cannot_be_loaded_is_one_sentence_in_the_log(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig()
    rig.backend.refused = WeightsError("weights: lm_head.weight is missing")
    rig.engine.start()
    with pytest.raises(WeightsError):
        rig.engine.wait_until_loaded()
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert record.getMessage() == "engine failed error=weights: lm_head.weight is missing"
    assert not record.exc_info


def test_a_failed_load_is_final_and_says_why(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.backend.refused = MemoryError("no memory")
    rig.engine.start()
    with pytest.raises(MemoryError, match="no memory"):
        rig.engine.wait_until_loaded()
    assert (rig.engine.state, rig.engine.is_healthy()) == ("failed", False)
    with pytest.raises(Refused, match="the server is failed"):
        submit(rig, "a", [1])


def test_a_client_s_fault_does_not_end_the_others(rig: Any) -> None:
    def raises(_: TokenEvent) -> None:
        raise ValueError("closed")

    rig.engine.submit("a", [1], SamplingParams(max_tokens=2), raises)
    other = submit(rig, "b", [1], output=2)
    rig.run()
    assert other.ends == [FinishReason.LENGTH]


def test_a_sink_may_end_another_request_of_the_same_step(rig: Any) -> None:
    rig.engine.submit("a", [1], SamplingParams(max_tokens=2), lambda _: rig.engine.finish("b", FinishReason.STOP))
    other = submit(rig, "b", [1])
    rig.run()
    assert other.events == []
    assert rig.state.kv.live == 0


def test_a_drain_lets_the_running_end(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.engine.start()
    rig.engine.wait_until_loaded()
    client = submit(rig, "a", [1, 2])
    rig.engine.drain(10)
    assert client.ends == [FinishReason.LENGTH]
    with pytest.raises(Refused, match="the server is draining") as caught:
        submit(rig, "b", [1])
    assert caught.value.retry_after == 1


def test_a_drain_whose_time_is_over_aborts_and_tells(rig: Any) -> None:
    running = submit(rig, "a", [1, 2])
    rig.turn()
    waiting = submit(rig, "b", [1, 2])
    rig.engine.drain(0)
    assert (running.ends, waiting.events) == ([FinishReason.ABORT], [TokenEvent((), FinishReason.ABORT)])
    assert rig.state.kv.live == 0


def test_a_sink_may_end_others_while_all_are_ended(rig: Any) -> None:
    rig.engine.submit("a", [1], SamplingParams(max_tokens=9), lambda _: rig.engine.finish("b", FinishReason.ABORT))
    other = submit(rig, "b", [1])
    rig.engine.drain(0)
    assert other.events == []
    assert rig.figure("vllm:request_success_total", finished_reason="abort") == 2


def test_the_warm_up_tells_how_long_steps_take(make_rig: MakeRig) -> None:
    """So that the first burst of requests already gets steps of the length that is aimed at."""
    rig = make_rig()
    launched = rig.backend.launch

    def slowly(plan: StepPlan) -> Wait:
        rig.clock.now += plan.tokens / 1000
        return launched(plan)

    rig.backend.launch = slowly
    assert rig.load().state.step_time.predict(StepWork(64, 1, 64, 2_080)) == pytest.approx(0.064, rel=0.5)


def test_an_engine_that_drains_while_it_loads_never_becomes_ready(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.engine.drain(0)
    assert rig.load().engine.state == "draining"


def test_idle_is_healthy_and_a_step_that_never_ends_is_not(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.engine.start()
    rig.engine.wait_until_loaded()
    rig.clock.now += 10_000
    assert rig.engine.is_healthy()
    rig.backend.gate.clear()
    submit(rig, "a", [1])
    rig.clock.now += 29
    assert rig.engine.is_healthy()
    rig.clock.now += 2
    assert not rig.engine.is_healthy()
    assert rig.figure("pinrail_last_step_age_seconds") == 31


def test_the_page_is_a_load_sample_that_is_fresh(make_rig: MakeRig) -> None:
    rig = make_rig(seqs=1).load()
    submit(rig, "a", list(range(9)))
    rig.turn()
    submit(rig, "b", list(range(5)))
    rig.clock.now += 3
    sample = parse(rig.engine.metrics_page().decode())
    assert (sample.running, sample.waiting, sample.waiting_blocks, sample.max_num_seqs) == (1, 1, 2, 1)
    assert (sample.kv_blocks, sample.used_blocks) == (64, pytest.approx(3))
    assert rig.figure("pinrail_oldest_waiting_seconds") == 3


def test_after_a_storm_of_aborts_every_request_has_ended_once_and_no_block_is_held(make_rig: MakeRig) -> None:
    """Threads submit and abort at random while the engine runs; the cache is small, so it preempts too."""
    rig = make_rig(blocks=16, seqs=6, budget=8, window=32, max_queued=1000)
    rig.engine.start()
    rig.engine.wait_until_loaded()
    clients: dict[str, Client] = {}
    told: dict[str, int] = {}  # events that had come when an abort returned

    def storm(seed: int) -> None:
        dice = random.Random(seed)
        for i in range(60):
            name = f"{seed}-{i}"
            clients[name] = submit(rig, name, [1] * dice.randint(1, 20), output=dice.randint(1, 20))
            victim = f"{seed}-{dice.randint(0, i)}"
            if dice.random() < 0.7:
                rig.engine.finish(victim, dice.choice([FinishReason.ABORT, FinishReason.STOP]))
                told[victim] = len(clients[victim].events)

    threads = [threading.Thread(target=storm, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.engine.drain(30)
    rig.state.check()
    assert rig.state.kv.live == 0
    assert {name: len(clients[name].events) for name in told} == told, "an event came after an abort"
    assert all(len(client.ends) <= 1 for client in clients.values())
    ended = {r: rig.figure("vllm:request_success_total", finished_reason=r) for r in FinishReason}
    assert sum(ended.values()) == len(clients) == 240
    assert ended["abort"] > 0
    assert ended["length"] > 0
    assert (ended["error"], ended["rejected"]) == (0, 0)


def test_stopping_ends_the_thread_and_frees_the_backend(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.engine.start()
    rig.engine.wait_until_loaded()
    client = submit(rig, "a", [1], output=60)
    rig.engine.stop()
    assert client.ends in ([FinishReason.ABORT], [FinishReason.LENGTH])
    assert rig.backend.freed
