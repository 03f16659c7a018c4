"""The operator's rendering and the engine's parsing of the command line are one thing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinrail_contract.launch import BackendName, Dtype, LaunchSpec, Quantization, Verification, parse_bytes

MINIMAL = LaunchSpec(model_dir="/models", manifest="/etc/manifest.json")


@given(
    name=st.text(min_size=1),
    port=st.integers(1, 65535),
    verification=st.sampled_from(Verification),
    dtype=st.sampled_from(Dtype),
    backend=st.sampled_from(BackendName),
    quantization=st.sampled_from(Quantization),
    kv=st.integers(2**16, 2**44),
    seqs=st.integers(1, 4096),
)
def test_what_is_rendered_parses_to_the_same(name: str, port: int, kv: int, seqs: int, **enums: Any) -> None:
    spec = LaunchSpec(
        model_dir="-odd dir",
        manifest="m",
        served_model_name=name,
        port=port,
        kv_cache_memory=kv,
        max_num_seqs=seqs,
        **enums,
    )
    assert LaunchSpec.parse(spec.args()) == spec


def test_defaults_are_left_out() -> None:
    assert MINIMAL.args() == ["--model-dir=/models", "--manifest=/etc/manifest.json"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 0),
        ("max_num_seqs", 0),
        ("block_size", 0),
        ("kv_cache_memory", 1),
        ("steps_in_flight", 9),
        ("max_queued", -1),
    ],
)
def test_a_value_out_of_bounds_names_its_flag(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"--{field.replace('_', '-')}: got {value}, want"):
        LaunchSpec(model_dir="/m", manifest="m", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "value"), [("512Mi", 2**29), ("2G", 2 * 10**9), ("65536", 65536), ("1Ti", 2**40)])
def test_quantities(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "0", "1.5Gi", "-1Mi", "1 Gi", "1gi", "NaN"])
def test_a_quantity_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="want bytes above 0"):
        parse_bytes(text)
