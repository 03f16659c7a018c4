"""For each alert of the chart: series that make it fire, and a neighbour's that must not."""

from dataclasses import dataclass

OPERATOR = 'namespace="sys",pod="p-operator-0"'
CHAT = 'namespace="team",inference_service="chat",pod="chat-0"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One sample each minute, in promtool's notation: `0+1x20` begins at 0 and adds 1, twenty times."""

    fires: dict[str, str]  # series -> its values
    quiet: dict[str, str]  # the same but for one thing
    waits: str  # a time at which the condition holds, and has not lasted yet
    at: str  # a time at which it has
    labels: dict[str, str]  # of the alert, besides its severity
    summary: str  # as a person reads it


def services(condition: str, status: str, reason: str, of: str = OPERATOR) -> str:
    return f'pinrail_operator_services{{{of},condition="{condition}",status="{status}",reason="{reason}"}}'


def oldest(status: str) -> str:
    labels = f'{OPERATOR},condition="Ready",status="{status}",reason="Loading"'
    return f"pinrail_operator_condition_oldest_seconds{{{labels}}}"


def reconciles(outcome: str) -> str:
    return f'pinrail_operator_reconciles_total{{{OPERATOR},outcome="{outcome}"}}'


LEADER = f"pinrail_operator_leader{{{OPERATOR}}}"
QUEUE = f"pinrail_operator_queue_oldest_seconds{{{OPERATOR}}}"
WAITING, OLDEST_WAITING = f"vllm:num_requests_waiting{{{CHAT}}}", f"pinrail_oldest_waiting_seconds{{{CHAT}}}"
USAGE = f"vllm:kv_cache_usage_perc{{{CHAT}}}"

CASES = {
    "PinrailServiceNotReady": Case(
        fires={oldest("False"): "1770+60x20"},
        quiet={oldest("True"): "1770+60x20"},
        waits="1m", at="2m", labels={"reason": "Loading"},
        summary="An InferenceService has not been ready for 31m 30s (Loading)",
    ),
    "PinrailServiceStalled": Case(
        fires={services("Stalled", "True", "ManifestMissing"): "2+0x20"},
        quiet={services("Stalled", "False", "ManifestMissing"): "2+0x20"},
        waits="4m", at="5m", labels={"reason": "ManifestMissing"},
        summary="2 InferenceServices wait for a person (ManifestMissing)",
    ),
    "PinrailModelMismatched": Case(
        fires={services("ModelVerified", "False", "ModelMismatch"): "1+0x20"},
        quiet={services("ModelVerified", "Unknown", "ModelMismatch"): "1+0x20"},
        waits="0m", at="1m", labels={"reason": "ModelMismatch"},
        summary="1 InferenceServices do not have the model that they pin (ModelMismatch)",
    ),
    "PinrailScalingHeld": Case(
        fires={services("ScalingActive", "False", "NoMetrics"): "3+0x20"},
        quiet={services("ScalingActive", "False", "RecommendOnly"): "3+0x20"},
        waits="9m", at="10m", labels={"reason": "NoMetrics"},
        summary="3 InferenceServices are not scaled, since replicas do not report their load (NoMetrics)",
    ),
    "PinrailNoOperatorLeads": Case(
        fires={LEADER: "0+0x20", LEADER.replace("sys", "other"): "1+0x20"},
        quiet={LEADER: "0+0x20", LEADER.replace("r-0", "r-1"): "1+0x20"},
        waits="1m", at="2m", labels={},
        summary="No operator leads, so no InferenceService is changed or scaled; what serves goes on serving",
    ),
    "PinrailReconcileErrors": Case(
        fires={reconciles("refused"): "0+1x40"},
        quiet={reconciles("conflict"): "0+1x40"},
        waits="14m", at="30m", labels={"outcome": "refused"},
        summary="Reconciles fail (refused), 15 in a quarter of an hour",
    ),
    "PinrailReconcilesWait": Case(
        fires={QUEUE: "61+0x20"},
        quiet={QUEUE: "60+0x20"},
        waits="4m", at="5m", labels={},
        summary="A service has waited for its reconcile for 1m 1s",
    ),
    "PinrailQueueGrowing": Case(
        fires={WAITING: "0+1x40", OLDEST_WAITING: "31+0x40"},
        quiet={WAITING: "9+0x40", OLDEST_WAITING: "31+0x40"},
        waits="9m", at="12m", labels={"namespace": "team", "inference_service": "chat"},
        summary="The queue of team/chat grows, and requests wait for more than half a minute",
    ),
    "PinrailCacheFullAndQueueing": Case(
        fires={USAGE: "0.96+0x20", WAITING: "1+0x20"},
        quiet={USAGE: "0.96+0x20", WAITING: "0+0x20"},
        waits="4m", at="5m", labels={"namespace": "team", "inference_service": "chat", "pod": "chat-0"},
        summary="The KV cache of team/chat-0 is full, and requests wait for it",
    ),
}  # fmt: skip
