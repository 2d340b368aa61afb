"""Mistakes in the CUDA engine, made on purpose, and the check that notices each.

A mistake is one of `emulator/faults.h` (`fault=` among the options), one of the host or
an edit of a source: the text must be there exactly once, so that a change of the engine
that makes an entry meaningless is a failure, too.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    variant: str  # of the program (emulator/build.py)
    report: str  # regular expression of what it says


CHECKS = {
    "value": Check("plain", r"(result|sum) \d (differs by|has a NaN|has no NaN)"),
    "work": Check("plain", r"does \d+ products, \d+ are needed"),
    "deadlock": Check(
        "plain", r"deadlock: .*\n  block \d+ @ .* x \d+ \(\w+\.cuh:\d+\)"
    ),
    "emulator": Check("plain", r"block \d+ thread \d+ @ "),  # the operation's own
    "alignment": Check("plain", r"\(misaligned\)"),
    "race": Check("thread", r"ThreadSanitizer: data race"),
    "bounds": Check("address", r"(heap-buffer-overflow|out of bounds)"),
}


@dataclass(frozen=True)
class Edit:
    file: str  # of cuda/, or core/ and its name
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    name: str
    check: str
    compiled: (
        str  # instances; check_cuda_engine.cc tells how these and options are written
    )
    options: tuple[str, ...]
    edits: tuple[Edit, ...] = ()


GRID = "lstm-forward-bf16-grid0"
GRID_BACKWARD = "lstm-backward-bf16-grid0"
CLUSTER = "lstm-forward-bf16-cluster3"
BLOCK = "lstm-forward-bf16-block4"
# Of these: small; several jobs for a team; rows that are no multiple of 16 bytes.
SMALL = ("cases=*-T3-B3-*",)
JOBS = ("cases=*-B14-*",)
ALL = ("cases=*-H? *-H??",)
LENGTHS = ("cases=*-lengths-*",)
CONTROLS = ("cases=*-all-*",)


def edit(name, check, compiled, options, file, old, new):
    return Fault(name, check, compiled, options, (Edit(file, old, new),))


FAULTS = [
    # What is published is read too early, too late, or as something else.
    edit(
        "granule_is_not_polled",
        "value",
        GRID,
        SMALL,
        "exchange.cuh",
        "if (ptx::vote_all(all)) return;",
        "return;",
    ),
    edit(
        "half_of_a_fragment_is_polled",
        "value",
        GRID,
        ("cases=*-T3-B3-*", "schedules=30"),
        "exchange.cuh",
        "return v.x != kUnwritten && v.z != kUnwritten;",
        "return v.x != kUnwritten;",
    ),
    Fault("mailbox_holds_zeros", "value", GRID, (*SMALL, "fill=zero")),
    Fault("unwritten_reads_as_zeros", "value", GRID, (*SMALL, "fault=stale_granule")),
    edit(
        "nan_looks_unwritten",
        "deadlock",
        "lstm-forward-tf32-grid0",
        (*SMALL, "input=nan"),
        "number.h",
        "v == v ? bits_of(v) : kNan",
        "bits_of(v)",
    ),
    Fault("block_publishes_nothing", "deadlock", GRID, (*JOBS, "fault=block_silent")),
    Fault("one_granule_is_lost", "deadlock", GRID, (*SMALL, "fault=skip_store")),
    edit(
        "granule_in_other_order",
        "value",
        GRID,
        SMALL,
        "number.h",
        "lane & 1 ? F::pack(beside, v) : F::pack(v, beside)",
        "lane & 1 ? F::pack(v, beside) : F::pack(beside, v)",
    ),
    edit(
        "published_values_single_buffered",
        "value",
        CLUSTER,
        ("cases=*-B14-*", "schedules=20"),
        "exchange.cuh",
        "return buffers_ + (s & 1) * buffer_bytes_;",
        "return buffers_;",
    ),
    edit(
        "step_ends_without_barrier",
        "value",
        BLOCK,
        SMALL,
        "exchange.cuh",
        "leave(int) const { ptx::bar_sync(); }",
        "leave(int) const {}",
    ),
    edit(
        "values_not_cleared",
        "value",
        BLOCK,
        JOBS,
        "exchange.cuh",
        "for (int i = 16 * place.thread; i < 2 * buffer_bytes_; i += 16 * kThreads)",
        "for (int i = 16 * place.thread; i < 0; i += 16 * kThreads)",
    ),
    # mbarriers
    Fault(
        "fewer_bytes_expected",
        "value",
        CLUSTER,
        ("cases=*-T3-B3-*", "schedules=10", "fault=expect_tx_short"),
    ),
    edit(
        "bytes_of_rows_in_the_batch_expected",
        "emulator",
        CLUSTER,
        ("cases=*-T3-B3-*", "schedules=10"),
        "exchange.cuh",
        "static_cast<std::uint32_t>(kTile.columns() * ",
        "static_cast<std::uint32_t>(task.pass.shape.batch * ",
    ),
    Fault("wait_for_values_returns", "emulator", CLUSTER, (*SMALL, "fault=no_acquire")),
    Fault(
        "one_lane_acquires",
        "race",
        CLUSTER,
        SMALL,
        (
            Edit(
                "exchange.cuh",
                "while (!ptx::mbarrier_try_wait_parity"
                "(barriers_ + parity, phases_ >> parity & 1))",
                "while (!ptx::vote_all(ptx::tid() % 32 != 0 || "
                "ptx::mbarrier_try_wait_parity"
                "(barriers_ + parity, phases_ >> parity & 1)))",
            ),
            Edit(
                "engine.cuh",
                "ptx::bar_warp_sync();  // mma wants the warp together",
                "",
            ),
        ),
    ),
    edit(
        "parity_of_the_other_barrier",
        "emulator",
        CLUSTER,
        JOBS,
        "exchange.cuh",
        "phases_ >> parity & 1)",
        "phases_ >> (1 - parity) & 1)",
    ),
    edit(
        "parity_is_forgotten",
        "emulator",
        CLUSTER,
        JOBS,
        "exchange.cuh",
        "phases_ ^= 1u << parity;",
        "",
    ),
    edit(
        "first_values_not_expected",
        "deadlock",
        CLUSTER,
        SMALL,
        "exchange.cuh",
        "if (Pass::kStartsPublished) expect(0);",
        "",
    ),
    edit(
        "mbarriers_not_fenced",
        "emulator",
        CLUSTER,
        JOBS,
        "exchange.cuh",
        "ptx::fence_mbarrier_init();",
        "",
    ),
    edit(
        "job_starts_without_cluster_barrier",
        "emulator",
        CLUSTER,
        ("cases=*-B14-*", "schedules=20"),
        "exchange.cuh",
        "ptx::bar_sync();\n    ptx::barrier_cluster_arrive();\n"
        "    ptx::barrier_cluster_wait();\n",
        "ptx::bar_sync();\n",
    ),
    edit(
        "last_step_publishes",
        "emulator",
        CLUSTER,
        ALL,
        "exchange.cuh",
        "if (s + 1 == job_.end_step) return;",
        "",
    ),
    # Barriers and buffers within a block
    edit(
        "sums_without_barrier",
        "value",
        GRID,
        SMALL,
        "engine.cuh",
        "ptx::bar_sync();  // every warp's partial sums are there",
        "",
    ),
    Fault("barrier_does_not_wait", "value", GRID, (*SMALL, "fault=skip_bar_sync")),
    edit(
        "sums_single_buffered",
        "race",
        GRID,
        SMALL,
        "engine.cuh",
        "(((s & 1) * kTile.warps_k() + warp_k)",
        "((0 * s + warp_k)",
    ),
    edit(
        "job_starts_without_barrier",
        "race",
        GRID,
        JOBS,
        "exchange.cuh",
        "ptx::bar_sync();\n    const std::int64_t depth_bytes",
        "const std::int64_t depth_bytes",
    ),
    edit(
        "bias_written_while_it_is_read",
        "race",
        GRID,
        JOBS,
        "engine.cuh",
        "ptx::bar_sync();  // the bias of the group before is no longer read",
        "",
    ),
    edit(
        "bias_of_the_first_group",
        "value",
        GRID,
        JOBS,
        "engine.cuh",
        "load_bias(group);",
        "if (n == 0) load_bias(group);",
    ),
    edit(
        "weights_read_before_they_are_staged",
        "value",
        GRID,
        SMALL,
        "product.cuh",
        "ptx::bar_warp_sync();  // other lanes wrote what this one reads",
        "",
    ),
    edit(
        "weights_staged_before_they_are_read",
        "race",
        BLOCK,
        SMALL,
        "product.cuh",
        "ptx::bar_warp_sync();  // and read it before the next is written",
        "",
    ),
    # Which number is where
    edit(
        "fragment_of_a_in_other_order",
        "value",
        GRID,
        SMALL,
        "product.cuh",
        "component = word % 2 * 2 + row % 16 / 8",
        "component = word % 2 + row % 16 / 8 * 2",
    ),
    Fault(
        "fragment_of_b_in_other_order",
        "value",
        GRID,
        (*SMALL, "fault=b_fragment_order"),
    ),
    edit(
        "registers_beyond_the_last",
        "value",
        "gru-forward-tf32-grid2",
        ("cases=*-H650", "schedules=1"),
        "product.cuh",
        "multiply_blocks(values, s, sums, first, in_registers,",
        "multiply_blocks(values, s, sums, first, k_blocks_,",
    ),
    # What is beyond the layer
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
    # Lengths, resets, masks
    edit(
        "resets_and_masks_not_exchanged",
        "value",
        GRID,
        CONTROLS,
        "engine.cuh",
        "if (at.exists) exchanged = task_.pass.exchanged(",
        "if (false) exchanged = task_.pass.exchanged(",
    ),
    edit(
        "exchanged_values_in_the_output",
        "value",
        GRID,
        CONTROLS,
        "call.h",
        "call.forward.controls.change_product_input();",
        "false;",
    ),
    edit(
        "rows_that_turn_go_through_the_output",
        "value",
        GRID,
        LENGTHS,
        "call.h",
        "call.shape.lengths != nullptr && (call.shape.reverse || "
        "call.shape.bidirectional);",
        "false;",
    ),
    edit(
        "mask_not_applied_forward",
        "value",
        GRID,
        CONTROLS,
        "core/controls.h",
        "return masked(h, shape, g, b, unit, io);",
        "return h;",
    ),
    edit(
        "mask_not_applied_backward",
        "value",
        GRID_BACKWARD,
        CONTROLS,
        "core/passes.h",
        "d[0] = d[0] + at.controls.masked(dh[0], shape, g, b, unit, io);",
        "d[0] = d[0] + dh[0];",
    ),
    edit(
        "gradient_crosses_resets",
        "value",
        GRID_BACKWARD,
        CONTROLS,
        "core/arrays.h",
        "io.store(sum, io.load(sum) + d[n]);\n      d[n] = F(0.0f);",
        "io.store(sum, io.load(sum) + d[n]);",
    ),
    edit(
        "gradient_of_the_state_before_the_reset",
        "value",
        GRID_BACKWARD,
        CONTROLS,
        "core/passes.h",
        "at.controls.replace(prev, shape, g, step, b, unit, io);",
        "",
    ),
    edit(
        "no_zeros_after_the_end",
        "value",
        CLUSTER,
        LENGTHS,
        "engine.cuh",
        "skip(job, job.end_step, static_cast<int>(pass.steps()));",
        "",
    ),
    edit(
        "no_zeros_before_the_end",
        "value",
        GRID_BACKWARD,
        LENGTHS,
        "engine.cuh",
        "skip(job, 0, job.first_step);",
        "",
    ),
    edit(
        "job_ends_with_its_first_row",
        "value",
        BLOCK,
        LENGTHS,
        "engine.cuh",
        "const int row = first_row + n < last_row ? first_row + n : last_row;",
        "const int row = n < last_row ? first_row : last_row;",
    ),
    edit(
        "job_goes_on_after_its_end",
        "work",
        CLUSTER,
        LENGTHS,
        "engine.cuh",
        "longest = length > longest ? length : longest;",
        "longest = length < 0 ? length : pass.shape.time;",
    ),
    edit(
        "reads_before_anything_is_published",
        "deadlock",
        GRID_BACKWARD,
        LENGTHS,
        "exchange.cuh",
        "return s > first_step || Pass::kStartsPublished;",
        "return s > 0 || Pass::kStartsPublished;",
    ),
    # Too inexact: is the comparison sharp?
    Fault("conversions_truncate", "value", GRID, (*JOBS, "fault=truncate")),
    edit(
        "third_product_of_float32",
        "value",
        "lstm-forward-f32-grid0",
        JOBS,
        "number.h",
        "ptx::mma_m16n8k8_tf32(sum, high, p.low, q.low);",
        "",
    ),
    edit(
        "float32_added_by_the_matrix_unit",
        "value",
        "gru-backward-f32-block4",
        JOBS,
        "number.h",
        "float sum[4] = {};",
        "float sum[4] = {d[0], d[1], d[2], d[3]};\nd[0] = d[1] = d[2] = d[3] = 0;",
    ),
    edit(
        "weights_not_rounded_to_tf32",
        "value",
        "lstm-forward-tf32-grid0",
        JOBS,
        "number.h",
        "weight == weight ? ptx::cvt_rna_tf32(weight) : kNan",
        "bits_of(weight)",
    ),
]
