"""What a call is: its options and sizes, and the arrays it is a function of.

`call` has what is static, `primals` the arrays. `arguments` checks these against each
other; `controls`, `step_mask` and `noise` are what bends the course of the recurrence.
"""
