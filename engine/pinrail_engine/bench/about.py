"""What an engine says of itself: the labels of its metrics page, over what its flags asked for. Pure."""

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from pinrail_contract.launch import LaunchSpec
from pinrail_contract.metrics import CACHE_CONFIG

_SAME_EVERYWHERE = ("model_name", "engine")  # labels that only tell one engine's page from another's
_NAMES = {"engine_version": "version", "num_gpu_blocks": "kv_blocks"}


def engine_of(page: str, spec: LaunchSpec, threads: int) -> Mapping[str, str]:
    """Name -> value, of whatever the engine tells; flags that left the choice to it say `auto` where it tells nothing.

    Args:
        page: Of its metrics.
        threads: That it may compute with.
    """
    asked = {
        "version": "",
        "backend": str(spec.backend),
        "dtype": str(spec.dtype),
        "quantization": str(spec.quantization),
        "threads": str(threads),
    }
    return asked | dict(_told(page))


def _told(page: str) -> Iterator[tuple[str, str]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == CACHE_CONFIG or (sample.name.startswith("pinrail_") and sample.name.endswith("_info")):
                for label, value in sample.labels.items():
                    if label not in _SAME_EVERYWHERE:
                        yield _NAMES.get(label, label), value
