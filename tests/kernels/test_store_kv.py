"""Rows land in their slots, and nowhere else."""

import torch

from pinrail_kernels.store_kv import store_kv


def test_rows_land_in_their_slots_alone() -> None:
    k_cache, v_cache = torch.zeros(3, 4, 2, 8), torch.zeros(3, 4, 2, 8)
    heads = torch.randn(2, 6, 8)  # keys and values are strided parts of one projection
    k, v = heads[:, 0:2], heads[:, 2:4]
    store_kv(k, v, k_cache, v_cache, torch.tensor([9, 2]))
    assert torch.equal(k_cache[2, 1], k[0])
    assert torch.equal(v_cache[0, 2], v[1])
    assert int(k_cache.any(-1).any(-1).sum()) == 2
