"""The text of a layer's call: a function, a stack, or a layer of a host library."""

from .case import Case

WEIGHTS = "w_ih", "w_hh", "b_ih", "b_hh"
PARAMS = *WEIGHTS, "own"
NAMES = {"lstm": "LSTM", "slstm": "SLSTM", "gru": "GRU", "rnn": "RNN"}


def params_of(case: Case, suffix: str, names) -> str:
    given = [n + suffix if n + suffix in names else "None" for n in PARAMS]
    given = given if case.normed else given[:-1]
    kind = "MultiHeadParams" if case.heads else "Params"
    if case.bidirectional:  # which its option says, so that both will do
        kind = "BidirectionalParams" if case.seed % 2 else "Params"
    return f"prnn_jax.{kind}({', '.join(given)})"


def cell_of(case: Case) -> str:
    """What stands for the cell where it is an argument."""
    if not case.normed:
        return f'"{case.cell}"'
    of, over, c, epsilon = case.normed.split()
    said = {"over": repr(over), "epsilon": epsilon}
    if case.cell == "lstm":
        said |= {"of": repr(of), "c": "None" if c == "none" else repr(c)}
    return f'prnn_jax.normed("{case.cell}", prnn_jax.LayerNorm({_said(said)}))'


def _layer(case: Case, suffix: str, names) -> str:
    params = "packed" + suffix if case.prepared else params_of(case, suffix, names)
    if not case.norm:
        return params
    return f"prnn_jax.Layer({params}, prnn_jax.Norm(scale{suffix}, shift{suffix}))"


def _state(case: Case, pattern: str, suffix: str = "") -> str:
    states = [f"{s}_{pattern}{suffix}" for s in case.states]
    return states[0] if len(states) == 1 else f"({', '.join(states)})"


def _joined(parts: list[str], case: Case, kind: str = "") -> str:
    """A list; of stacked layers, with all but the first in one."""
    if not case.stacked:
        return f"[{', '.join(parts)}]"
    rest = f"jax.tree.map(lambda *a: jnp.stack(a), {', '.join(parts[1:])})"
    return f"[{parts[0]}, {kind.format(rest) if kind else rest}]"


def _states(case: Case, pattern: str) -> str:
    """Of all layers."""
    if not case.layers:
        return _state(case, pattern)
    return _joined([_state(case, pattern, s) for s in case.suffixes], case)


def _zoneout(case: Case) -> str:
    if case.zoneout in ("draws", "bools", "shares"):
        return "zone"
    number = "np.float32(0.25)" if case.zoneout == "scalar" else "0.25"
    if case.zoneout != "tuple":
        return number
    tail = [f"zone_{letter}" for letter in case.states[1:] or case.states]
    return f"({', '.join([number, *tail])})"


def _options(case: Case) -> dict[str, str]:
    """Arguments by name, as text."""
    out = {}
    if case.lengths:
        kind = {"list": "lengths.tolist()", "number": "int(lengths)"}
        out["lengths"] = kind.get(case.lengths, "lengths")
    if case.resets:
        out["resets"] = "resets.tolist()" if case.resets == "list" else "resets"
    if case.reset_to:
        out["reset_to"] = _states(case, "to")
    if case.mask:
        out["recurrent_mask"] = "mask"
    if case.zoneout:
        out["zoneout"] = _zoneout(case)
    for name in ("bidirectional", "time_major", "reverse", "skip_connections"):
        if getattr(case, name):
            out[name] = "True"
    if case.merge != "concat":
        out["merge"] = repr(case.merge)
    if case.lean:
        out["reserve"] = '"lean"'
    if case.implementation:
        out["implementation"] = repr(case.implementation)
    return out | _cell_options(case)


def _cell_options(case: Case) -> dict[str, str]:
    out = {}
    if not case.reset_after:
        out["reset_after"] = "False"
    for name, usual in (("activation", "tanh"), ("gate_activation", "sigmoid")):
        if getattr(case, name) != usual:
            out[name] = repr(getattr(case, name))
    if case.activation == "clipped_relu":
        out["cap"] = str(case.cap)
    if case.clip:
        state = f", state={case.clip}" * (case.cell == "lstm")
        out["clip"] = f"prnn_jax.Clip({case.clip}{state})"
    return out | ({"skip": str(case.skip)} if case.skip else {})


