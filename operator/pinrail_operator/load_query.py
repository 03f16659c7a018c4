"""One question to Prometheus for the loads of many pods, and what its answer says of each. Pure.

A page's figures have one time, so the time of one series is the age of all. Labels are those of the chart's PodMonitor.
"""

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from pinrail_contract.errors import SampleError
from pinrail_contract.metrics import LOAD_SERIES, RUNNING, LoadSample, Series, load_of

SAMPLED = "pinrail_sampled"
"""Label of the series whose value is a time; without it `or` would take it for the figure of the same labels."""

ABSENT = "Prometheus has no load series of it, want them with the labels namespace, pod and inference_service"

NO_LOAD = "Prometheus: got figures of it that are no load; the operator's log says more"

_META = re.compile(r"[\\.+*?()|\[\]{}^$]")


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One pod, as its series are labelled."""

    namespace: str
    service: str
    pod: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What Prometheus has of one pod; where that is no load, `error` says why."""

    load: LoadSample | None = None
    age: float = 0.0  # seconds between the scrape and the answer, by Prometheus' own clock
    error: str = ""
    kind: str = ""  # of error: without a figure, so that it is the same for as long as the same is wrong


class AnswerError(ValueError):
    """What came is not an answer to the query.

    Args:
        problem: What was seen and what is wanted.
        detail: More for the operator's log: it may hold addresses.
    """

    def __init__(self, problem: str, detail: str = "") -> None:
        super().__init__(problem)
        self.detail = detail


def query(targets: Collection[Target]) -> str:
    """PromQL that finds the load series of these pods and the time of each page.

    No value can end its string, or mean anything but itself. Pods that have a namespace, a service and a name of three
    targets may come too; `readings` leaves them out.
    """
    whose = ",".join(
        f"{label}=~{_any_of(values)}"
        for label, values in (
            ("namespace", {t.namespace for t in targets}),
            ("inference_service", {t.service for t in targets}),
            ("pod", {t.pod for t in targets}),
        )
    )
    times = f'label_replace(timestamp({RUNNING}{{{whose}}}), "{SAMPLED}", "at", "", "")'
    return f"{{__name__=~{_any_of(LOAD_SERIES)},{whose}}} or {times}"


def _any_of(values: Iterable[str]) -> str:
    """A string of PromQL that holds a regular expression which matches these values alone."""
    return json.dumps("|".join(_META.sub(r"\\\g<0>", v) for v in sorted(values)), ensure_ascii=False)


def readings(answer: bytes, targets: Iterable[Target]) -> dict[Target, Reading]:
    """What the answer to `query` says of each pod.

    Raises AnswerError where it is not one of Prometheus' instant vectors.
    """
    by_target: dict[Target, list[tuple[dict[str, str], float, str]]] = {target: [] for target in targets}
    for labels, at, value in _vector(answer):
        target = Target(labels.get("namespace", ""), labels.get("inference_service", ""), labels.get("pod", ""))
        if target in by_target:
            by_target[target].append((labels, at, value))
    return {target: _reading(samples) for target, samples in by_target.items()}


def _reading(samples: list[tuple[dict[str, str], float, str]]) -> Reading:
    ages = [at - float(value) for labels, at, value in samples if SAMPLED in labels]
    series: Series = {}
    for labels, _, value in samples:
        if SAMPLED not in labels:
            series.setdefault(labels.get("__name__", ""), []).append((labels, value))
    if not series:
        return Reading(error=ABSENT, kind=ABSENT)
    try:
        load = load_of(series)
    except SampleError as e:
        return Reading(error=f"Prometheus: {e}", kind=NO_LOAD)
    if len(ages) != 1 or not ages[0] >= 0:  # NaN compares as False
        error = f"Prometheus: got {len(ages)} times of its page, want one that is not to come"
        return Reading(error=error, kind=NO_LOAD)
    return Reading(load, ages[0])


def _vector(answer: bytes) -> list[tuple[dict[str, str], float, str]]:
    """Labels, time and value of each sample."""
    try:
        document = json.loads(answer)
        if document["status"] != "success":
            raise AnswerError(f"got the status {_shown(document['status'])}, want success")
        if document["data"]["resultType"] != "vector":
            raise AnswerError(f"got a {_shown(document['data']['resultType'])}, want a vector")
        return [_sample(s["metric"], s["value"]) for s in document["data"]["result"]]
    except AnswerError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise AnswerError("got something else, want JSON of Prometheus' query API") from None


def _sample(metric: dict[str, str], value: tuple[float, str]) -> tuple[dict[str, str], float, str]:
    """Raises TypeError or ValueError where a part is not what it should be."""
    at, written = value
    "".join((written, *metric.values()))  # all are texts: the quickest way to see it
    float(written)
    return metric, float(at), written


def _shown(value: Any) -> str:
    return repr(value)[:40]
