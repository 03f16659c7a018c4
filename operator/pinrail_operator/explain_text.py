"""The facts of `pinrail explain` as one screen of text. Pure."""

from collections.abc import Iterator
from typing import Any

from pinrail_contract.runtime import line_of

from .phrases import NOT_KNOWN, age, known, short, size, table
from .words import are, counted

Told = dict[str, Any]
_FILES_SHOWN = 8


def explain_text(told: Told) -> str:
    """Five parts: what runs, in which pods, why this many, what blocks, what an upgrade would do."""
    condition = told["condition"]
    head = f"{told['namespace']}/{told['name']}, {age(told['ageSeconds'])} old: {condition['reason']}"
    if "invalid" in told:
        parts = [("what is wrong", [told["invalid"]]), ("what blocks", _blocks(told["blocks"]))]
    else:
        parts = [
            ("what is pinned", list(_pinned(told["pinned"]))),
            ("what each pod reports", _pods(told["pods"], told["pinned"]["digest"])),
            ("why this many", list(_why(told["replicas"]))),
            ("what blocks", _blocks(told["blocks"])),
            ("is it safe to upgrade", list(_upgrade(told["upgrade"]))),
        ]
    return "\n".join([head, *(f"\n{title}\n{_indented(lines)}" for title, lines in parts)])


def _indented(lines: list[str]) -> str:
    return "\n".join(f"  {line}" for whole in lines for line in whole.splitlines())


def _pinned(pinned: Told) -> Iterator[str]:
    yield f"model     {pinned['model']}, ModelManifest {pinned['manifest']}, verification {pinned['verification']}"
    yield f"digest    {pinned['digest']}"
    if pinned["manifestDigest"] is None:
        yield f"manifest  {NOT_KNOWN}: {pinned['manifestProblem']}"
    else:
        if pinned["manifestDigest"] != pinned["digest"]:
            yield f"manifest  has {pinned['manifestDigest']}: not what is pinned"
        revision = f" at {pinned['sourceRevision']}" if pinned["sourceRevision"] else ""
        yield f"source    {pinned['source']}{revision}"
        yield f"files     {counted(len(pinned['files']), 'file')}, {size(pinned['bytes'])}"
        yield from _files(pinned["files"])
        if pinned["runtime"]:
            yield f"runs as   {line_of(pinned['runtime'])}"
    if pinned["unused"]:
        yield f"unused    {', '.join(pinned['unused'])}: no effect on this source"
    yield f"engine    {known(pinned['engineImage'])} ({pinned['engineImageFrom']})"


def _files(files: list[Told]) -> Iterator[str]:
    """The largest first; names and sizes of all are in the JSON form."""
    ordered = sorted(files, key=lambda f: (-f["size"], f["path"]))
    for file in ordered[:_FILES_SHOWN]:
        yield f"          {file['path']}  {size(file['size'])}  sha256 {short(file['sha256'])}"
    if len(ordered) > _FILES_SHOWN:
        yield f"          and {len(ordered) - _FILES_SHOWN} smaller"


def _pods(pods: list[Told], pinned: str) -> list[str]:
    if not pods:
        return ["there is no pod"]
    rows = table([_pod(p) for p in pods])
    differ = [
        f"{p['name']} reports {p['reported']}, want {pinned}"
        for p in pods
        if p["verified"] is False and p["reported"] not in (None, pinned)
    ]
    silent = [f"{p['name']}: {p['notHeard']}" for p in pods if p["ready"] and p["notHeard"]]
    differ += [f"{p['name']} reports {d}" for p in pods for d in p["differs"]]
    differ += [p["quarantined"] for p in pods if p["quarantined"]]
    return [rows, *_runs(pods), *differ, *silent, *(f"{p['name']}: {p['problem']}" for p in pods if p["problem"])]


def _runs(pods: list[Told]) -> Iterator[str]:
    """Engine and numerics as they are reported, once for all pods that report the same."""
    by_line: dict[str, list[str]] = {}
    for pod in pods:
        if pod["runs"]:
            by_line.setdefault(line_of(pod["runs"]), []).append(pod["name"])
    for line, names in by_line.items():
        who = "each" if len(names) == len(pods) else ", ".join(names)
        yield f"{who} runs {line}" if len(names) == 1 or who == "each" else f"{who} run {line}"


def _pod(pod: Told) -> dict[str, str]:
    verified = {True: "yes", False: "MISMATCH", None: NOT_KNOWN}[pod["verified"]]
    return {
        "POD": pod["name"],
        "NODE": known(pod["node"]),
        "REVISION": known(pod["revision"]),
        "READY": _readiness(pod),
        "VERIFIED": verified,
        "RESTARTS": known(pod["restarts"]),
        "AGE": age(pod["ageSeconds"]),
    }


def _readiness(pod: Told) -> str:
    if pod["ending"]:
        return "ending"
    return "quarantined" if pod["quarantined"] else "yes" if pod["ready"] else "no"