def _said(options: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def body(case: Case, names) -> list[str]:
    """Statements that end with `return`; `names` are those of the arrays."""
    lines = []
    if case.cut:
        lines.append("x = x[1:]" if case.time_major else "x = x[..., 1:, :]")
    if case.padding == "x" and case.maps:
        sizes = f"(*lengths.shape, {case.time})"
        steps = f'jax.lax.broadcasted_iota("int32", {sizes}, lengths.ndim)'
        steps += ' < lengths.astype("int32")[..., None]'
        steps = f"jnp.moveaxis({steps}, -1, 0)" if case.time_major else steps
        lines.append(f"x = jnp.where(({steps})[..., None], x, jnp.nan)")
    if case.host:
        lines += _host(case, names)
    else:
        first = ["x", _layer(case, "", names)]
        name = "prnn_jax." + case.cell
        if case.normed:
            name = cell_of(case)
        if case.layers:
            layers = [_layer(case, s, names) for s in case.suffixes]
            kind = "prnn_jax.Layer({}, stacked=True)"
            if case.norm:
                kind = "dataclasses.replace({}, stacked=True)"
            name = "prnn_jax.stack"
            first = [cell_of(case), "x", _joined(layers, case, kind)]
        if case.bare:
            name, first = "prnn_jax.recurrence", [cell_of(case), "x", "w_hh"]
            bias = "b_hh" if "b_hh" in names else "None"
            first += [_states(case, "0") if case.state else "None", bias]
        elif case.state:
            first.append(_states(case, "0"))
        options = _options(case)
        if case.bare and case.normed:
            options["peepholes"] = "own"
        called = ", ".join([*first, *[_said(options)] * bool(options)])
        lines.append(f"y, state = {name}({called})")
    results = {"y": "y,", "state": "*jax.tree.leaves(state),"}
    result = results.get(case.outputs, "y, *jax.tree.leaves(state)")
    return [*lines, f"return {result}"]


# ---- layers of host libraries --------------------------------------------------------


def _carry(case: Case, pattern: str) -> str:
    """As Flax has it: the LSTM's c before h, directions a pair."""
    order = "ch" if case.cell == "lstm" else case.states

    def one(n: str) -> str:
        each = [f"{s}_{pattern}{n}" for s in order]
        return each[0] if len(each) == 1 else f"({', '.join(each)})"

    return f"({one('[0]')}, {one('[1]')})" if case.bidirectional else one("")


def _from_carry(case: Case) -> str:
    """An expression for the state, of `carry`."""
    count = len(case.states)
    order = [1, 0] if case.cell == "lstm" else [*range(count)]
    if not case.bidirectional:
        return "carry" if count == 1 else f"({', '.join(f'carry[{n}]' for n in order)})"
    if count == 1:
        return "jnp.stack(carry)"
    pairs = [f"jnp.stack([carry[0][{n}], carry[1][{n}]])" for n in order]
    return f"({', '.join(pairs)})"


def _host(case: Case, names) -> list[str]:
    options = _options(case)
    at_call = {n: options.pop(n) for n in ("lengths", "resets") if n in options}
    options.pop("reset_to", None)
    weights = [n for n in WEIGHTS if n in names]
    if case.host == "equinox":
        return _equinox(case, options, at_call, weights)
    time_major = options.pop("time_major", None)
    if "zoneout" in options:
        options["zoneout_rate"] = options.pop("zoneout")
    if case.heads:
        options["heads"] = str(case.heads)
    options |= {"deterministic": "True", "return_carry": "True", "keep_order": "True"}
    if case.cell == "gru":
        options["recurrent_bias"] = "False"
    if case.dtype != "float32":
        options["param_dtype"] = f"jnp.{case.dtype}"
    if "lengths" in at_call:
        at_call["seq_lengths"] = at_call.pop("lengths")
    if time_major:
        at_call["time_major"] = "True"
    if case.state:
        at_call["initial_carry"] = _carry(case, "0")
    if case.reset_to:
        at_call["reset_carry"] = _carry(case, "to")
    called = ", ".join(["x", *[_said(at_call)] * bool(at_call)])
    name = f"prnn_jax.{case.host}.{NAMES[case.cell]}"
    if case.host == "linen":
        params = ", ".join(f'"{n}": {n}' for n in weights)
        made = f"{name}({case.width}, {_said(options)})"
        lines = [f'carry, y = {made}.apply({{"params": {{{params}}}}}, {called})']
    else:
        sizes = f"{case.input_size}, {case.width}"
        zeros = "jax.nn.initializers.zeros"
        drawn = f"kernel_init={zeros}, recurrent_kernel_init={zeros}"
        rngs = f"rngs=flax.nnx.Rngs(0), {drawn}"
        lines = [f"module = {name}({sizes}, {_said(options)}, {rngs})"]
        lines += [f"module.{n}[...] = {n}" for n in weights]
        lines.append(f"carry, y = module({called})")
    return [*lines, f"state = {_from_carry(case)}"]


def _equinox(case: Case, options, at_call, weights) -> list[str]:
    if options.pop("time_major", None):
        at_call["time_major"] = "True"
    if case.reset_to:
        at_call["reset_to"] = _state(case, "to")
    if case.heads > 1:
        options["heads"] = str(case.heads)
    if case.zoneout:
        options["inference"] = "True"
    if "b_ih" not in weights:
        options["use_bias"] = "False"
    elif case.cell == "gru" and case.reset_after:
        weights = [*weights, "b_hn"]
    options |= {"dtype": f"jnp.{case.dtype}", "key": "jax.random.key(0)"}
    sizes = f"{case.input_size}, {case.width}"
    fields = ", ".join(f"m.{n}" for n in weights)
    values = ", ".join(
        "jnp.zeros_like(module.b_hn)" if n == "b_hn" else n for n in weights
    )
    first = ["x"] + [_state(case, "0")] * case.state
    called = ", ".join([*first, *[_said(at_call)] * bool(at_call)])
    return [
        f"module = prnn_jax.equinox.{NAMES[case.cell]}({sizes}, {_said(options)})",
        f"module = equinox.tree_at(lambda m: ({fields},), module, ({values},))",
        f"y, state = module({called})",
    ]
