"""Results that are too inexact: is the comparison sharp?"""

from faults.fault import GRID, JOBS, Fault, edit

FAULTS = [
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
    edit(  # it shows in long sums
        "float32_added_by_the_matrix_unit",
        "value",
        "rnn-forward-f32-grid1",
        ("cases=*-H1400",),
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
