"""What smaller weights change is measured against float32, on the real model."""

import json
import os
from pathlib import Path

import pytest

from pinrail_contract.pins import ModelManifest
from pinrail_engine.bench.accuracy import WAYS, Accuracy, measure, text
from pinrail_engine.model.arch import Arch
from pinrail_engine.text.pipeline import TextPipeline
from pinrail_kernels.native import Native

pytestmark = [pytest.mark.model, pytest.mark.native]

TOKENS = 300


@pytest.fixture(scope="module")
def told(real_model: tuple[Path, ModelManifest]) -> dict[str, Accuracy]:
    folder, _ = real_model

    def read(name: str) -> bytes | None:
        path = folder / name
        return path.read_bytes() if path.exists() else None

    arch = Arch.from_config(json.loads((folder / "config.json").read_bytes()))
    tokens = TextPipeline.from_files(read).encode(text())[:TOKENS]
    weights = os.open(folder / "model.safetensors", os.O_RDONLY)
    try:
        return {a.weights: a for a in measure(Native(2), {"model.safetensors": weights}, arch, tokens)}
    finally:
        os.close(weights)


def test_every_way_is_told(told: dict[str, Accuracy]) -> None:
    assert list(told) == list(WAYS)
    assert {a.tokens for a in told.values()} == {TOKENS - 1}


def test_float32_is_what_the_others_are_held_against(told: dict[str, Accuracy]) -> None:
    exact = told["float32"]
    assert (exact.mean_error, exact.largest_error, exact.divergence, exact.same_choice) == (0, 0, 0, 1)


def test_fewer_bytes_cost_little(told: dict[str, Accuracy]) -> None:
    """The text is English, so the model must find it far likelier than chance (a perplexity of 49,152)."""
    exact = told["float32"]
    assert exact.perplexity < 80
    sizes = [told[name].weight_bytes for name in ("float32", "bfloat16", "int8", "int4")]
    assert sizes == sorted(sizes, reverse=True)
    for name, error, divergence in [("bfloat16", 0.05, 0.001), ("int8", 0.5, 0.02), ("int4", 0.5, 0.02)]:
        assert told[name].mean_error < error
        assert told[name].divergence < divergence
        assert told[name].perplexity == pytest.approx(exact.perplexity, rel=0.03)
