"""An operator as Kopf's guide has it: a timer that counts, and writes the count to the status of what it looks at."""

from typing import Any

import kopf

INTERVAL = 0.2  # seconds


@kopf.timer("pinrail.dev", "v1alpha1", "inferenceservices", interval=INTERVAL)
async def tick(patch: kopf.Patch, memo: kopf.Memo, **_: Any) -> None:
    memo.count = memo.get("count", 0) + 1
    patch.status["replicas"] = memo.count
