"""Modules of PyTorch: which of them are networks, and what they tell of themselves."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from prnn_jax._cells.table import CellName
from prnn_jax._given.checks import check
from prnn_jax.convert._pytorch.graphs import traced
from prnn_jax.convert._pytorch.weights import (
    is_of_weights,
    keys_of,
    raw,
    slstm_paths,
)

OP = "import_pytorch"
CELLS: dict[int, tuple[str, CellName]] = {
    1: ("RNN", "rnn"),
    3: ("GRU", "gru"),
    4: ("LSTM", "lstm"),
}
MODULES: dict[str, tuple[str, CellName]] = {
    f"{name}{kind}": (name, cell)
    for name, cell in CELLS.values()
    for kind in ("", "Cell")
}
NAMES = ", ".join(f"torch.nn.{name}" for name in MODULES)
#: What `kind_of` calls those whose weights only the Python module tells.
QUANTIZED = "dynamically quantized"
#: Where PyTorch has those of them that are imported: of floats, and of weights alone
#: in 8 bits. Others of these names round what they compute, too.
_HOMES = "torch.nn.modules.rnn", "torch.ao.nn.quantized.dynamic.modules.rnn"
#: What dynamically quantized ones have instead of arrays, in TorchScript too.
_PACKED = "_all_weight_values", "_packed_weight_ih"
#: The forward that WeightDropLSTM and WeightDropGRU of pytorch-nlp give themselves: it
#: drops weights before the class's own.
_DROPS_WEIGHTS = "_weight_drop.<locals>.forward"
#: What a network of others' is mostly called.
_SOUNDS_LIKE_ONE = re.compile(r"RNN|LSTM|GRU|SRU|Cell$")


def kind_of(module: Any) -> str:
    """The class of PyTorch that a module is of, or was before TorchScript; or "".

    Of one that is not imported with its package, or what it is besides.
    """
    scripted = getattr(module, "original_name", None)
    if isinstance(scripted, str):  # and so may be one of a user's own
        if scripted in MODULES and any(hasattr(module, name) for name in _PACKED):
            return f"{QUANTIZED} {scripted}"
        own = [name for name, _ in module.named_parameters(recurse=False)]
        is_one = scripted in MODULES and any(n.startswith("weight_hh") for n in own)
        return scripted if is_one else ""
    theirs = _class_of(module)
    if theirs is None or theirs.__module__ in _HOMES:
        return "" if theirs is None else theirs.__name__
    return f"{theirs.__module__.removesuffix('.modules.rnn')}.{theirs.__name__}"


def _class_of(module: Any) -> type | None:
    for kind in type(module).__mro__:
        if kind.__module__.startswith("torch.") and kind.__name__ in MODULES:
            return kind
    return None


def check_forward(module: Any, where: str) -> None:
    """That a module computes what its class of PyTorch does."""
    theirs = _class_of(module)
    if theirs is None:
        return
    forward = module.forward
    if getattr(forward, "__qualname__", "") == _DROPS_WEIGHTS and raw(module):
        forward = type(module).forward.__get__(module)  # which that one calls
    check(
        getattr(forward, "__func__", None) is getattr(theirs, "forward", None),
        f"{OP}: {where} has a forward of its own, which is not imported. If only the "
        "weights are meant, import its state_dict().",
    )
    hooks = [*module._forward_hooks.values()]
    hooks += [h for h in module._forward_pre_hooks.values() if not is_of_weights(h)]
    check(
        not hooks,
        f"{OP}: {where} has hooks that may change what it computes, such as "
        f"{getattr(hooks[0], '__name__', type(hooks[0]).__name__) if hooks else ''}. "
        "Remove them before, or import its state_dict().",
    )


def option(module: Any, name: str) -> Any:
    """What a module was made with; None where it does not tell."""
    value = getattr(module, name, None)
    return traced(module).get(name) if value is None and is_traced(module) else value


def attribute(module: Any, name: str, where: str) -> Any:
    value = option(module, name)
    check(
        value is not None,
        f"{OP}: {where} does not tell {name}, as modules that torch.jit.trace made of "
        "a PackedSequence, or of an x without a batch, or has not called, do not; "
        "import its state_dict() instead, whose x is [*batch, time, input].",
    )
    return value


def is_traced(module: Any) -> bool:
    """Whether it is of TorchScript and has no option, but in its graph."""
    is_script = isinstance(getattr(module, "original_name", None), str)
    told = any(hasattr(module, name) for name in ("batch_first", "nonlinearity"))
    return is_script and not told


def check_imported(where: str, kind: str) -> None:
    """That the module that was found is of a kind that is imported."""
    check_readable(where, kind)
    check(
        kind in MODULES,
        f"{OP}: {where} must be of {NAMES}; PyTorch makes such ones of these, to "
        "compute with integers. Import the module of floats that it was made of.",
    )


def check_readable(where: str, kind: str) -> None:
    """That the weights of a network can be read."""
    check(
        not kind.startswith(QUANTIZED),
        f"{OP}: {where} is dynamically quantized, and only its Python module tells its "
        "weights, not TorchScript or a state_dict; import that module.",
    )


def check_found(found: Iterable[str], model: Any, modules: Mapping[str, Any]) -> None:
    """That a model has a network; says what it has instead."""
    if any(True for _ in found):
        return
    is_script = isinstance(getattr(model, "original_name", None), str)
    check(
        not is_script or any(True for _ in model.parameters()),
        f"{OP}: the model must have its weights as parameters, and has none, as of "
        "TorchScript that torch.jit.freeze made, which has constants of them. Import "
        "the module that was frozen.",
    )
    arrays = model.state_dict() if hasattr(model, "state_dict") else {}
    there = ", ".join(map(repr, keys_of(arrays)))
    check(
        not there,
        f"{OP}: the model must have one of {NAMES}, and has none; but arrays as "
        f"these have, of {there}. If they are used so, import its state_dict().",
    )
    check_any([], arrays, _classes(modules))


def check_any(found: Iterable[str], arrays: Iterable[str], instead: str = "") -> None:
    """That there is a network; `instead` says what is, if anything."""
    found = [*found]
    slstm = ", ".join(map(repr, slstm_paths(arrays)))
    check(
        bool(found) or not slstm,
        f"{OP}: the model must have one of {NAMES}, and has none; but sLSTM layers of "
        f"an xLSTM, {slstm}: prnn_jax.convert.import_xlstm imports these.",
    )
    check(
        bool(found),
        f"{OP}: the model must have one of {NAMES}, or their arrays weight_ih, "
        f"weight_hh; it has none{instead}.",
    )


def _classes(modules: Mapping[str, Any]) -> str:
    """Of what class a model is, and those in it that sound like networks."""
    named = {
        path: getattr(module, "original_name", None) or type(module).__name__
        for path, module in modules.items()
    }
    inside = [
        f"{path!r} of {name}"
        for path, name in named.items()
        if path and _SOUNDS_LIKE_ONE.search(name)
    ]
    more = [*inside[:4], "..."] if inside[4:] else inside
    return f"; it is of {named.get('')}" + (f", with {', '.join(more)}" if more else "")
