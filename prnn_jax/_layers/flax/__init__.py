"""Layers for Flax NNX and Flax Linen.

`nnx_*` and `linen_*` are of one of the two; what is left they share, and it needs no
Flax itself.
"""
