"""Layers of other libraries, all run in the same way.

Arrays are as the library gives them. States are (h,) or (h, c), each
`[layers*directions, batch, hidden]`. A library that is not installed skips the test.
"""

import functools
import operator
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import quick_jit

from prnn_jax import Params, convert

IN, HIDDEN, TIME, BATCH = 4, 3, 5, 2
State = tuple[np.ndarray, ...]


def library(name: str):
    """The module; no library is loaded before a test needs it."""
    if name == "keras":
        # Keras writes its settings into its home, and chooses a backend once.
        os.environ["KERAS_BACKEND"] = "jax"
        os.environ["KERAS_HOME"] = tempfile.mkdtemp()
    return pytest.importorskip(name)


@dataclass(frozen=True)
class Layer:
    """A layer of a library, which we can run.

    Attributes:
      cell: its name in the library.
      options: of the library's layer.
      ours: options of our function that computes the same.
      layers: how many, one upon the other.
      bidirectional: whether each has two directions.
      b_hh: what the library can do with our b_hh: "keep" it, "add" it to b_ih, or
        "none", if it must not be there.
    """

    cell: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ours: Mapping[str, Any] = field(default_factory=dict)
    layers: int = 1
    bidirectional: bool = False
    b_hh: str = "add"

    time_major: ClassVar[bool] = False
    dtype: ClassVar[str] = "float64"
    tolerance: ClassVar[float] = 1e-10

    def __str__(self) -> str:
        settings = [f"{k}={v}" for k, v in {**self.options, **self.ours}.items()]
        settings += [f"{self.layers}-layers"] if self.layers > 1 else []
        settings += ["bidirectional"] if self.bidirectional else []
        return "-".join((type(self).__name__, self.cell, *settings))

    @property
    def function(self) -> str:
        """Ours."""
        return next((n for n in ("lstm", "gru") if n.upper() in self.cell), "rnn")

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def arrays(self, draw) -> Any:
        """Random arrays, `draw(shape)`, in the form that the library has them."""
        raise NotImplementedError

    def run(self, arrays: Any, x, state: State) -> tuple[np.ndarray, State]:
        """What the library computes: y in the order of x, last states."""
        raise NotImplementedError

    def read(self, arrays: Any) -> tuple[Params, ...]:
        """By the converter; each layer's `Params`."""
        raise NotImplementedError

    def write(self, layers: tuple[Params, ...]) -> Any:
        """By the converter."""
        raise NotImplementedError


class PyTorch(Layer):
    time_major = True

    @functools.cached_property
    def _module(self):
        make = getattr(library("torch").nn, self.cell)
        return make(
            IN,
            HIDDEN,
            num_layers=self.layers,
            bidirectional=self.bidirectional,
            **self.options,
        ).double()

    def arrays(self, draw):
        tensor = library("torch").from_numpy
        shapes = {name: tuple(a.shape) for name, a in self._module.state_dict().items()}
        return {name: tensor(draw(shape)) for name, shape in shapes.items()}

    def run(self, arrays, x, state):
        torch = library("torch")
        tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
        self._module.load_state_dict(tensors)
        x, *state = (torch.from_numpy(array) for array in (x, *state))
        with torch.no_grad():
            y, state = self._module(x, tuple(state) if len(state) > 1 else state[0])
        state = state if isinstance(state, tuple) else (state,)
        return y.numpy(), tuple(s.numpy() for s in state)

    def read(self, arrays):
        return convert.from_pytorch(self.cell, arrays)

    def write(self, layers):
        return convert.to_pytorch(self.cell, layers)


class Keras(Layer):
    @functools.cached_property
    def _layer(self):
        layers = library("keras").layers
        options = {"return_sequences": True, "return_state": True, **self.options}
        options |= {"kernel_initializer": "zeros", "recurrent_initializer": "zeros"}
        if self.function != "rnn":
            options["use_cudnn"] = False  # which has no float64
        layer = getattr(layers, self.cell)(HIDDEN, dtype=self.dtype, **options)
        sides = [layer]
        if self.bidirectional:
            layer = layers.Bidirectional(layer, dtype=self.dtype)
            sides = [layer.forward_layer, layer.backward_layer]
        if self.dtype == "float64" and "activation" not in options:
            # Keras' own tanh is float32 whatever the layer's dtype, with JAX below it.
            for side in sides:
                side.cell.activation = jnp.tanh
        layer.build((BATCH, TIME, IN))
        return layer

    @functools.cached_property
    def _run(self):
        def run(weights, others, x, state):
            call = self._layer.stateless_call
            return call(weights, others, x, initial_state=state)[0]

        return quick_jit(run)

    def arrays(self, draw):
        return [draw(weight.shape) for weight in self._layer.weights]

    def run(self, arrays, x, state):
        self._layer.set_weights(arrays)
        state = [s[d] for d in range(self.directions) for s in state]
        weights, others = (
            [variable.value for variable in variables]
            for variables in (
                self._layer.trainable_variables,
                self._layer.non_trainable_variables,  # seeds
            )
        )
        y, *state = self._run(weights, others, x, state)
        count = len(state) // self.directions
        y = y[:, ::-1] if self.options.get("go_backwards") else y
        return y, tuple(np.stack(state[k::count]) for k in range(count))

    @property
    def _reset_after(self):
        return {k: v for k, v in self.options.items() if k == "reset_after"}

    def read(self, arrays):
        return (convert.from_keras(self.cell, arrays, **self._reset_after),)

    def write(self, layers):
        return convert.to_keras(self.cell, *layers, **self._reset_after)


