"""Recurrent layers for Flax Linen, drop-in for `linen.RNN` around a cell.

`LSTM(5)` stands for `nn.RNN(nn.OptimizedLSTMCell(5))`, and with `bidirectional=True`
for `nn.Bidirectional` around two of them: the arguments and the order of carries and
outputs are the same. What runs is `prnn_jax.lstm`, `slstm`, `gru` or `rnn`.

`ScannedRNN` is the module that reinforcement learning has under this name: a recurrence
whose state is replaced where an episode begins.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from jax import Array

from prnn_jax._layers.flax import kinds, scanned
from prnn_jax._layers.flax.carry import Carry
from prnn_jax._layers.flax.shared_stack import class_of
from prnn_jax._layers.keywords import InTheirOwnName

try:
    from flax import linen as nn
    from flax.core import FrozenDict

    from prnn_jax._layers.flax.linen_layer import Layer, layer_of, make_hashable
    from prnn_jax._layers.flax.linen_linear import (
        LRU,
        QRNN,
        RGLRU,
        SRU,
        IndRNN,
        MinGRU,
        MinLSTM,
    )
    from prnn_jax._layers.flax.linen_stack import OneCell, Stack
except ModuleNotFoundError as error:
    raise ImportError(
        'prnn_jax.linen needs Flax: pip install "prnn_jax[flax]".'
    ) from error

__all__ = [
    "GRU",
    "LRU",
    "LSTM",
    "QRNN",
    "RGLRU",
    "RNN",
    "SLSTM",
    "SRU",
    "IndRNN",
    "MinGRU",
    "MinLSTM",
    "ScannedRNN",
    "Stack",
    "layer_of",
]


class LSTM(Layer):
    r"""Long short-term memory over whole sequences; the equation is `prnn_jax.lstm`'s.

    Drop-in for `nn.RNN(nn.LSTMCell(...))` and `nn.RNN(nn.OptimizedLSTMCell(...))`. A
    carry is Flax's `(c, h)`, and if bidirectional a pair of them, forward and backward,
    as `nn.Bidirectional` has it.

    Outputs and carries are in the dtype of the computation; where that has 16 bits, a
    carry that began in float32 stays so. Those of Flax's layers are in param_dtype
    where that is wider, because their carry starts in it.

    Its parameters:

    - w_ih `[in_features, 4*features]`, gates i f g o side by side
    - w_hh `[features, 4*features]`
    - b_ih `[4*features]`, the one bias of each gate
    - peepholes `[3*features]`, where the layer has some
    - w_hr `[features, proj_size]`, where it has a projection; w_hh is then
      `[proj_size, 4*features]`

    With heads, each has a leading axis for them, and features is here that of a head.
    If bidirectional, each has a leading axis of 2: forward, backward.

    Attributes:
      features: size of the state.
      kernel_init: of w_ih, called for each gate (and direction and head) with the shape
        `[in_features, features]`.
      recurrent_kernel_init: of w_hh, called likewise. By default each gate's matrix is
        orthogonal, as in Linen's cells.
      bias_init: of the biases, called likewise with `[features]`.
      bidirectional: run both ways at once, as `nn.Bidirectional`.
      merge: of a bidirectional layer's outputs: "concat" (forward first) or "sum".
      heads: into how many independent recurrences the state is divided, all of which
        read all of the input; a divisor of features. None for one, whose parameters
        have no axis for it.
      time_major: inputs and outputs are `[time, *batch, features]`.
      return_carry: return `(carry, outputs)`.
      reverse: run from the last step to the first.
      keep_order: of a reversed layer's outputs: whether they are in the order of the
        inputs. By default, as in Flax, they are in the order of processing (what is
        past the end of a sequence stays there).
      recurrent_dropout_rate: share of h that is zero where it enters the product with
        w_hh, drawn once per call for all steps (Gal & Ghahramani 2016); the rest is
        scaled up.
      zoneout_rate: share of the state that stays as it is at a step, drawn for each
        (Krueger et al. 2017). Or a tuple of such, in the order of the carry. A layer
        that is deterministic takes the mean of old and new, weighted by the rate.
      deterministic: neither dropout nor random zoneout, as in `nn.Dropout`: to be given
        here or in the call if one of the rates is not 0.
      dtype: of the computation; by default that of inputs and params together.
      param_dtype: of the parameters.
      carry_init: draws the carry where no initial_carry is given; zeros without it.
      reserve: "fast" or "lean", as in `prnn_jax.lstm`.
      precision: of matrix products, as in `jax.lax.dot`.
      implementation: "native", "scan" or None, as in `prnn_jax.lstm`.
      activation: in place of tanh, as in `prnn_jax.lstm`.
      gate_activation: in place of σ, likewise.
      clip: bounds inside of the steps: `prnn_jax.Clip`.
      peepholes: whether the gates see c, as in `prnn_jax.Params`; they begin with zero.
      proj_size: of h, as in PyTorch: h is the product of what the units give with one
        more matrix, `prnn_jax.Params.w_hr`, and y as wide as that; then there is no
        zoneout. With heads, of all of them. None for none.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    _kind: ClassVar = kinds.LSTM


