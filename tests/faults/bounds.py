"""Memory beyond the layer, the batch or the mailbox."""

from faults.fault import ALL, BLOCK, GRID, SMALL, edit

FAULTS = [
    edit(
        "no_tail_of_k",
        "bounds",
        GRID,
        ALL,
        "product.cuh",
        "&& from < pass.shape.hidden)",
        ")",
    ),
    edit(
        "no_tail_of_units",
        "bounds",
        GRID,
        ALL,
        "product.cuh",
        "if (unit < unit_end && ",
        "if (",
    ),
    edit(
        "no_tail_of_the_batch",
        "bounds",
        GRID,
        ALL,
        "exchange.cuh",
        "if (which != 0 || row >= shape_.batch) return;",
        "if (which != 0) return;",
    ),
    edit(
        "no_tail_of_units_in_the_step",
        "bounds",
        GRID,
        ALL,
        "engine.cuh",
        "&& out.row < shape.batch && out.unit < shape.hidden;",
        "&& out.row < shape.batch;",
    ),
    edit(
        "reads_beyond_the_mailbox",
        "bounds",
        GRID,
        ALL,
        "exchange.cuh",
        "if (k_block < end_[n]) v[n] = read(n, k_block);",
        "v[n] = read(n, k_block);",
    ),
    edit(
        "too_little_shared_memory",
        "bounds",
        BLOCK,
        SMALL,
        "tile.h",
        "(in_values ? 2 * tile.columns() * out.pitch : 0)",
        "(in_values ? tile.columns() * out.pitch : 0)",
    ),
    edit(
        "rows_of_whole_granules_only",
        "alignment",
        GRID,
        ALL,
        "tile.h",
        "return round_up(hidden, 16 / value_bytes(number));",
        "return round_up(hidden, 8 / value_bytes(number));",
    ),
]