class KerasFloat32(Keras):
    """With its own activations."""

    dtype = "float32"
    tolerance = 1e-6  # some roundings of values below 1, over a few steps


class Haiku(Layer):
    time_major = True

    @functools.cached_property
    def _functions(self):
        hk = library("haiku")

        def run(x, state):
            core = getattr(hk, self.cell)(HIDDEN, **self.options)
            if self.function == "lstm":
                state = hk.LSTMState(*state)
            else:
                (state,) = state
            y, state = hk.dynamic_unroll(core, x, state)
            return y, state if isinstance(state, tuple) else (state,)

        return hk.without_apply_rng(hk.transform(run))

    @functools.cached_property
    def _run(self):
        return quick_jit(self._functions.apply)

    def arrays(self, draw):
        x, h = jnp.zeros((TIME, BATCH, IN)), jnp.zeros((BATCH, HIDDEN))
        init = functools.partial(self._functions.init, jax.random.key(0))
        count = 2 if self.function == "lstm" else 1
        shapes = jax.eval_shape(init, x, (h,) * count)
        return jax.tree.map(lambda a: jnp.asarray(draw(a.shape)), shapes)

    def run(self, arrays, x, state):
        state = tuple(s[0] for s in state)
        y, state = jax.tree.map(np.asarray, self._run(arrays, x, state))
        return y, tuple(s[None] for s in state)

    def read(self, arrays):
        return (convert.from_haiku(self.cell, arrays),)

    def write(self, layers):
        return convert.to_haiku(self.cell, *layers)


class OnnxReference(Layer):
    """ONNX's own evaluator of its definitions."""

    time_major = True

    def arrays(self, draw):
        rows = {"lstm": 4, "gru": 3, "rnn": 1}[self.function] * HIDDEN
        arrays = {
            "W": draw((self.directions, rows, IN)),
            "R": draw((self.directions, rows, HIDDEN)),
            "B": draw((self.directions, 2 * rows)),
        }
        arrays = {name: array.astype(self.dtype) for name, array in arrays.items()}
        return arrays if self.b_hh == "keep" else {n: arrays[n] for n in ("W", "R")}

    def run(self, arrays, x, state):
        given = dict(zip(("initial_h", "initial_c"), state, strict=False))
        outputs = ["Y", "Y_h", "Y_c"][: 1 + len(state)]
        model = self._model(arrays, list(given), outputs)
        y, *state = self._evaluate(model, {"X": x, **given})
        return np.swapaxes(y, 1, 2).reshape(TIME, BATCH, -1), tuple(state)

    def _evaluate(self, model, inputs):
        library("onnx")
        return library("onnx.reference").ReferenceEvaluator(model).run(None, inputs)

    def _model(self, arrays, states, outputs):
        onnx = library("onnx")
        make, double = onnx.helper, onnx.TensorProto.DOUBLE
        dtype = double if self.dtype == "float64" else onnx.TensorProto.FLOAT
        bias = "B" if "B" in arrays else ""
        node = make.make_node(
            self.cell,
            ["X", "W", "R", bias, "", *states],
            outputs,
            hidden_size=HIDDEN,
            **self.options,
        )
        of_type = functools.partial(make.make_tensor_value_info, elem_type=dtype)
        graph = make.make_graph(
            [node],
            self.cell,
            [of_type(name, shape=None) for name in ("X", *states)],
            [of_type(name, shape=None) for name in outputs],
            [onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()],
        )
        opsets = [make.make_opsetid("", 21)]
        return make.make_model(graph, opset_imports=opsets, ir_version=10)

    def read(self, arrays):
        return (convert.from_onnx(self.cell, arrays),)

    def write(self, layers):
        return convert.to_onnx(self.cell, *layers)


class OnnxRuntime(OnnxReference):
    """In float32: its recurrent operators have no float64."""

    dtype = "float32"
    # Sums of some ten terms, tanh and sigmoid by rational approximations.
    tolerance = 2e-6

    def _evaluate(self, model, inputs):
        library("onnx")
        session = library("onnxruntime").InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return session.run(None, inputs)


