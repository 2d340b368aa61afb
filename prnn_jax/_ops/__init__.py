"""The public functions, and the way that each of their calls goes.

`recurrent` has `lstm`, `slstm`, `gru` and `rnn`, `layer_stack` several on top of
each other, `run` the way of a call: options, checks, the recurrence.
"""
