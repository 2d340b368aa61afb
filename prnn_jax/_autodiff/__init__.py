"""Derivatives: the recurrence as one differentiable operation.

`recurrence` has the `custom_vjp`; `lean` is its backward pass that makes gates again.
"""
