"""A GGUF file as a standard model folder: config.json, safetensors, tokenizer files. Offline; no torch.

What cannot be carried over exactly is refused by name rather than guessed. Sources: the GGUF specification
(ggml `docs/gguf.md`) for keys and tensor names, and llama.cpp's converter for the row order of q and k.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import TensorSpec, serialize_file

from pinrail_contract.errors import PinrailError

from .gguf_tokenizer import tokenizer_files

Progress = Callable[[int], None]

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class ImportFailed(PinrailError):
    """The GGUF file cannot be imported; the message says what it is and what is wanted."""


class Metadata:
    """Typed access to a GGUF file's keys; raises ImportFailed that names the key."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._fields = reader.fields

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        field = self._fields.get(key)
        if field is None:
            if default is None:
                raise ImportFailed(f"{key}: missing, want {kind.__name__}")
            return default
        value = field.contents()
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind):
            raise ImportFailed(f"{key}: got {value!r:.60}, want {kind.__name__}")
        return value


def import_gguf(path: Path, folder: Path, dtype: str, progress: Progress) -> None:
    """Write `folder` from a GGUF file.

    Args:
        path: The GGUF file; only architecture "llama" is known.
        folder: Created; must be absent or empty.
        dtype: "bfloat16" or "float32", of the weights written.
        progress: Called with the number of parameters just converted.

    Raises:
        ImportFailed: The file is truncated, no GGUF, or of a kind that is not known.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ImportFailed(f"{folder}: is not empty, want a new folder")
    reader = open_reader(path)
    metadata = Metadata(reader)
    config = _config(metadata, reader, dtype)
    files = {"config.json": config, "generation_config.json": _generation(metadata)}
    tokenizer = tokenizer_files(metadata)
    stored = {name: _stored(values, dtype) for name, values in _tensors(reader, config, progress)}
    folder.mkdir(parents=True, exist_ok=True)
    specs = {
        name: TensorSpec(dtype=dtype, shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes)
        for name, a in stored.items()  # `stored` keeps the memory alive while it is written
    }
    serialize_file(specs, str(folder / "model.safetensors"), {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # as the others: readers run under other users
    for name, content in (files | tokenizer).items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def open_reader(path: Path) -> gguf.GGUFReader:
    """Raises ImportFailed where the file is not a whole GGUF file."""
    with path.open("rb") as f:
        magic = f.read(4)
    if magic != b"GGUF":
        raise ImportFailed(f"{path}: starts with {magic!r}, want a GGUF file")
    try:
        reader = gguf.GGUFReader(path)
    except Exception as e:  # the reader indexes past the end of a short file, in several ways
        raise ImportFailed(f"{path}: is truncated or damaged: the GGUF reader stopped with {type(e).__name__}") from e
    size = path.stat().st_size
    for tensor in reader.tensors:
        if int(tensor.data_offset) + int(tensor.n_bytes) > size:
            raise ImportFailed(f"{path}: is truncated: {tensor.name} ends past the file's {size} bytes")
    return reader


def _config(metadata: Metadata, reader: gguf.GGUFReader, dtype: str) -> dict[str, Any]:
    architecture = metadata.get("general.architecture", str)
    if architecture != "llama":
        raise ImportFailed(f"general.architecture: got {architecture!r}, want 'llama'")
    if any(key.startswith("llama.rope.scaling") for key in reader.fields):
        raise ImportFailed("llama.rope.scaling: rope scaling is not known here, want a model without it")
    hidden, heads = metadata.get("llama.embedding_length", int), metadata.get("llama.attention.head_count", int)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": metadata.get("llama.feed_forward_length", int),
        "num_hidden_layers": metadata.get("llama.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", int, heads),
        "head_dim": metadata.get("llama.rope.dimension_count", int, hidden // heads),
        "vocab_size": len(metadata.get("tokenizer.ggml.tokens", list)),
        "max_position_embeddings": metadata.get("llama.context_length", int),
        "rms_norm_eps": _shortest(metadata.get("llama.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": _shortest(metadata.get("llama.rope.freq_base", float, 10000.0)),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id", int),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id", int),
        "torch_dtype": dtype,
    }


def _generation(metadata: Metadata) -> dict[str, Any]:
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {
        f"{ours}_token_id": metadata.get(f"tokenizer.ggml.{theirs}_token_id", int) for ours, theirs in names.items()
    }


def _tensors(
    reader: gguf.GGUFReader, config: dict[str, Any], progress: Progress
) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    """Every tensor in float32 under its standard name, [out, in] for matrices."""
    for tensor in reader.tensors:
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as e:
            raise ImportFailed(f"{tensor.name}: quantisation {tensor.tensor_type.name} is not known here") from e
        shape = tuple(int(n) for n in reversed(tensor.shape))
        values = np.ascontiguousarray(values, dtype=np.float32).reshape(shape)
        if ".attn_q." in tensor.name:
            values = _unpermute(values, config["num_attention_heads"])
        elif ".attn_k." in tensor.name:
            values = _unpermute(values, config["num_key_value_heads"])
        yield _standard_name(tensor.name), values
        progress(values.size)


def _standard_name(name: str) -> str:
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _TOP and parts[1] == "weight":
        return f"{_TOP[parts[0]]}.weight"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _BLOCK and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_BLOCK[parts[2]]}.weight"
    raise ImportFailed(f"{name}: a tensor of this name is not known in architecture llama")


def _unpermute(rows: np.ndarray[Any, np.dtype[np.float32]], heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """GGUF interleaves the two rotary halves of each head's rows; put the halves back one after the other."""
    out, width = rows.shape
    return np.ascontiguousarray(rows.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2)).reshape(out, width)


def _stored(values: np.ndarray[Any, np.dtype[np.float32]], dtype: str) -> np.ndarray[Any, Any]:
    """The bits to write: numpy has no bfloat16, so those stand as uint16."""
    if dtype == "float32":
        return values
    bits = values.view(np.uint32)
    rounded: np.ndarray[Any, Any] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
    return rounded.astype(np.uint16)


def _shortest(value: float) -> float:
    """GGUF stores float32: 9.999999747378752e-06 is what 1e-05 became."""
    return float(str(np.float32(value)))
