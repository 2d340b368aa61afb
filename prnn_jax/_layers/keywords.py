"""Errors of arguments that a layer has not: in its own name, and what was meant."""

import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

_SIZES = "hidden_features", "features", "hidden_size", "units"
_BEGIN = "initial_carry", "state", "initial_state"
_GATES = "gate_activation", "recurrent_activation"
#: What others call an argument, and what it may be here.
_ALSO: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_SIZES, "hidden_dim", "num_units"), _SIZES),
    **dict.fromkeys(("input_size", "in_features"), ("in_features", "input_size")),
    **dict.fromkeys((*_BEGIN, "state_0", "h_0", "hx"), _BEGIN),
    **dict.fromkeys(("lengths", "seq_lengths"), ("seq_lengths", "lengths")),
    **dict.fromkeys(("activation_fn", "nonlinearity"), ("activation",)),
    **dict.fromkeys(("gate_fn", *_GATES), _GATES),
    **dict.fromkeys(("dropout", "dropout_rate"), ("dropout_rate", "dropout")),
    "recurrent_dropout": ("recurrent_dropout_rate",),
    "recurrent_dropout_rate": ("recurrent_dropout",),
    "zoneout": ("zoneout_rate",),
    "zoneout_rate": ("zoneout",),
    "reset_to": ("reset_carry",),
    "reset_carry": ("reset_to",),
    "return_state": ("return_carry",),
    "batch_first": ("time_major",),
    "time_major": ("time_major",),
    "bias": ("use_bias",),
}
#: What to do where a layer has none of these.
_ELSEWHERE = {
    "batch_first": "batch axes come first",
    "bidirectional": "Bidirectional runs both ways",
    "dropout": "a Stack has it, between its layers",
    "dropout_rate": "a Stack has it, between its layers",
    "in_features": "the input tells its size",
    "input_size": "the input tells its size",
    "num_layers": "a Stack has several layers",
    "return_sequences": "all steps' outputs come back",
    "time_major": "it is an argument of the call",
}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def in_its_own_name(method: _Function, refuses: tuple[str, ...] = ()) -> _Function:
    """A method that says in the name of the layer's class which argument it has not.

    Python would name a base class, and not what was meant. Its signature stays. What a
    method `refuses`, it does in words of its own.
    """
    names, told, hands_on = _arguments(method)
    is_init = method.__name__ == "__init__"
    accepted = None if hands_on and not told else frozenset([*names, *told, *refuses])

    @functools.wraps(method)
    def called(self: Any, *args: Any, **options: Any) -> Any:
        if accepted is not None and not options.keys() <= accepted:
            kind, name = type(self), method.__name__
            called_as = kind.__name__ + ("" if is_init else f".{name}")
            unknown = next(option for option in options if option not in accepted)
            raise TypeError(
                f"{called_as}() got an unexpected keyword argument {unknown!r}"
                f"{suggestion(unknown, list(_known(kind, name)))}"
            )
        return method(self, *args, **options)

    same: Any = called
    same.__signature__ = inspect.signature(method)  # for who asks for no wrapper's
    return same


class InTheirOwnName:
    """Classes that derive from it have such an `__init__`: that of a dataclass."""

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        made: Any = cls
        if "__init__" in vars(cls):
            made.__init__ = in_its_own_name(made.__init__)


def suggestion(unknown: str, known: list[str]) -> str:
    """What may be meant by a keyword that a layer has not; or empty."""
    for name in _ALSO.get(unknown, ()):
        if name in known and unknown == "batch_first":
            return f"; batch axes come first but with {name}=True"
        if name in known:
            return f"; {name} is its name here"
    if "options" in known:  # of a module that has a layer's as one
        return f"; options={{{unknown!r}: ...}} is for what only layers have"
    if unknown in _ELSEWHERE:
        return f"; {_ELSEWHERE[unknown]}"
    near = difflib.get_close_matches(unknown, known, 1, 0.75)
    return f"; did you mean {near[0]}?" if near else ""


def refuse_others_names(kind: type, options: dict[str, Any]) -> None:
    """Raises TypeError for what other libraries call an argument of a Keras layer."""
    known = list(_known(kind, "__init__"))
    for name in options:
        here = {"batch_first", "bidirectional"} | set(known)
        if name in known or not here & {name, *_ALSO.get(name, ())}:
            continue
        raise TypeError(
            f"{kind.__name__}() got an unexpected keyword argument {name!r}"
            f"{suggestion(name, known)}"
        )


def _known(kind: type, method: str) -> Iterator[str]:
    """All arguments by name that a method of a class and of its bases has."""
    for one in kind.__mro__:
        function = vars(one).get(method)
        if one is not object and callable(function):
            names, told, _ = _arguments(function)
            yield from (*names, *told)


def _arguments(method: Callable) -> tuple[list[str], list[str], bool]:
    """Those of a method by name; those a TypedDict names; whether there may be more."""
    names: list[str] = []
    told: list[str] = []
    of_all = list(inspect.signature(method).parameters.values())[1:]
    for argument in of_all:
        if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            names.append(argument.name)
        for options in typing.get_args(argument.annotation):
            told.extend(getattr(options, "__annotations__", {}))
    return names, told, any(one.kind is one.VAR_KEYWORD for one in of_all)