class SLSTM(Layer):
    r"""sLSTM of the xLSTM over whole sequences; the equation is `prnn_jax.slstm`'s.

    Flax has no such cell. A carry is `(h, c, n, m)`, and if bidirectional a pair of
    them, forward and backward. Parameters and dtypes are as in `LSTM`, with gates
    i f z o.

    Attributes:
      features: size of the state, and all other attributes of `LSTM`; zoneout_rate must
        be 0, carry_init None.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    _kind: ClassVar = kinds.SLSTM


class GRU(Layer):
    r"""Gated recurrent unit over whole sequences; the equations are `prnn_jax.gru`'s.

    Drop-in for `nn.RNN(nn.GRUCell(...))`. A carry is h, and if bidirectional a pair of
    them, forward and backward. As for dtypes, what `LSTM` says holds.

    Its parameters, with leading axes as in `LSTM`:

    - w_ih `[in_features, 3*features]`, gates r z n side by side
    - w_hh `[features, 3*features]`
    - b_ih `[3*features]`, the one bias of each gate
    - b_hn `[features]` with recurrent_bias

    Attributes:
      features: size of the state, and all other attributes of `LSTM`.
      reset_after: whether r multiplies the product `h w_hn + b_hn`, as in `nn.GRUCell`,
        or h before it.
      recurrent_bias: whether there is a b_hn, the bias that r multiplies; None for
        whether reset_after, as `nn.GRUCell` has it.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    reset_after: bool = True
    recurrent_bias: bool | None = None

    _kind: ClassVar = kinds.GRU

    @nn.nowrap
    def _has_b_hn(self) -> bool:
        has_b_hn = self.recurrent_bias
        has_b_hn = self.reset_after if has_b_hn is None else has_b_hn
        kinds.check_gru(self.reset_after, has_b_hn)
        return has_b_hn


class RNN(Layer):
    r"""Elman network over whole sequences; the equation is `prnn_jax.rnn`'s.

    Drop-in for `nn.RNN(nn.SimpleCell(...))`, whose `residual=True` is `skip=1.0` here.
    A carry is h, and if bidirectional a pair of them, forward and backward. Parameters
    and dtypes are as in `LSTM`, with one gate.

    Attributes:
      features: size of the state, and all other attributes of `LSTM`.
      activation: as in `prnn_jax.rnn`.
      cap: of the clipped ReLU.
      skip: scale of the residual through time, inside the activation.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    cap: float = 20.0
    skip: float = 0.0

    _kind: ClassVar = kinds.RNN


_LAYERS: dict[str, Callable[..., Any]] = {
    "lstm": LSTM,
    "slstm": SLSTM,
    "gru": GRU,
    "rnn": RNN,
    **{
        layer._cell.name: layer
        for layer in (MinGRU, MinLSTM, SRU, QRNN, RGLRU, LRU, IndRNN)
    },
}
Stack._layers.update(_LAYERS)


class ScannedRNN(InTheirOwnName, nn.Module):
    """A recurrence whose state is replaced where an episode begins.

    Drop-in for a class of this name in reinforcement learning, `nn.scan` over a cell
    and a `where`: `carry, y = module(carry, (x, resets))`, time-major. Its parameters
    are those of the layer, under the name "layer".

    Attributes:
      features: size of the state; by default the carry's.
      cell: "gru", "lstm", "rnn", "slstm", the name of a cell without a product, such as
        "min_gru", or what `prnn_jax.define_cell` has made.
      options: of the layer, e.g. `{"dtype": jnp.bfloat16}`.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    features: int | None = None
    cell: OneCell = "gru"
    options: Mapping[str, Any] = FrozenDict()

    initialize_carry = scanned.InitializeCarry(
        lambda m: (m.cell, m.features, *map(m.options.get, ("proj_size", "state_size")))
    )

    def __post_init__(self):
        make_hashable(self)
        super().__post_init__()

    @nn.compact
    def __call__(self, carry: Carry, x: tuple[Array, Array]) -> tuple[Carry, Array]:
        """Runs the recurrence over some steps, one or more.

        Args:
          carry: the state before them, `[*batch, features]`: h for "gru" and "rnn",
            `(c, h)` for "lstm", `(h, c, n, m)` for "slstm"; for others as the layer
            says.
          x: the inputs `[time, *batch, in_features]`, any number of batch axes, and
            `resets [time, *batch]`, of any dtype: where not zero, the state is zero
            before that step.

        Returns:
          The state after them, in the carry's dtype, and y `[time, *batch, features]`,
          every h.

        Raises:
          ValueError: shapes or dtypes do not fit; says what was expected.
        """
        features = self.features
        make: Any = class_of("ScannedRNN", self.cell, _LAYERS, layer_of)
        if features is None:
            features = scanned.hidden_size_of(carry)
            if make is LRU:  # real parts and imaginary ones
                features //= 2
        layer = make(
            features,
            time_major=True,
            return_carry=True,
            name="layer",
            **self.options,
        )
        return scanned.scan(layer, carry, x)
