"""What the tests of the layers for Flax share."""

import jax
import jax.numpy as jnp
import numpy as np
from layer_support import TIME, normal
from support import quick_jit as jit

# A linen cell's gates: names of the kernels of x, of those of h, and where biases are.
_GATES = {
    "LSTMCell": ("ifgo", "h", ""),
    "OptimizedLSTMCell": ("ifgo", "h", ""),
    "GRUCell": ("rzn", "i", "hn"),
    "SimpleCell": ("", "i", ""),
}


def projection(out):
    """A number that depends on all of out, each entry weighted at random."""
    leaves = enumerate(jax.tree.leaves(out))
    return sum(jnp.vdot(normal(i, *leaf.shape), leaf) for i, leaf in leaves)


def from_linen_cell(name, params):
    """The parameters of a cell of Linen as those of our layer."""
    gates, biased, bias_n = _GATES[name]
    gates = gates or ("",)

    def beside(side, what):
        return jnp.concatenate([params[side + gate][what] for gate in gates], -1)

    ours = {
        "w_ih": beside("i", "kernel"),
        "w_hh": beside("h", "kernel"),
        "b_ih": beside(biased, "bias"),
    }
    return ours | ({"b_hn": params[bias_n]["bias"]} if bias_n else {})


def past_the_end(lengths, *, time_major=False, time=TIME):
    """Which steps [batch, time, 1] do not count."""
    past = np.arange(time) >= np.asarray(lengths)[:, None]
    return (past.T if time_major else past)[..., None]


def run(module, *arguments, **options):
    """What module(...) returns, compiled as one program."""
    return jit(lambda: module(*arguments, **options))()
