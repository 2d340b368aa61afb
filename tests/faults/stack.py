"""Layers of a stack that read each other's values, or weights, where they are not.

What `core/stack_passes.h` says of them is the naive run's, too: that it is right shows
beside layers one after the other (test_cuda_stack.py).
"""

from faults.fault import SMALL, edit

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
        "layer_waits_for_its_own_step",
        "deadlock",
        FORWARD,
        SMALL,
        EXCHANGE,
        "neighbour_.group = job.group + Pass::kNeighbour;",
        "neighbour_.group = job.group + Pass::kNeighbour >= 0 ? job.group : -1;",
    ),
    edit(
        "layer_reads_a_step_that_its_neighbour_has_not",
        "bounds",
        BACKWARD,
        SMALL,
        EXCHANGE,
        "neighbour_.end = s < shape_.time ? neighbour_.k_blocks : k_blocks_;",
        "neighbour_.end = neighbour_.k_blocks;",
    ),
    edit(
        "own_values_are_not_read",
        "value",
        BACKWARD,
        SMALL,
        EXCHANGE,
        "neighbour_.first = job_.reads(s) ? 0 : k_blocks_;",
        "neighbour_.first = k_blocks_;",
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
        "neighbours_weights_are_the_layers_own",
        "value",
        FORWARD,
        SMALL,
        "weights.cuh",
        "const auto rows = pass.weight_rows(g, source);",
        "const auto rows = pass.weight_rows(g, 0);",
    ),
    edit(
        "candidate_takes_both_products",
        "value",
        "gru_stack-forward-bf16-grid0",
        SMALL,
        "weights.cuh",
        "gate = Pass::Products::gate_of(source, product);",
        "gate = product == 3 ? -1 : product;",
    ),
]