class _Cell(Layer):
    """A cell under a layer that scans it, with the carry (c, h) of Flax."""

    def _carries(self, state):
        carries = [tuple(s[d] for s in state[::-1]) for d in range(self.directions)]
        carries = [c if len(c) > 1 else c[0] for c in carries]
        return tuple(carries) if self.bidirectional else carries[0]

    def _state(self, carry):
        carries = carry if self.bidirectional else (carry,)
        carries = [c if isinstance(c, tuple) else (c,) for c in carries]
        return tuple(np.stack(s) for s in zip(*carries, strict=True))[::-1]


class Linen(_Cell):
    @functools.cached_property
    def _module(self):
        library("flax")
        linen = library("flax.linen")
        cell = getattr(linen, self.cell)

        def layer():
            return linen.RNN(cell(HIDDEN, param_dtype=self.dtype, **self.options))

        return linen.Bidirectional(layer(), layer()) if self.bidirectional else layer()

    @functools.cached_property
    def _run(self):
        def run(variables, x, carry):
            return self._module.apply(
                variables, x, initial_carry=carry, return_carry=True
            )

        return quick_jit(run)

    def arrays(self, draw):
        init = functools.partial(self._module.init, jax.random.key(0))
        shapes = jax.eval_shape(init, jnp.zeros((BATCH, TIME, IN)))["params"]
        return jax.tree.map(lambda a: jnp.asarray(draw(a.shape)), shapes)

    def run(self, arrays, x, state):
        carry, y = self._run({"params": arrays}, x, self._carries(state))
        return y, self._state(carry)

    def read(self, arrays):
        if not self.bidirectional:
            return (convert.from_linen(self.cell, arrays["cell"]),)
        sides = [arrays[f"{side}_rnn"]["cell"] for side in ("forward", "backward")]
        sides = [convert.from_linen(self.cell, side) for side in sides]
        return (convert.stack_directions(*sides),)

    def write(self, layers):
        if not self.bidirectional:
            return {"cell": convert.to_linen(self.cell, *layers)}
        sides = convert.split_directions(*layers)
        forward, backward = (convert.to_linen(self.cell, side) for side in sides)
        return {"forward_rnn": {"cell": forward}, "backward_rnn": {"cell": backward}}


class Nnx(_Cell):
    @functools.cached_property
    def _module(self):
        library("flax")
        nnx = library("flax.nnx")
        cell = getattr(nnx, self.cell)
        zeros = jax.nn.initializers.zeros
        return cell(
            IN,
            HIDDEN,
            kernel_init=zeros,
            recurrent_kernel_init=zeros,
            param_dtype=self.dtype,
            rngs=nnx.Rngs(0),
            **self.options,
        )

    @functools.cached_property
    def _run(self):
        nnx = library("flax.nnx")

        @nnx.jit
        def run(cell, x, carry):
            return nnx.RNN(cell, return_carry=True)(x, initial_carry=carry)

        return run

    def arrays(self, draw):
        nnx = library("flax.nnx")
        params = nnx.to_pure_dict(nnx.state(self._module, nnx.Param))
        return jax.tree.map(lambda a: jnp.asarray(draw(a.shape)), params)

    def run(self, arrays, x, state):
        library("flax.nnx").update(self._module, arrays)
        carry, y = self._run(self._module, x, self._carries(state))
        return y, self._state(carry)

    def read(self, arrays):
        return (convert.from_nnx(self.cell, arrays),)

    def write(self, layers):
        return convert.to_nnx(self.cell, *layers)


class Equinox(Layer):
    @functools.cached_property
    def _module(self):
        cell = getattr(library("equinox").nn, self.cell)
        make = functools.partial(cell, IN, HIDDEN, dtype=self.dtype, **self.options)
        return library("equinox").filter_eval_shape(make, key=jax.random.key(0))

    @functools.cached_property
    def _run(self):
        def run(cell, x, state):
            def step(state, x):
                state = jax.vmap(cell)(x, state)
                return state, state[0] if isinstance(state, tuple) else state

            state, y = jax.lax.scan(step, state, jnp.swapaxes(x, 0, 1))
            return jnp.swapaxes(y, 0, 1), state

        return quick_jit(run)

    def arrays(self, draw):
        arrays = {n: a for n, a in vars(self._module).items() if hasattr(a, "dtype")}
        return {name: jnp.asarray(draw(a.shape)) for name, a in arrays.items()}

    def run(self, arrays, x, state):
        eqx = library("equinox")
        cell = self._module
        for name, array in arrays.items():
            cell = eqx.tree_at(operator.attrgetter(name), cell, array)
        state = tuple(s[0] for s in state)
        state = state if len(state) > 1 else state[0]
        y, state = jax.tree.map(np.asarray, self._run(cell, x, state))
        state = state if isinstance(state, tuple) else (state,)
        return y, tuple(s[None] for s in state)

    def read(self, arrays):
        return (convert.from_equinox(self.cell, {**vars(self._module), **arrays}),)

    def write(self, layers):
        return convert.to_equinox(self.cell, *layers)
