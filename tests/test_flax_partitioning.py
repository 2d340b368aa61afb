"""with_partitioning around the initializers of Flax's layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P
from support import assert_bitwise_equal, run_python

import prnn_jax.linen as layers

X = jnp.ones((2, 3, 8))
INITIALIZERS = {
    "kernel_init": (nn.initializers.lecun_normal(), (None, "model")),
    "recurrent_kernel_init": (nn.initializers.orthogonal(), (None, "model")),
    "bias_init": (nn.initializers.ones_init(), ("model",)),
}
PLAIN = {name: init for name, (init, _) in INITIALIZERS.items()}
OPTIONS = [{}, {"bidirectional": True}, {"heads": 2}, {"proj_size": 4}]


@pytest.mark.parametrize("logical", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_axes_of_linen(options, logical):
    box = nn.with_logical_partitioning if logical else nn.with_partitioning
    boxed = {name: box(*given) for name, given in INITIALIZERS.items()}
    layer = layers.LSTM(8, **options, **boxed)
    variables = layer.init(jax.random.key(0), X)
    lead = (None,) if options.keys() & {"bidirectional", "heads"} else ()
    wanted = {name: P(*lead, None, "model") for name in ("w_ih", "w_hh")}
    wanted["b_ih"] = P(*lead, "model")
    if "proj_size" in options:
        wanted["w_hr"] = P(None, "model")
    assert nn.get_partition_spec(variables)["params"] == wanted
    plain = layers.LSTM(8, **options, **PLAIN)
    assert_bitwise_equal(nn.unbox(variables), plain.init(jax.random.key(0), X))
    assert_bitwise_equal(layer.apply(variables, X), plain.apply(nn.unbox(variables), X))


NNX = """
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from jax.sharding import AxisType, PartitionSpec as P
import prnn_jax.nnx as layers
from test_flax_partitioning import INITIALIZERS, PLAIN
boxed = {name: nnx.with_partitioning(*i) for name, i in INITIALIZERS.items()}
x = jax.random.normal(jax.random.key(0), (2, 3, 8))
with jax.set_mesh(jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,))):
    for both in (False, True):
        options = {"rngs": nnx.Rngs(0), "bidirectional": both}
        ours = layers.LSTM(8, 8, **options, **boxed)
        lead = (None,) if both else ()
        assert ours.w_ih[...].sharding.spec == P(*lead, None, "model")
        assert ours.b_ih[...].sharding.spec == P(*lead, "model")
        plain = layers.LSTM(8, 8, **{**options, "rngs": nnx.Rngs(0)}, **PLAIN)
        np.testing.assert_allclose(ours(x), plain(x), atol=1e-6)
"""


def test_axes_of_nnx():
    run_python(NNX, XLA_FLAGS="--xla_force_host_platform_device_count=2")


def test_axes_of_nnx_without_a_mesh():
    """Names alone, as Flax's own layers have them where no sharding is wanted yet."""
    from prnn_jax.nnx import LSTM

    init = nnx.with_partitioning(PLAIN["kernel_init"], (None, "model"))
    with nnx.use_eager_sharding(False):
        layer = LSTM(8, 8, kernel_init=init, bidirectional=True, rngs=nnx.Rngs(0))
    assert layer.w_ih.get_metadata()["out_sharding"] == (None, None, "model")
    assert np.isfinite(layer(X)).all()
