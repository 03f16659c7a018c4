"""Who is served first. Pure.

A policy gives each request a virtual time in seconds, and the queue is served in that order. What a request gains by
waiting, every other gains too, so the order of two never changes while both wait, and a time fixed on arrival is
enough: ageing costs nothing. No request is passed by one that arrived much later, whatever the policy, because virtual
time differs from arrival by a bounded amount: nobody waits for ever.

| policy   | virtual time                                   | the same as                                            |
|----------|------------------------------------------------|--------------------------------------------------------|
| fcfs     | arrival                                        | first come, first served                               |
| priority | arrival + priority * 10 s                      | priority - waited / 10 s: one level per 10 s of waiting |
| sjf      | arrival + log2(prompt tokens) * 2 s            | prompt tokens / 2^(waited / 2 s): halved every 2 s     |
| edf      | arrival + deadline, of 60 s where none is given | earliest deadline first                                |

Source: sjf with ageing as PREFLOW and HRRN do it; edf: Liu & Layland 1973, https://doi.org/10.1145/321738.321743.
"""

from collections.abc import Callable
from math import log2

from pinrail_contract.launch import Policy

from .request import Request

AGE_QUANTUM = 10.0  # seconds of waiting that are worth one level of priority
HALF_LIFE = 2.0  # seconds of waiting that are worth half of the work
DEADLINE = 60.0  # seconds, of requests that name none


VIRTUAL_TIME: dict[Policy, Callable[[Request], float]] = {
    Policy.FCFS: lambda r: r.arrival,
    Policy.PRIORITY: lambda r: r.arrival + AGE_QUANTUM * r.terms.priority,
    Policy.SJF: lambda r: r.arrival + HALF_LIFE * log2(r.prompt_len),
    Policy.EDF: lambda r: r.arrival + (DEADLINE if r.terms.deadline is None else r.terms.deadline),
}
