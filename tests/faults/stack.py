"""Layers of a stack that read each other's values, or weights, where they are not."""

from faults.fault import SMALL, Edit, Fault, edit

FORWARD = "lstm_stack-forward-bf16-grid0"
BACKWARD = "lstm_stack-backward-bf16-grid0"
EXCHANGE = "grid_exchange.cuh"

FAULTS = [
    edit(
        "layer_reads_the_step_before",
        "value",
        FORWARD,
        SMALL,
        EXCHANGE,
        "row_published(neighbour_.group, s, row_of(n))",
        "row_published(neighbour_.group, s == 0 ? 0 : s - 1, row_of(n))",
    ),
    edit(
        "layer_reads_its_own_values_twice",
        "value",
        FORWARD,
        SMALL,
        EXCHANGE,
        "neighbour_.group = job.group + Pass::kNeighbour;",
        "neighbour_.group = job.group + Pass::kNeighbour >= 0 ? job.group : -1;",
    ),
    edit(
        "layer_waits_for_a_step_that_its_neighbour_has_not",
        "emulator",
        BACKWARD,
        SMALL,
        EXCHANGE,
        "neighbour_.end = s < shape_.time ? neighbour_.k_blocks : k_blocks_;",
        "neighbour_.end = neighbour_.k_blocks;",
    ),
    edit(
        "first_step_reads_what_none_published",
        "emulator",
        BACKWARD,
        SMALL,
        EXCHANGE,
        "neighbour_.first = job_.reads(s) ? 0 : k_blocks_;",
        "neighbour_.first = 0;",
    ),
    edit(
        "neighbours_values_are_not_read",
        "value",
        BACKWARD,
        SMALL,
        EXCHANGE,
        "neighbour_.k_blocks = is_there ?",
        "neighbour_.k_blocks = false && is_there ?",
    ),
    edit(
        "neighbour_weights_are_the_layers_own",
        "value",
        FORWARD,
        SMALL,
        "weights.cuh",
        "first = pass.neighbour_weight_rows(g, 0).first;",
        "first = g == 0 ? nullptr : rows.first;",
    ),
    edit(
        "gradient_comes_by_the_layers_own_w_ih",
        "value",
        BACKWARD,
        SMALL,
        "core/stack_passes.h",
        "const auto above = weight_columns(g + 1, phase);",
        "const auto above = weight_columns(g, phase);",
    ),
    Fault(
        "every_layer_has_dy",
        "value",
        BACKWARD,
        SMALL,
        (
            Edit(
                "core/stack_passes.h",
                "if (s < shape.time && g + 1 == shape.groups)",
                "if (s < shape.time)",
            ),
        ),
    ),
]
