"""Recurrent layers for Flax NNX, drop-in for `nnx.RNN` around a cell.

`LSTM(3, 5, rngs=rngs)` stands for `nnx.RNN(nnx.OptimizedLSTMCell(3, 5, rngs=rngs))`,
and with `bidirectional=True` for `nnx.Bidirectional` around two of them: the arguments
and the order of carries and outputs are the same, and `from_cell` and `to_cell` convert
the parameters. What runs is `prnn_jax.lstm`, `slstm`, `gru` or `rnn`.

`ScannedRNN` is the module that reinforcement learning has under this name: a recurrence
whose state is replaced where an episode begins.
"""

from typing import Any, Unpack

from jax import Array

from prnn_jax._given import statics
from prnn_jax._layers.flax import kinds, scanned
from prnn_jax._layers.flax.carry import Carry
from prnn_jax._layers.flax.shared_stack import class_of
from prnn_jax._layers.keywords import in_its_own_name

try:
    from flax import nnx

    from prnn_jax._layers.flax.nnx_cells import LikeGRU, LikeLSTM, LikeRNN, LikeSLSTM
    from prnn_jax._layers.flax.nnx_layer import Layer, layer_of
    from prnn_jax._layers.flax.nnx_linear import (
        LRU,
        QRNN,
        RGLRU,
        SRU,
        IndRNN,
        LinearLayer,
        MinGRU,
        MinLSTM,
    )
    from prnn_jax._layers.flax.nnx_shared import LayerOptions, ScannedOptions
    from prnn_jax._layers.flax.nnx_stack import OneCell, Stack
except ModuleNotFoundError as error:
    raise ImportError(
        'prnn_jax.nnx needs Flax: pip install "prnn_jax[flax]".'
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


class LSTM(LikeLSTM, Layer):
    r"""Long short-term memory over whole sequences; the equation is `prnn_jax.lstm`'s.

    Drop-in for `nnx.RNN(nnx.OptimizedLSTMCell(...))` and `nnx.RNN(nnx.LSTMCell(...))`.
    A carry is Flax's `(c, h)`, and if bidirectional a pair of them, forward and
    backward, as `nnx.Bidirectional` has it.

    Outputs and carries are in the dtype of the computation; where that has 16 bits, a
    carry that began in float32 stays so. Those of Flax's layers are in param_dtype
    where that is wider, because their carry starts in it.

    Attributes:
      w_ih: `nnx.Param` `[in_features, 4*hidden_features]`, gates i f g o side by side.
      w_hh: `nnx.Param` `[hidden_features, 4*hidden_features]`.
      b_ih: `nnx.Param` `[4*hidden_features]`, the one bias of each gate.
      b_hn: None; only the GRU may have one.
      peepholes: `nnx.Param` `[3*hidden_features]`, or None.
      w_hr: `nnx.Param` `[hidden_features, proj_size]`, or None; w_hh is then
        `[proj_size, 4*hidden_features]`.

    With heads, each has a leading axis for them, and hidden_features is here that of a
    head. If bidirectional, each has a leading axis of 2: forward, backward.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      kernel_init: of w_ih, called for each gate (and direction and head) with the shape
        `[in_features, hidden_features]`.
      recurrent_kernel_init: of w_hh, called likewise. By default each gate's matrix is
        orthogonal, as in `nnx.LSTMCell` (and Linen's cells); `nnx.OptimizedLSTMCell`
        and `nnx.GRUCell` draw one wide matrix instead, whose blocks are smaller.
      bias_init: of the biases, called likewise with `[hidden_features]`.
      bidirectional: run both ways at once, as `nnx.Bidirectional`.
      merge: of a bidirectional layer's outputs: "concat" (forward first) or "sum".
      heads: into how many independent recurrences the state is divided, all of which
        read all of the input; a divisor of hidden_features. None for one, whose
        parameters have no axis for it.
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
      deterministic: neither dropout nor random zoneout, as in `nnx.Dropout`;
        `model.train()` and `model.eval()` set it.
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
      rngs: for the parameters, and the streams `carry` for carry_init and `dropout`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _kind = kinds.LSTM


class SLSTM(LikeSLSTM, Layer):
    r"""sLSTM of the xLSTM over whole sequences; the equation is `prnn_jax.slstm`'s.

    Flax has no such cell. A carry is `(h, c, n, m)`, and if bidirectional a pair of
    them, forward and backward. As for dtypes, what `LSTM` says holds.

    Attributes:
      w_ih: `nnx.Param` `[in_features, 4*hidden_features]`, gates i f z o side by side.
      w_hh: `nnx.Param` `[hidden_features, 4*hidden_features]`.
      b_ih: `nnx.Param` `[4*hidden_features]`, the one bias of each gate.
      b_hn: None; only the GRU may have one.

    With heads, as it is mostly used, and if bidirectional, as in `LSTM`.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      **options: all other arguments of `LSTM` save for zoneout_rate and carry_init.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _kind = kinds.SLSTM


class GRU(LikeGRU, Layer):
    r"""Gated recurrent unit over whole sequences; the equations are `prnn_jax.gru`'s.

    Drop-in for `nnx.RNN(nnx.GRUCell(...))`. A carry is h, and if bidirectional a pair
    of them, forward and backward. As for dtypes, what `LSTM` says holds.

    Attributes:
      w_ih: `nnx.Param` `[in_features, 3*hidden_features]`, gates r z n side by side.
      w_hh: `nnx.Param` `[hidden_features, 3*hidden_features]`.
      b_ih: `nnx.Param` `[3*hidden_features]`, the one bias of each gate.
      b_hn: `nnx.Param` `[hidden_features]` with recurrent_bias, else None.

    With heads, and if bidirectional, as in `LSTM`.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      reset_after: whether r multiplies the product `h w_hn + b_hn`, as in
        `nnx.GRUCell`, or h before it.
      recurrent_bias: whether there is a b_hn, the bias that r multiplies, as in cuDNN,
        PyTorch, Linen and Equinox; `nnx.GRUCell` has none. Other biases of w_hh would
        only be added to b_ih, so there are none.
      **options: all other arguments of `LSTM`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _kind = kinds.GRU

    @in_its_own_name
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        reset_after: bool = True,
        recurrent_bias: bool = False,
        **options: Unpack[LayerOptions],
    ):
        kinds.check_gru(reset_after, recurrent_bias)
        self.reset_after = statics.hashable(reset_after)
        self.recurrent_bias = statics.hashable(recurrent_bias)
        super().__init__(in_features, hidden_features, **options)


class RNN(LikeRNN, Layer):
    r"""Elman network over whole sequences; the equation is `prnn_jax.rnn`'s.

    Drop-in for `nnx.RNN(nnx.SimpleCell(...))`, whose `residual=True` is `skip=1.0`
    here. A carry is h, and if bidirectional a pair of them, forward and backward. As
    for dtypes, what `LSTM` says holds.

    Attributes:
      w_ih: `nnx.Param` `[in_features, hidden_features]`.
      w_hh: `nnx.Param` `[hidden_features, hidden_features]`.
      b_ih: `nnx.Param` `[hidden_features]`.
      b_hn: None; only the GRU may have one.

    With heads, and if bidirectional, as in `LSTM`.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      activation: as in `prnn_jax.rnn`.
      cap: of the clipped ReLU.
      skip: scale of the residual through time, inside the activation.
      **options: all other arguments of `LSTM`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _kind = kinds.RNN

    @in_its_own_name
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        cap: float = 20.0,
        skip: float = 0.0,
        **options: Unpack[LayerOptions],
    ):
        self.cap = statics.number("RNN", "cap", cap)
        self.skip = statics.number("RNN", "skip", skip)
        super().__init__(in_features, hidden_features, **options)


