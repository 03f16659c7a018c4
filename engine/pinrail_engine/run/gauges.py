"""What the engine carries at one moment, read off the scheduler's state for whoever asks for metrics. Pure."""

from itertools import islice

from ..core.scheduler import waits_to_share
from ..core.state import State
from ..metrics import Load

_LOOKED_AT = 256  # requests of the queue, for whether they wait to share a prefix


def load_of(state: State, now: float, last_step_age: float) -> Load:
    """To be called with the state's guard held. Args: now, last_step_age: seconds."""
    return Load(
        running=len(state.running),
        waiting=len(state.waiting),
        waiting_blocks=state.waiting_blocks,
        waiting_deferred=sum(waits_to_share(state, r) for r in islice(state.waiting, _LOOKED_AT)),
        queued_prompt_tokens=state.waiting_tokens,
        live_blocks=state.kv.live,
        cached_blocks=state.kv.cached,
        free_blocks=state.kv.free,
        evicted_blocks=state.kv.evicted,
        oldest_waiting=max((now - r.arrival for r in state.waiting), default=0.0),
        last_step_age=last_step_age,
        step_time=state.step_time.by_term,
        output_share=state.output_share,
    )
