"""Decides what runs: scheduling, KV blocks, who is finished. Plain numbers: no torch, no clock, no I/O."""
