"""The recurrent cells, in `jax.numpy`.

`table` has their equations and `CELLS`, a row for each; `activations` what they put
their pre-activations through.
"""
