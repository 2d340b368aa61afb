"""Half steps of a cell with two products, in each of which another thing is told.

The naive run knows nothing of them: it takes the phases of core/two_phase_passes.h.
"""

from faults.fault import CONTROLS, LENGTHS, SMALL, edit

FORWARD = "gru_before-forward-bf16-grid0"
BACKWARD = "gru_before-backward-bf16-grid0"
PASSES = "core/half_step_passes.h"

FAULTS = [
    edit(
        "what_the_second_phase_multiplies_is_not_masked",
        "value",
        FORWARD,
        CONTROLS,
        PASSES,
        "at.controls.masked(value[0], call, g, b, unit, io)",
        "value[0]",
    ),
    edit(
        "update_gate_is_forgotten_between_phases",
        "value",
        FORWARD,
        SMALL,
        PASSES,
        "carry[1] = out.kept[1];",
        "",
    ),
    edit(
        "gradient_of_the_update_gate_is_told_too_late",
        "value",
        BACKWARD,
        SMALL,
        PASSES,
        "out[1] = carry[1];",
        "out[1] = in.reserve[1];",
    ),
    edit(
        "half_the_steps_of_short_rows",
        "value",
        FORWARD,
        LENGTHS,
        PASSES,
        "? 2 * longest : shape.time;",
        "? longest : shape.time;",
    ),
    edit(
        "mailbox_of_half_the_steps",
        "bounds",
        FORWARD,
        SMALL,
        "call.h",
        "shape.time * phases(call.cell.kind) * shape.batch",
        "shape.time * shape.batch",
    ),
]
