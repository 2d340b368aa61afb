"""Files for `import_effect` that are damaged, or made to harm; what none can say."""

import dataclasses

import jax
import pytest
from test_import_effect import (
    HIDDEN,
    changed,
    guitarml,
    nam,
    of_layers,
    of_nam,
    rtneural,
    with_network,
)

import prnn_jax
from prnn_jax.convert import export_effect, import_effect

#: Values that no file of these has there: bools, strings, nothing, more than numbers.
JUNK = [True, "x", [], {"a": 1}, float("nan"), float("inf"), 0.5, -1, 10**400, None]
PLACES = {
    "shape": (lambda v: of_layers(0, 1, shape=[None, v]), ()),
    "in_shape": (lambda v: changed(rtneural("lstm"), in_shape=[None, None, v]), ()),
    "in_skip": (lambda v: changed(rtneural("lstm"), in_skip=v), (None,)),
    "in_gain": (lambda v: changed(rtneural("lstm"), in_gain=v), (0.5, -1, None)),
    "sample_rate": (lambda v: changed(nam(), sample_rate=v), (0.5, None)),
    "out_channels": (
        lambda v: of_nam(
            input_size=1, hidden_size=HIDDEN, num_layers=2, out_channels=v
        ),
        (None,),
    ),
    "unit_type": (
        lambda v: {
            "model_data": {"model": "SimpleRNN", "unit_type": v},
            "state_dict": {},
        },
        (),
    ),
    "weights": (lambda v: changed(nam(), weights=[*nam()["weights"][:-1], v]), "any"),
}


@pytest.mark.parametrize("place", PLACES)
def test_junk_is_refused(place):
    make, fits = PLACES[place]
    if fits == "any":  # of numbers
        fits = True, 0.5, -1
    for junk in JUNK:
        if any(junk is one for one in fits):
            import_effect(make(junk))
            continue
        with pytest.raises(ValueError, match="import_effect: "):
            import_effect(make(junk))


def test_arrays_that_nothing_would_run():
    file = guitarml("LSTM")
    arrays = file["state_dict"]
    for name in ("rec.weight_ih_l0_reverse", "rec.weight_hr_l0", "conv.weight"):
        more = arrays | {name: arrays["lin.weight"]}
        with pytest.raises(ValueError, match=f"must have the arrays of rec.*{name}"):
            import_effect(changed(file, state_dict=more))
    for name in ("num_layers", "hidden_size", "output_size"):
        said = file["model_data"] | {name: 9}
        with pytest.raises(ValueError, match=f"{name} is 9, and of the arrays"):
            import_effect(changed(file, model_data=said))


def test_a_file_that_is_nested_too_deep(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"deep\.json must be JSON"):
        import_effect(path)


@pytest.mark.parametrize("gain", [0, -1, float("nan"), float("inf"), True, "2"])
def test_gains_that_no_decibels_are(gain):
    effect = dataclasses.replace(with_network(), output_gain=gain)
    with pytest.raises(ValueError, match="output_gain must be a number above 0"):
        export_effect(effect)


def test_what_the_programs_read():
    effect = with_network()
    # Their JSON's null is no number.
    assert "sample_rate" not in export_effect(effect, like="nam")
    exact = dataclasses.replace(effect, sample_rate=1234567.5)
    assert import_effect(export_effect(exact)).sample_rate == 1234567.5
    two = dataclasses.replace(effect, skip=2)
    with pytest.raises(ValueError, match="'rtneural' has no place for skip=2"):
        export_effect(two)
    wider = prnn_jax.init("lstm", jax.random.key(1), HIDDEN, 2 * HIDDEN)
    net = dataclasses.replace(effect.network, layers=(*effect.network.layers, wider))
    with pytest.raises(ValueError, match=r"'guitarml' has no place for hidden_size"):
        export_effect(dataclasses.replace(effect, network=net), like="guitarml")
