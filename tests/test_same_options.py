"""Options have one name and one default in all functions."""

import inspect
from dataclasses import fields

import jax.numpy as jnp
import pytest

import prnn_jax
from prnn_jax._call.options import LinearCellOptions, LinearOptions, Options
from prnn_jax._ops.stack_parts import StackOptions

#: What functions have besides: their input, parameters, and what is not of a call.
OTHERS = {"recurrence": {"a_x", "b_hh", "w_hh", "heads", "peepholes", "w_hr"}}
OTHERS["stack"] = {"own"}  # what cells without a product in a step have
OTHERS["statistics"] = {"dy", "saturated_below"}
FUNCTIONS = {
    **dict.fromkeys(("lstm", "slstm", "gru", "rnn", "recurrence"), Options),
    **dict.fromkeys(("stack", "statistics"), StackOptions),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_are_alike_in_all_functions(name):
    usual = {field.name: field.default for field in fields(FUNCTIONS[name])}
    listed = inspect.signature(getattr(prnn_jax, name)).parameters
    given = set(listed) - {"cell", "x", "params", "layers"} - OTHERS.get(name, set())
    assert given <= usual.keys()
    assert {n: listed[n].default for n in given} == {n: usual[n] for n in given}


def test_options_of_linear_recurrences_are_those_of_calls():
    listed = inspect.signature(prnn_jax.linear_recurrence).parameters
    known = LinearOptions.__annotations__
    assert known.keys() == listed.keys() - {"a", "b", "h_0"}
    usual = {field.name: field.default for field in fields(Options)}
    assert {n: listed[n].default for n in known} == {n: usual[n] for n in known}
    assert LinearCellOptions.__annotations__.keys() < usual.keys()


@pytest.mark.parametrize("option", ["masks", "zoneout", "reserve"])
def test_what_a_linear_cell_has_not_is_an_error(option):
    message = rf"min_gru\(\) got an unexpected keyword argument '{option}'"
    with pytest.raises(TypeError, match=message):
        prnn_jax.min_gru(jnp.ones((2, 5, 3)), jnp.ones((3, 8)), **{option: None})
