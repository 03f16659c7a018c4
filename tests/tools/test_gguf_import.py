"""GGUF in, a standard folder out: what cannot be carried over is refused in one sentence."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from pinrail_contract.__main__ import main


def tiny_gguf(
    path: Path, change: Callable[[gguf.GGUFWriter], object] = lambda _: None, architecture: str = "llama"
) -> None:
    """A one-layer llama of width 32 with a 5-token tokenizer; `change` adds to it before it is written."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<s>", "</s>", "a", "b", "ab"])
    writer.add_token_types([3, 3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    for name, token in (("bos", 0), ("eos", 1), ("unk", 0), ("pad", 1)):
        getattr(writer, f"add_{name}_token_id")(token)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    change(writer)
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd": (5, 32),
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_norm": (32,),
        "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32),
        "blk.0.ffn_down": (32, 64),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run_import(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["import", str(path), str(tmp_path / "out")])
    return code, capsys.readouterr().err


def test_a_tiny_file_becomes_a_folder_that_can_be_pinned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_gguf(tmp_path / "tiny.gguf")
    code, _ = run_import(tmp_path / "tiny.gguf", tmp_path, capsys)
    assert code == 0
    assert main(["pin", str(tmp_path / "out"), "--name", "tiny"]) == 0


def test_two_imports_of_one_file_give_the_same_bytes(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "tiny.gguf")
    for name in ("a", "b"):
        assert main(["import", str(tmp_path / "tiny.gguf"), str(tmp_path / name)]) == 0
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_foreign_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04 something else")
    code, error = run_import(tmp_path / "x.gguf", tmp_path, capsys)
    assert (code, "want a GGUF file" in error) == (1, True)


@pytest.mark.parametrize("keep", [4, 30, 600, 0.5, 0.95, 0.999])
def test_a_truncated_file_is_refused(keep: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_gguf(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "tiny.gguf").write_bytes(data[: int(keep if keep > 1 else keep * len(data))])
    code, error = run_import(tmp_path / "tiny.gguf", tmp_path, capsys)
    assert (code, "is truncated" in error) == (1, True)
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_another_architecture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_gguf(tmp_path / "tiny.gguf", architecture="mamba")
    code, error = run_import(tmp_path / "tiny.gguf", tmp_path, capsys)
    assert (code, "general.architecture: got 'mamba', want 'llama'" in error) == (1, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "rope scaling is not known here"),
        (lambda w: w.add_add_bos_token(True), "add_bos_token: got True, want False"),
        (lambda w: w.add_tensor("blk.0.extra.weight", np.zeros((4, 32), np.float32)), "blk.0.extra.weight: a tensor"),
    ],
)
def test_what_is_not_known_is_named(
    change: Callable[[gguf.GGUFWriter], object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_gguf(tmp_path / "tiny.gguf", change)
    code, error = run_import(tmp_path / "tiny.gguf", tmp_path, capsys)
    assert (code, message in error) == (1, True), error


def test_a_folder_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    code, error = run_import(tmp_path / "tiny.gguf", tmp_path, capsys)
    assert (code, "is not empty, want a new folder" in error) == (1, True)
