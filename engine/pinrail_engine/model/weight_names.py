"""The tensors that a checkpoint of a given shape must hold, and those that may lie beside them unread. Pure."""

import re

from .arch import Arch

Shape = tuple[int, ...]

EMBED = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

_ROTARY = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def expected(arch: Arch) -> dict[str, Shape]:
    """Every name with its shape; matrices are [out, in]."""
    shapes: dict[str, Shape] = {EMBED: (arch.vocab, arch.hidden), NORM: (arch.hidden,)}
    if not arch.tied:
        shapes[HEAD] = (arch.vocab, arch.hidden)
    for i in range(arch.layers):
        shapes |= {layer_prefix(i) + name: shape for name, shape in layer_shapes(arch).items()}
    return shapes


def layer_prefix(i: int) -> str:
    return f"model.layers.{i}."


def layer_shapes(arch: Arch) -> dict[str, Shape]:
    """One layer's names without their prefix."""
    return {
        "input_layernorm.weight": (arch.hidden,),
        "self_attn.q_proj.weight": (arch.q_size, arch.hidden),
        "self_attn.k_proj.weight": (arch.kv_size, arch.hidden),
        "self_attn.v_proj.weight": (arch.kv_size, arch.hidden),
        "self_attn.o_proj.weight": (arch.hidden, arch.q_size),
        "post_attention_layernorm.weight": (arch.hidden,),
        "mlp.gate_proj.weight": (arch.intermediate, arch.hidden),
        "mlp.up_proj.weight": (arch.intermediate, arch.hidden),
        "mlp.down_proj.weight": (arch.hidden, arch.intermediate),
    }


def is_ignored(name: str, arch: Arch) -> bool:
    """A second copy of a tied head, and rotary tables that follow from config.json, as older files hold them."""
    return (arch.tied and name == HEAD) or _ROTARY.fullmatch(name) is not None
