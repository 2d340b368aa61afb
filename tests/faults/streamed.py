"""Weights that are streamed: panels, where their k blocks lie, what they share."""

from faults.fault import ALL, Fault, edit

STREAMED = "lstm-forward-tf32-grid5"
STREAMED_BACKWARD = "gru-backward-bf16-grid5"
# Of three k blocks of a warp, two of one panel are in shared memory, one of the other.
BOTH = ("cases=*-H330",)


def value(name: str, cases: tuple[str, ...], file: str, old: str, new: str) -> Fault:
    return edit(name, "value", STREAMED, cases, file, old, new)


FAULTS = [
    value(
        "streamed_weights_of_another_panel",
        BOTH,
        "streamed.cuh",
        "streamed_ + n * of_panels_",
        "streamed_",
    ),
    value(
        "shared_weights_of_another_panel",
        BOTH,
        "streamed.cuh",
        "shared_ + panels_.held_before(n) * kFragments",
        "shared_",
    ),
    value(
        "loading_passes_through_what_stays",
        BOTH,
        "streamed.cuh",
        "int k = k_blocks_ - 1; k >= 0; --k",
        "int k = 0; k < k_blocks_; ++k",
    ),
    value(
        "a_k_block_is_fetched_twice",
        BOTH,
        "streamed.cuh",
        "fetch(values, panel, k + kStages, stages[i])",
        "fetch(values, panel, k, stages[i])",
    ),
    value(
        "panels_share_what_is_carried",
        ALL,
        "engine.cuh",
        "carries_ + (panel_ * kElements + e) * kThreads",
        "carries_ + e * kThreads",
    ),
    value(
        "panels_share_the_bias",
        ALL,
        "engine.cuh",
        "kIsStreamed ? bias_ + panel_ * kTile.rows() : bias_",
        "bias_",
    ),
    edit(
        "sums_of_a_panel_written_while_they_are_read",
        "race",
        STREAMED_BACKWARD,
        ALL,
        "partial_sums.cuh",
        "ptx::bar_sync();  // those of the panel before have been read",
        "{}",
    ),
    edit(
        "weights_of_panels_that_a_block_has_not",
        "bounds",
        STREAMED,
        ALL,
        "streamed.cuh",
        "--panels_.count",
        "(void)all",
    ),
    value(
        "panels_loaded_upwards",
        BOTH,
        "streamed.cuh",
        "int n = panels_.count - 1; n >= 0; --n",
        "int n = 0; n < panels_.count; ++n",
    ),
    value(
        "streamed_weights_of_the_first_group",
        ALL,
        "engine.cuh",
        "padded, group, first_unit(0), task_",
        "padded, 0 * group, first_unit(0), task_",
    ),
    value(
        "carry_not_kept",
        ALL,
        "engine.cuh",
        "step(job, s, state, probe);\n        put(state);",
        "step(job, s, state, probe);",
    ),
    value(
        "results_of_the_last_panel",
        ALL,
        "engine.cuh",
        "take(state);\n      end(job, state);",
        "end(job, state);",
    ),
    value(
        "inputs_of_another_panel",
        ALL,
        "engine.cuh",
        "if constexpr (kIsStreamed) fetch(job, s, 0, state);",
        "if (kIsStreamed && panel_ == 0) fetch(job, s, 0, state);",
    ),
    value(
        "carries_of_one_panel",
        ALL,
        "tile.h",
        "panels.count * panels.carried",
        "panels.carried",
    ),
    edit(
        "reads_weights_beyond_its_k_blocks",
        "bounds",
        STREAMED,
        ALL,
        "streamed.cuh",
        "if (k >= k_blocks_) return;",
        "",
    ),
    edit(
        "workspace_too_small",
        "bounds",
        STREAMED,
        BOTH,
        "call.h",
        "call.number) * kWarps *",
        "call.number) * (kWarps - 1) *",
    ),
]
