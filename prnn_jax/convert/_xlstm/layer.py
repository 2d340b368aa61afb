"""The sLSTM layer of an xLSTM, with what is around its recurrence."""

import functools
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import (
    Implementation,
    Lengths,
    MaskedY,
    Precision,
    Reserve,
    Resets,
)
from prnn_jax._cells.normed import LayerNorm, standardised
from prnn_jax._given import checks
from prnn_jax._linear.run import input_of
from prnn_jax._linear.ways import in_fewer_steps
from prnn_jax._linear.windows import windows
from prnn_jax._ops.recurrence import recurrence

State = tuple[Array | None, tuple[Array, Array, Array, Array]]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["w_ih", "w_hh", "b_hh", "scale", "kernel", "bias"],
    meta_fields=["name", "epsilon"],
)
@dataclass(frozen=True)
class SlstmLayer:
    r"""An sLSTM layer of an xLSTM: its parameters, and a call that runs it.

    .. math::
      x̃_t = \mathrm{silu}(b + \sum_j k_j ∘ x_{t-K+1+j}) \qquad
      a = [x̃ W_i, x̃ W_f, x W_z, x W_o] \qquad
      y = s ∘ N(\mathrm{sLSTM}(a))

    with the recurrence of `prnn_jax.slstm`; :math:`N` makes the mean and variance of
    each head's units 0 and 1. Without a convolution x̃ is x. (Beck et al. 2024,
    arXiv:2405.04517.) A pytree of its parameters; D features are of `heads` heads, each
    of `head`.

    Attributes:
      w_ih: `[heads, head, 4*head]`, the matrices of each head's own part of x, gate
        order i f z o.
      w_hh: `[heads, head, 4*head]`.
      b_hh: `[heads, 4*head]`.
      scale: s, `[D]`, or None for ones.
      kernel: k, `[K, D]`, the last of them of the step itself; or None.
      bias: b, `[D]`, or None.
      name: where in the model it was found; empty for the model itself.
      epsilon: added to the variances.
    """

    w_ih: Array
    w_hh: Array
    b_hh: Array
    scale: Array | None = None
    kernel: Array | None = None
    bias: Array | None = None
    name: str = ""
    epsilon: float = 1e-5

    def __call__(
        self,
        x: ArrayLike,
        state_0: State | None = None,
        *,
        lengths: Lengths | None = None,
        mask: ArrayLike | None = None,
        masked_y: MaskedY = "hold",
        resets: Resets | None = None,
        reserve: Reserve = "fast",
        precision: Precision = None,
        implementation: Implementation | None = None,
    ) -> tuple[Array, State]:
        """What the layer computes in evaluation, of a whole sequence or its next part.

        Args:
          x: `[*batch, time, D]`.
          state_0: what an earlier call returned; zeros if not given.
          lengths: `[*batch]`, as in `lstm`.
          mask: `[*batch, time]`, as in `lstm`; the convolution sees the steps that
            count alone.
          masked_y: y where one does not, as in `lstm`.
          resets: `[*batch, time]`, as in `lstm`: all of the state becomes zero, the
            inputs that the convolution has seen, too.
          reserve: as in `lstm`.
          precision: of products, as in `lstm`.
          implementation: as in `lstm`.

        Returns:
          y `[*batch, time, D]`, and the state: the last K-1 inputs `[*batch, K-1, D]`,
          or None, and `(h, c, n, m)` of `slstm`, each `[*batch, D]`.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        op = "SlstmLayer"
        x = checks.jax_array(op, "x", x)
        heads, head = self.w_ih.shape[:2]
        wanted = (*x.shape[:-1], heads * head)
        checks.shape(op, "x", x, ("*batch", "time", "features"), wanted)
        checks.same_dtype(op, {"x": x, "w_ih": self.w_ih})
        before, cell_0 = (None, None) if state_0 is None else state_0

        def run(x: Array, options: dict, together: Any) -> tuple[Array, State]:
            del together
            x, _ = input_of(op, x, options)
            seen, last = x, before
            if self.kernel is not None:
                seen, last = self._convolved(op, x, before, options)
            y, cell = recurrence(
                "slstm",
                self._pre_activations(seen, x, precision),
                self.w_hh,
                cell_0,
                b_hh=self.b_hh,
                heads=heads,
                reserve=reserve,
                precision=precision,
                implementation=implementation,
                **options,
            )
            y = standardised(y, LayerNorm(over="gate", epsilon=self.epsilon), heads)
            y = y if self.scale is None else self.scale * y
            return y, (last, cast("Any", cell))

        options: dict[str, Any] = {"lengths": lengths, "resets": resets}
        options |= {"mask": mask, "masked_y": masked_y}
        return in_fewer_steps(op, run, x, None, options)

    def _pre_activations(self, seen: Array, x: Array, precision: Precision) -> Array:
        """a of all steps, head by head: two gates see the convolution, two x."""
        heads, head = self.w_ih.shape[:2]
        parts = [
            jnp.einsum(
                "...hi,hio->...ho",
                of_x.reshape(*x.shape[:-1], heads, head),
                w,
                precision=precision,
            )
            for of_x, w in zip((seen, x), jnp.split(self.w_ih, 2, -1), strict=True)
        ]
        return jnp.concatenate(parts, -1).reshape(*x.shape[:-1], -1)

    def _convolved(self, op: str, x: Array, before: Any, options: dict):
        """x̃, and the inputs that the next part will see."""
        assert self.kernel is not None
        names = "state_0[0]", "state_0[0]"
        width = len(self.kernel)
        taps, last = windows(op, x, width, before, None, options, names)
        a = sum(k * tap for k, tap in zip(self.kernel, taps, strict=True))
        return jax.nn.silu(a if self.bias is None else a + self.bias), last
