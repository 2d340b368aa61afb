"""Recurrent layers for Equinox.

Arguments, initialisation and gates are those of Equinox's cells: `LSTM(3, 5, key=key)`
has the very parameters of `eqx.nn.LSTMCell(3, 5, key=key)`. A layer runs a whole
sequence, `layer(xs) -> (ys, state)`, unbatched like a cell for use under `jax.vmap`;
leading batch axes are welcome too. What runs is `prnn_jax.lstm`, `slstm`, `gru` or
`rnn`, and for a `Stack` of them `prnn_jax.stack`. `ScannedRNN` is a layer in the shape
that reinforcement learning has it.
"""

from typing import Any, ClassVar, Unpack

try:
    import equinox as eqx
except ModuleNotFoundError as error:
    raise ImportError(
        'prnn_jax.equinox needs Equinox: pip install "prnn_jax[equinox]".'
    ) from error

from prnn_jax._call.choose import GATED
from prnn_jax._given import checks, statics
from prnn_jax._layers.equinox.cells import WithCell
from prnn_jax._layers.equinox.defined import layer_of
from prnn_jax._layers.equinox.layer import Layer
from prnn_jax._layers.equinox.linear import (
    LRU,
    QRNN,
    RGLRU,
    SRU,
    IndRNN,
    MinGRU,
    MinLSTM,
)
from prnn_jax._layers.equinox.options import LayerOptions
from prnn_jax._layers.equinox.scanned import ScannedRNN
from prnn_jax._layers.equinox.stack import Stack
from prnn_jax._layers.keywords import in_its_own_name
from prnn_jax._ops import recurrent

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


class LSTM(WithCell):
    r"""Long short-term memory over a whole sequence; the equation is `prnn_jax.lstm`'s.

    Stands for `jax.lax.scan` over `eqx.nn.LSTMCell`. The state is `(h, c)`.

    Attributes:
      w_ih: `[input_size, 4*hidden_size]`, gates i f g o side by side.
      w_hh: `[hidden_size, 4*hidden_size]`.
      b_ih: `[4*hidden_size]`, the one bias of each gate, or None.
      b_hn: None; only the GRU has one.
      peepholes: `[3*hidden_size]`, or None.
      w_hr: `[hidden_size, proj_size]`, or None; w_hh is then
        `[proj_size, 4*hidden_size]`.
      training: what is dropped, and whether it is; None if nothing ever is.

    With heads, each array has a leading axis of that many, and hidden_size in the
    shapes above is hidden_size/heads. If bidirectional, each has a leading axis of 2,
    forward and backward, before that.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there are biases.
      dtype: of the parameters; by default float32, or float64 in JAX's 64-bit mode.
      reverse: run from the last step to the first; ys stays in the order of xs.
      bidirectional: run both ways at once.
      merge: of a bidirectional layer's outputs: "concat" (forward first) or "sum".
      heads: blocks on the diagonal of the recurrent weights; divides hidden_size.
      recurrent_dropout: share of h that becomes zero where it enters the product with
        w_hh, while training; the same at all steps (Gal & Ghahramani 2016,
        arXiv:1512.05287).
      zoneout: share of states that keep their value in a step (Krueger et al. 2017,
        arXiv:1606.01305), a number or a pair, of h and of c. At inference, its mean.
      inference: whether nothing is dropped; `eqx.nn.inference_mode` sets it.
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
      key: for the parameters, uniform between ±1/sqrt(hidden_size) (of a head).

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _function = staticmethod(recurrent.lstm)
    _cell_name = "lstm"
    __init__ = Layer.__init__  # said again for type checkers, which make up another
    _cell = eqx.nn.LSTMCell


class SLSTM(Layer):
    r"""LSTM with an exponential input gate; the equations are `prnn_jax.slstm`'s.

    Equinox has no such cell. The state is `(h, c, n, m)`. Mostly used with heads.

    Attributes:
      w_ih: `[input_size, 4*hidden_size]`, gates i f z o side by side.
      w_hh: `[hidden_size, 4*hidden_size]`.
      b_ih: `[4*hidden_size]`, the one bias of each gate, or None.
      b_hn: None; only the GRU has one.

    Heads and directions are leading axes, as in `LSTM`.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there are biases.
      dtype: as for `LSTM`.
      **options: all other arguments of `LSTM`, but zoneout and activations.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _function = staticmethod(recurrent.slstm)
    _cell_name = "slstm"
    _option_names = ()
    __init__ = Layer.__init__  # said again for type checkers, which make up another


