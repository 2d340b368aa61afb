"""What runs a call: the native engines, or `lax.scan`.

`plan` says which; `ffi` makes the native calls, `scan` is the other way. `modules` are
the compiled ones; `batching`, `sharding`, `by_platform` and `eager` are what JAX's
transformations do to a call; `input_projection` and `weight_products` what is parallel
in time. A recurrence without a product has `elementwise` and `linear_plan`.
"""
