"""Write new keys and values into the paged cache:  cache[slot] = row

A slot is one token's place: block * block_size + offset in the block.

Source: Kwon et al. 2023, https://arxiv.org/abs/2309.06180, section 4.
"""

from torch import Tensor


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Overwrite one slot per row, in place.

    Args:
        k, v: [n, kv_heads, d], dtype of the cache; may be strided.
        k_cache, v_cache: [n_blocks, block_size, kv_heads, d], contiguous.
        slots: [n] int64, all different.

    Cost: reads and writes 2 n kv_heads d elements.
    """
    k_cache.view(-1, *k.shape[1:]).index_copy_(0, slots, k)
    v_cache.view(-1, *v.shape[1:]).index_copy_(0, slots, v)