def _why(replicas: Told) -> Iterator[str]:
    yield f"{known(replicas['asked'])} asked for, {replicas['running']} running, {replicas['ready']} ready, " + (
        f"{known(replicas['verified'])} verified"
    )
    if replicas["suspended"]:
        yield "spec.suspend is true: none may run"
    elif "fixed" in replicas:
        yield f"spec.replicas is {replicas['fixed']}: the load is not followed"
    else:
        yield from _decision(replicas["decision"])
        yield from _bounds(replicas["policy"])
        yield _last_scale(replicas["lastScale"])


def _decision(decision: Told | None) -> Iterator[str]:
    if decision is None:
        yield f"last decision {NOT_KNOWN}: status.scaling is empty"
        return
    demand, supply = decision["demandBlocks"], decision["supplyBlocks"]
    part = f" ({100 * demand / supply:.0f} %)" if supply else ""
    wanted = counted(decision["desiredReplicas"], "replica")
    yield f"last decision {wanted}: {decision['reason']}: {decision['message']}"
    yield f"it saw   demand {demand} of {supply} KV blocks{part}; {counted(decision['reporting'], 'replica')} reporting"


def _bounds(policy: Told) -> Iterator[str]:
    yield f"bounds   {policy['minReplicas']} to {policy['maxReplicas']}, mode {policy['mode']}"
    up, down = 100 * policy["cacheUtilization"], 100 * policy["scaleDownUtilization"]
    yield f"targets  more above {up:g} %, fewer where they stay at {down:g} % or below"
    yield f"holds    none is removed while one replica has {policy['queueDepth']} waiting, or any does not report"
    windows = f"more must be needed for {policy['scaleUpWindowSeconds']:g} s, fewer do for"
    figures = f"figures from {policy['source']} last {policy['staleAfterSeconds']:g} s"
    yield f"windows  {windows} {policy['scaleDownWindowSeconds']:g} s; {figures}"
    for direction in ("scaleUp", "scaleDown"):
        if limit := policy[f"{direction}Limit"]:
            yield f"pace     {direction}: {limit}"


def _last_scale(last: Told | None) -> str:
    if last is None:
        return "changed  never, as far as the status says"
    change = f"{last['from']} → {last['to']}, {age(last['secondsAgo'])} ago"
    return f"changed  {change}: {last['reason']}: {last['message']}"


def _blocks(blocks: list[Told]) -> list[str]:
    if not blocks:
        return ["nothing"]
    return [_block(b) for b in blocks]


def _block(block: Told) -> str:
    since = "" if block["seconds"] is None else f" for {age(block['seconds'])}"
    return f"{block['type']}={block['status']} {block['reason']}{since}: {block['message']}"


def _upgrade(upgrade: Told) -> Iterator[str]:
    yield f"operator   {_operator(upgrade['operator'])}"
    yield f"roll-out   {_rollout(upgrade['rollout'])}"
    yield f"capacity   {_capacity(upgrade['capacity'])}"
    yield f"evictions  {_budget(upgrade['disruptionBudget'])}"
    drain = upgrade["drain"]
    grace = drain["terminationGracePeriodSeconds"]
    limit = f"{NOT_KNOWN} when a pod is killed" if grace is None else f"a pod is killed after {grace} s"
    yield f"drain      requests have {drain['timeoutSeconds']} s to end; {limit}"


def _operator(upgrade: Told) -> str:
    effect, why = upgrade["effect"], "; ".join(filter(None, (upgrade["why"], upgrade.get("steered"))))
    if effect is None:
        return f"{NOT_KNOWN}: {why}"
    if effect == "none":
        return f"one of this version changes nothing: {why}"
    if effect == "objects":
        return f"one of this version writes {', '.join(upgrade['objects'])} and restarts no pod: {why}"
    now, then = upgrade["revision"]["now"], upgrade["revision"]["then"]
    return f"one of this version RESTARTS the pods, revision {known(now)} → {then}: {why}"


def _rollout(rollout: Told) -> str:
    state = {True: "under way", False: "none under way", None: NOT_KNOWN}[rollout["underWay"]]
    current, target = known(rollout["current"]), known(rollout["target"])
    move = f"revision {current}" if current == target else f"revision {current} → {target}"
    counts = f"{known(rollout['updated'])} of {known(rollout['total'])} pods are of the Deployment's newest revision"
    return f"{state}; {move}; {counts}"


def _capacity(capacity: Told | None) -> str:
    if capacity is None:
        return f"{NOT_KNOWN}: there is no Deployment that rolls"
    more, fewer = counted(capacity["podsMore"], "pod"), counted(capacity["podsFewer"], "pod")
    rule = f"maxSurge {capacity['maxSurge']}, maxUnavailable {capacity['maxUnavailable']}"
    return f"a roll-out takes room for {more} more, and leaves out at most {fewer} ({rule})"


def _budget(budget: Told | None) -> str:
    if budget is None:
        return f"{NOT_KNOWN}: there is no PodDisruptionBudget"
    rule = ", ".join(f"{key} {value}" for key, value in budget["rule"].items())
    if budget["disruptionsAllowed"] is None:
        return f"{rule}; how many are allowed now is {NOT_KNOWN}"
    allowed = budget["disruptionsAllowed"]
    seen = f"{known(budget['healthy'])} healthy, {known(budget['needed'])} needed"
    return f"{allowed} {are(allowed)} allowed now ({rule}; {seen})"