class GRU(WithCell):
    r"""Gated recurrent unit over a whole sequence; the equations are `prnn_jax.gru`'s.

    Stands for `jax.lax.scan` over `eqx.nn.GRUCell`. The state is h.

    Attributes:
      w_ih: `[input_size, 3*hidden_size]`, gates r z n side by side.
      w_hh: `[hidden_size, 3*hidden_size]`.
      b_ih: `[3*hidden_size]`, the one bias of each gate, or None.
      b_hn: `[hidden_size]`, the bias that r multiplies (`bias_n` of Equinox's cell);
        None without use_bias or reset_after.

    Heads and directions are leading axes, as in `LSTM`.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there are biases.
      dtype: as for `LSTM`.
      reset_after: whether r multiplies the product `h w_hn + b_hn`, as in
        `eqx.nn.GRUCell`, or h before it.
      **options: all other arguments of `LSTM`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    reset_after: bool = eqx.field(static=True)

    _function = staticmethod(recurrent.gru)
    _cell_name = "gru"
    _option_names = (*GATED, "reset_after")
    _cell = eqx.nn.GRUCell
    _cell_options: ClassVar[dict[str, Any]] = {"reset_after": True}

    @in_its_own_name
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        use_bias: bool = True,
        dtype: Any = None,
        *,
        reset_after: bool = True,
        **options: Unpack[LayerOptions],
    ):
        self.reset_after = statics.flag("GRU", "reset_after", reset_after)
        super().__init__(input_size, hidden_size, use_bias, dtype, **options)

    def _has_b_hn(self) -> bool:
        return self.reset_after

    def _check_cell(self) -> None:
        super()._check_cell()
        checks.check(
            self.reset_after,
            "GRU.to_cell: Equinox has only the GRU with reset_after=True, got False.",
        )


class RNN(Layer):
    r"""Elman network over a whole sequence; the equation is `prnn_jax.rnn`'s.

    Equinox has no such cell. The state is h.

    Attributes:
      w_ih: `[input_size, hidden_size]`.
      w_hh: `[hidden_size, hidden_size]`.
      b_ih: `[hidden_size]`, or None.
      b_hn: None; only the GRU has one.

    Heads and directions are leading axes, as in `LSTM`.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there is a bias.
      dtype: as for `LSTM`.
      activation: as in `prnn_jax.rnn`.
      cap: of the clipped ReLU.
      skip: scale of the residual through time, inside the activation.
      **options: all other arguments of `LSTM`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    cap: float = eqx.field(static=True)
    skip: float = eqx.field(static=True)

    _function = staticmethod(recurrent.rnn)
    _cell_name = "rnn_tanh"
    _option_names = "activation", "clip", "cap", "skip"

    @in_its_own_name
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        use_bias: bool = True,
        dtype: Any = None,
        *,
        cap: float = 20.0,
        skip: float = 0.0,
        **options: Unpack[LayerOptions],
    ):
        self.cap = statics.number("RNN", "cap", cap)
        self.skip = statics.number("RNN", "skip", skip)
        super().__init__(input_size, hidden_size, use_bias, dtype, **options)


Stack._layers.update({"lstm": LSTM, "slstm": SLSTM, "gru": GRU, "rnn": RNN})
for _layer in (MinGRU, MinLSTM, SRU, QRNN, RGLRU, LRU, IndRNN):
    Stack._layers[_layer._named()] = _layer
