"""Persistent recurrent layers for JAX.

`lstm`, `slstm`, `gru` and `rnn` run a layer over a whole sequence; `recurrence` takes
input that is projected already; `explain` tells which engine runs a call, `prepare`
packs weights once for many calls, `statistics` says how large values become; `convert`
takes models and parameters of other libraries. Layers for Flax, Equinox and Keras are
in `prnn_jax.nnx`, `prnn_jax.linen`, `prnn_jax.equinox` and `prnn_jax.keras`.
"""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from prnn_jax import convert as convert
from prnn_jax._autodiff.recurrence import SAVED
from prnn_jax._cells.activations import Activation
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.normed import LayerNorm
from prnn_jax._engine.plan import Plan
from prnn_jax._given.params import (
    BidirectionalParams,
    MultiHeadParams,
    Params,
    Prepared,
)
from prnn_jax._linear.functions import (
    indrnn,
    linear_recurrence,
    min_gru,
    min_lstm,
)
from prnn_jax._linear.lru import lru
from prnn_jax._linear.qrnn import qrnn
from prnn_jax._linear.rg_lru import rg_lru
from prnn_jax._linear.sru import sru
from prnn_jax._matrix.functions import delta_rule, linear_attention, mlstm
from prnn_jax._ops.define import DefinedCell, define_cell
from prnn_jax._ops.explain import explain
from prnn_jax._ops.export import export_checks
from prnn_jax._ops.init import init
from prnn_jax._ops.layer_stack import stack
from prnn_jax._ops.normed import NormedCell, normed
from prnn_jax._ops.prepare import prepare
from prnn_jax._ops.recurrence import recurrence
from prnn_jax._ops.recurrent import gru, lstm, rnn, slstm
from prnn_jax._ops.stack_parts import Layer, Norm
from prnn_jax._ops.stochastic import apply_updates, stochastic_round
from prnn_jax._statistics.plot import plot_statistics
from prnn_jax._statistics.statistics import LayerStatistics, statistics
from prnn_jax._statistics.summaries import ValueStatistics

try:
    __version__ = _version("prnn_jax")
except _PackageNotFoundError:  # a source folder on the path, which is not installed
    __version__ = "0+source"

__all__ = [
    "SAVED",
    "Activation",
    "BidirectionalParams",
    "Clip",
    "DefinedCell",
    "Layer",
    "LayerNorm",
    "LayerStatistics",
    "MultiHeadParams",
    "Norm",
    "NormedCell",
    "Params",
    "Plan",
    "Prepared",
    "ValueStatistics",
    "apply_updates",
    "define_cell",
    "delta_rule",
    "explain",
    "export_checks",
    "gru",
    "indrnn",
    "init",
    "linear_attention",
    "linear_recurrence",
    "lru",
    "lstm",
    "min_gru",
    "min_lstm",
    "mlstm",
    "normed",
    "plot_statistics",
    "prepare",
    "qrnn",
    "recurrence",
    "rg_lru",
    "rnn",
    "slstm",
    "sru",
    "stack",
    "statistics",
    "stochastic_round",
]
