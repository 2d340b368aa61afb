"""Rows whose blocks add up too little, too early, or in each other's place.

The naive run knows nothing of blocks: it takes core/normed_passes.h, row by row.
"""

from faults.fault import CONTROLS, LENGTHS, SMALL, edit

FORWARD = "normed_lstm-forward-bf16-grid0"
BACKWARD = "normed_lstm-backward-bf16-grid0"
GRU_BACKWARD = "normed_gru-backward-bf16-grid0"
NORMS, PASSES = "row_norms.cuh", "core/normed_unit_passes.h"
FIRST, SECOND = (f"(pairs[i][n].{half} == norms.count_)" for half in "yw")
IS_THERE = f"all = all & {FIRST} & {SECOND};"

FAULTS = [
    edit(
        "pair_of_the_step_before_is_taken",
        "value",
        FORWARD,
        SMALL,
        NORMS,
        IS_THERE,
        "all = all & (pairs[i][n].y != kUnwritten) & (pairs[i][n].w != kUnwritten);",
    ),
    edit(
        "half_of_a_pair_tells_of_the_other",
        "value",
        FORWARD,
        ("schedules=8", *SMALL),
        NORMS,
        IS_THERE,
        f"all = all & {FIRST};",
    ),
    edit(
        "teams_in_one_place",
        "value",
        FORWARD,
        ("schedules=8", *SMALL),
        NORMS,
        "((count_ & 1) * task_.teams + team)",
        "((count_ & 1) * task_.teams)",
    ),
    edit(
        "blocks_that_are_not_full",
        "value",
        FORWARD,
        SMALL,
        NORMS,
        "return rest < kLanes ? rest : kLanes;",
        "return kLanes;",
    ),
    edit(
        "units_that_are_not_there",
        "value",
        FORWARD,
        SMALL,
        NORMS,
        "if (at.exists) squares[n] = centred * centred;",
        "squares[n] = centred * centred;",
    ),
    edit(
        "means_of_blocks_are_taken_for_those_of_the_row",
        "value",
        FORWARD,
        SMALL,
        NORMS,
        "if (units != 0.0f) squares[n] += units * away * away;",
        "",
    ),
    edit(
        "inner_value_sees_no_reset",
        "value",
        BACKWARD,
        CONTROLS,
        PASSES,
        "at.controls.replace(w.prev, shape, g, Base::forward_step(s), b, unit, io);",
        "",
    ),
    edit(
        "gradient_of_a_shift_of_rows_that_ended",
        "value",
        GRU_BACKWARD,
        LENGTHS,
        PASSES,
        "return s < shape.time && Base::forward_step(s) < shape.length(b, g);",
        "return s < shape.time;",
    ),
    edit(
        "gradients_are_added_up_from_one",
        "value",
        BACKWARD,
        SMALL,
        PASSES,
        "io.store(Base::own_sum(g, b, unit, n), F(0.0f));",
        "io.store(Base::own_sum(g, b, unit, n), F(1.0f));",
    ),
]
