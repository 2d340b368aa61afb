"""Cells without a product in a step on several devices."""

import json

from support import run_python

PROGRAM = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from linear_cells import CELLS
random = np.random.default_rng(0)
def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)
CONTROLS = {
    "plain": {},
    "controls": {"resets": random.uniform(size=(8, 7)) < 0.3,
                 "lengths": np.arange(8) % 8, "reverse": True},
    "mask": {"mask": random.uniform(size=(8, 7)) < 0.7},
}
for name in ("indrnn", "sru-peepholes", "qrnn-fo"):
    cell = CELLS[name]
    weights = {k: normal(*shape) for k, shape in cell.shapes.items()}
    x = normal(8, 7, cell.input)
    for controls, options in CONTROLS.items():
        def loss(x, weights):
            state = (None,) if len(cell.states) == 1 else None
            y, last = cell.call(x, weights, state, **options)
            ends = sum(jnp.sum(s * s) for s in jax.tree.leaves(last))
            return jnp.sum(jnp.sin(y)) + ends
        gradient = jax.jit(jax.grad(loss, (0, 1)))
        expected = gradient(x, weights)
        for kind in (AxisType.Auto, AxisType.Explicit):
            mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
            with jax.set_mesh(mesh):
                put = jax.device_put(x, NamedSharding(mesh, P("data")))
                if kind == AxisType.Explicit:  # controls too
                    options = {name: control if name == "reverse" else
                               jax.device_put(control, NamedSharding(mesh, P("data")))
                               for name, control in options.items()}
                    gradient = jax.jit(jax.grad(loss, (0, 1)))
                found = gradient(put, weights)
            pairs = zip(*map(jax.tree.leaves, (found, expected)))
            error = max(float(np.abs(np.asarray(a) - b).max()) for a, b in pairs)
            print(json.dumps([name, controls, kind.name, error]))
"""


def test_a_batch_may_be_on_several_devices():
    flags = "--xla_force_host_platform_device_count=4"
    lines = run_python(PROGRAM, XLA_FLAGS=flags).splitlines()
    assert len(lines) == 3 * 3 * 2
    for name, controls, kind, error in map(json.loads, lines):
        assert error < 1e-4, (name, controls, kind)
