"""What a call is: its options and sizes, and the arrays it is a function of.

`options` has all that it may be given, `choose` tells by these which cell it is of,
`call` has what is static, `primals` the arrays. `arguments` checks these against each
other; `controls`, `step_mask` and `noise` make a step another than the one before it.
"""
