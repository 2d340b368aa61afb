"""What callers give, and checks of it.

`params` has the parameters, `statics` options as Python's own values, `checks` what is
said of arrays that do not fit.
"""
