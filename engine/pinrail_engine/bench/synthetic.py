"""Named mixes of requests, and when they arrive. Pure: all chance comes from a seeded generator.

| mix            | prompts, tokens                                        | outputs, tokens | stands for               |
|----------------|--------------------------------------------------------|-----------------|--------------------------|
| uniform        | 64 to 256                                              | 32 to 128       | nothing: an even load    |
| chat           | log-normal around 256, to 4,096                        | around 128      | people, in bursts        |
| long-and-short | 32 to 128, and 4,096 for each 16th                     | 32 to 64        | papers among questions   |
| shared-prefix  | the same 512, then 32 to 64                            | 32              | one system prompt        |
| agentic        | the same 1,024, then 6 turns that each add to the last | 32 to 96        | programs that call tools |

Source: log-normal lengths and gamma gaps as in BurstGPT, https://arxiv.org/abs/2401.17644, sections 3 and 4.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from math import inf, isinf, log
from random import Random

from .workload import Job, Piece

_Asked = tuple[tuple[Piece, ...], Piece]  # prompt, output
_LONG, _LONG_EVERY = 4096, 16
_TURNS = 6


@dataclass(frozen=True, slots=True)
class Mix:
    make: Callable[[Random, int], Iterator[_Asked]]  # (chance, requests) -> those, in order of arrival
    requests: int  # unless asked otherwise, as the two below
    rate: float = inf  # per second; inf: all at once
    burstiness: float = 1.0  # shape of the gamma distribution of gaps: 1 is Poisson, less is burstier


def jobs(
    mix: Mix, seed: int, *, requests: int = 0, rate: float | None = None, burstiness: float = 0.0
) -> Iterator[Job]:
    """Args: requests, rate, burstiness: as in `Mix`, whose own are taken for 0, None and 0."""
    asked = mix.make(Random(f"{seed}/lengths"), requests or mix.requests)
    times = arrivals(seed, mix.rate if rate is None else rate, burstiness or mix.burstiness)
    for (prompt, output), at in zip(asked, times, strict=False):
        yield Job(at, prompt, output)


def arrivals(seed: int, rate: float, burstiness: float = 1.0) -> Iterator[float]:
    """Seconds, for ever: 0, then gaps of 1 / `rate` on average; all 0 where `rate` is infinite.

    Args:
        rate: Requests per second, above 0.
        burstiness: Shape of the gamma distribution that gaps are drawn from, above 0; 1 makes a Poisson process.
    """
    if isinf(rate):
        yield from repeat(0.0)
    dice, at = Random(f"{seed}/arrivals"), 0.0
    while True:
        yield at
        at += dice.gammavariate(burstiness, 1 / (rate * burstiness))


def _uniform(dice: Random, requests: int) -> Iterator[_Asked]:
    for i in range(1, requests + 1):
        yield (Piece(i, dice.randint(64, 256)),), Piece(-i, dice.randint(32, 128))


def _chat(dice: Random, requests: int) -> Iterator[_Asked]:
    for i in range(1, requests + 1):
        prompt, output = _log_normal(dice, 256, 1.0, 4096), _log_normal(dice, 128, 0.8, 1024)
        yield (Piece(i, prompt),), Piece(-i, output)


def _log_normal(dice: Random, median: float, sigma: float, most: int) -> int:
    return min(most, max(4, round(dice.lognormvariate(log(median), sigma))))


def _long_and_short(dice: Random, requests: int) -> Iterator[_Asked]:
    for i in range(1, requests + 1):
        prompt, output = dice.randint(32, 128), dice.randint(32, 64)
        yield (Piece(i, _LONG if i % _LONG_EVERY == 1 else prompt),), Piece(-i, output)


def _shared_prefix(dice: Random, requests: int) -> Iterator[_Asked]:
    common = Piece(0, 512)
    for i in range(1, requests + 1):
        yield (common, Piece(i, dice.randint(32, 64))), Piece(-i, 32)


def _agentic(dice: Random, requests: int) -> Iterator[_Asked]:
    """Turns of as many sessions as it takes, each session's next turn after every session's last."""
    sessions = -(-requests // _TURNS)
    said: list[tuple[Piece, ...]] = [(Piece(0, 1024),)] * sessions
    for i in range(1, requests + 1):
        prompt = (*said[i % sessions], Piece(i, _log_normal(dice, 128, 0.8, 1024)))
        output = Piece(-i, dice.randint(32, 96))
        said[i % sessions] = (*prompt, output)
        yield prompt, output


MIXES = {
    "uniform": Mix(_uniform, requests=128),
    "chat": Mix(_chat, requests=256, rate=4.0, burstiness=0.5),
    "long-and-short": Mix(_long_and_short, requests=128),
    "shared-prefix": Mix(_shared_prefix, requests=32),
    "agentic": Mix(_agentic, requests=96, rate=4.0),
}