_LAYERS: dict[str, type[Layer | LinearLayer]] = {
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


class ScannedRNN(nnx.Module):
    """A recurrence whose state is replaced where an episode begins.

    Drop-in for a class of this name in reinforcement learning, `nn.scan` over a cell
    and a `where`: `carry, y = module(carry, (x, resets))`, time-major.

    Attributes:
      layer: the layer that runs.
      cell: its name.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      cell: "gru", "lstm", "rnn", "slstm", the name of a cell without a product, such as
        "min_gru", or what `prnn_jax.define_cell` has made.
      rngs: for the parameters.
      **options: of the layer, e.g. heads, dtype, reset_after.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    initialize_carry = scanned.InitializeCarry(
        lambda module: (
            module.cell,
            module.layer.hidden_features,
            getattr(module.layer, "proj_size", None),
            getattr(module.layer, "state_size", None),
        )
    )

    @in_its_own_name
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        cell: OneCell = "gru",
        rngs: nnx.Rngs,
        **options: Unpack[ScannedOptions],
    ):
        self.cell: OneCell = cell
        make: Any = class_of("ScannedRNN", cell, _LAYERS, layer_of)
        others: dict[str, Any] = {**options}
        self.layer = make(
            in_features,
            hidden_features,
            time_major=True,
            return_carry=True,
            rngs=rngs,
            **others,
        )

    def __call__(self, carry: Carry, x: tuple[Array, Array]) -> tuple[Carry, Array]:
        """Runs the recurrence over some steps, one or more.

        Args:
          carry: the state before them, `[*batch, hidden_features]`: h for "gru" and
            "rnn", `(c, h)` for "lstm", `(h, c, n, m)` for "slstm"; for others as the
            layer says.
          x: the inputs `[time, *batch, in_features]`, any number of batch axes, and
            `resets [time, *batch]`, of any dtype: where not zero, the state is zero
            before that step.

        Returns:
          The state after them, in the carry's dtype, and y
          `[time, *batch, hidden_features]`, every h.

        Raises:
          ValueError: shapes or dtypes do not fit; says what was expected.
        """
        return scanned.scan(self.layer, carry, x)
