"""The public functions whose recurrence has no product in a step.

`functions`, `qrnn` and `sru` have the cells, `run` the way of their calls.
"""
