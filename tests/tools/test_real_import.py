"""The real GGUF against an independent reader: transformers' own."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pinrail_engine.tools.gguf_model import import_gguf

TEXTS = [
    "The quick brown fox jumps over the lazy dog, 1234567 times.",
    "def f(x):\n    return x ** 2  # naïve\n\n\tprint(f(10))",
    "Zażółć gęślą jaźń — 你好世界 🙂",
]

pytestmark = pytest.mark.model


@pytest.mark.filterwarnings("ignore")  # those of transformers' reader
def test_the_imported_folder_computes_what_transformers_reads_from_the_gguf(gguf_file: Path, tmp_path: Path) -> None:
    import_gguf(gguf_file, tmp_path / "f32", "float32", lambda _: None)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "f32", dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32)
    our_text = AutoTokenizer.from_pretrained(tmp_path / "f32")
    their_text = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    for text in TEXTS:
        ids = our_text(text)["input_ids"]
        assert our_text.decode(ids) == text
        assert their_text.decode(ids) == text
        with torch.no_grad():
            tokens = torch.tensor([ids])
            torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, atol=1e-3, rtol=1e-4)
