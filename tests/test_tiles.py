"""Products of bfloat16 by tiles (AMX-BF16): emulated, for few processors have any.

`amx_emulated` is the instruction set amx_bf16 with the tiles' instructions in C++
(cpu/emulated_tiles.h), which a build with PRNN_EMULATED_TILES=ON has.
"""

import functools
import hashlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, Case
from half_support import Half, assert_as_accurate, run
from support import oracle, run_python, scan
from test_native import ROOT, build_options, built, require_sanitizer
from test_native import run as run_program

import prnn_jax
from prnn_jax._engine import ffi

EMULATED = "amx_emulated"
needs_tiles = pytest.mark.skipif(
    not ffi.native.has_isa(EMULATED),
    reason="needs a build with PRNN_EMULATED_TILES=ON and a processor with AVX512-BF16",
)
needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None, reason="needs a C++ compiler, c++"
)

#: Around a tile's 16 rows and lanes and its 32 numbers of depth; backward, a product is
#: as many times as deep as there are gates. Of many steps, so that weights are packed.
CASES = [
    Half(cell, 24, (rows,), hidden, inputs, state=True, controls=controls)
    for cell, rows, hidden, inputs, controls in [
        ("lstm", 1, 1, 3, ()),
        ("lstm", 40, 17, 33, ()),
        ("lstm", 16, 33, 65, ()),
        ("lstm", 7, 65, 1, ()),
        ("lstm_peephole", 17, 33, 5, ()),
        ("slstm", 3, 17, 64, ()),
        ("slstm", 33, 65, 31, ()),
        ("gru", 1, 33, 17, ()),
        ("gru", 17, 65, 9, ("lengths", "resets")),
        ("gru_reset_before", 15, 17, 33, ()),
        ("gru_reset_before", 32, 65, 2, ()),
        ("rnn_tanh", 2, 1, 1, ()),
        ("rnn_tanh", 31, 65, 70, ()),
        ("lstm", 35, 33, 40, ("lengths",)),
        ("slstm", 20, 33, 4, ("lengths",)),
    ]
]

SAVE = """
import sys, prnn_jax, test_tiles
plan = prnn_jax.explain("lstm", batch=20, time=9, hidden_size=40, dtype="bfloat16")
assert plan.instruction_set == "amx_emulated" and plan.rows_per_block == 32, plan
test_tiles.save_results(sys.argv[1])
"""


def save_results(path: str) -> None:
    results = {}
    for n, case in enumerate(CASES):
        for kind, arrays in zip(("forward", "gradients"), run(case), strict=True):
            for name, a in arrays.items():
                results[f"{n} {kind} {name}"] = np.asarray(a).view(np.uint16)
    np.savez(path, **results)


@needs_tiles
def test_results_are_as_accurate_as_the_scans(tmp_path):
    path = str(tmp_path / "results.npz")
    run_python(SAVE, path, PRNN_CPU_ISA=EMULATED, PRNN_CPU_PLAN="packed")
    results = np.load(path)
    for n, case in enumerate(CASES):
        for kind in ("forward", "gradients"):
            of_scan, exact = (
                getattr(of, kind) for of in (scan(case, case.half), oracle(case))
            )
            ours = {
                name: results[f"{n} {kind} {name}"].view(jnp.bfloat16) for name in exact
            }
            assert_as_accurate(ours, of_scan, exact)


# ---- bits ----------------------------------------------------------------------------

#: Depths of whole tiles and others, panels of every thread, more rows than are
#: multiplied at once; deeper than rows that are put in tiles for all panels. More rows
#: than unpacked weights are taken for, whose products are not summed by pairs.
SPREAD = [
    *(Case(cell, 6, (40,), 97, 33, state=True) for cell in CELLS),
    Case("lstm", 4, (19,), 320),
    Case("gru", 4, (5,), 1100),
    Case("gru_reset_before", 4, (17,), 256, bidirectional=True),
]

DIGEST = """
import sys, prnn_jax, test_tiles
for case in test_tiles.SPREAD:
    print(case, test_tiles.digest(test_tiles.results(case, "bfloat16")))
"""


def results(case: Case, dtype: str, rows: slice = slice(None)):
    """Of both passes for some rows, without products of weights; and of a layer."""
    arrays = case.inputs(dtype)
    random = np.random.default_rng(3)
    wide = case.groups * case.table.gates * case.hidden
    a_x = random.standard_normal((*arrays["x"].shape[:-1], wide)).astype(dtype)[rows]
    recurrence = functools.partial(
        prnn_jax.recurrence,
        case.cell.split("_")[0],
        w_hh=arrays["w_hh"],
        b_hh=arrays["b_hh"],
        bidirectional=case.bidirectional,
        implementation="native",
        **case.table.options,
    )

    @jax.jit
    def all_of(a_x):
        out, vjp = jax.vjp(recurrence, a_x)
        return out, vjp(jax.tree.map(jnp.cos, out))

    return all_of(a_x), case.forward("native")(arrays)


def digest(arrays) -> str:
    made = hashlib.sha256()
    for leaf in jax.tree.leaves(arrays):
        made.update(np.asarray(leaf).tobytes())
    return made.hexdigest()


def digests(**environment: str) -> str:
    return run_python(DIGEST, PRNN_CPU_ISA=EMULATED, **environment)


@needs_tiles
def test_bits_do_not_depend_on_threads_and_what_they_share():
    alone = digests(PRNN_CPU_WORKERS="0", PRNN_CPU_PLAN="packed")
    assert alone.count("\n") == len(SPREAD)
    for way in ("batch", "hidden"):
        assert digests(PRNN_CPU_WORKERS="3", PRNN_CPU_PLAN=way) == alone


@pytest.mark.skipif(
    not ffi.native.has_isa("amx_bf16"), reason="this processor has none"
)
@needs_tiles
def test_the_processors_tiles_give_the_bits_of_emulated_ones():
    on_one = {"PRNN_CPU_WORKERS": "0", "PRNN_CPU_PLAN": "packed"}
    assert run_python(DIGEST, PRNN_CPU_ISA="amx_bf16", **on_one) == digests(**on_one)


ROWS = """
import jax, numpy as np, test_tiles
from cases import Case, CELLS
for cell in CELLS:
    case = Case(cell, 30, (37,), 65, state=True)
    whole = test_tiles.results(case, "bfloat16")[0]
    for rows in (slice(0, 1), slice(36, 37), slice(5, 21), slice(9, 29)):
        some = test_tiles.results(case, "bfloat16", rows)[0]
        pairs = zip(jax.tree.leaves(some), jax.tree.leaves(whole), strict=True)
        for n, (ours, of_whole) in enumerate(pairs):
            bits = [np.asarray(a).view(np.uint16) for a in (ours, of_whole[rows])]
            assert np.array_equal(*bits), (cell, rows, n)
"""


@needs_tiles
def test_a_row_of_a_batch_is_that_row_alone():
    run_python(ROWS, PRNN_CPU_ISA=EMULATED, PRNN_CPU_PLAN="packed")


OTHER = """
import sys, test_tiles
for dtype in ("float32", "float16"):
    for case in test_tiles.SPREAD:
        print(test_tiles.digest(test_tiles.results(case, dtype)))
"""


@needs_tiles
def test_other_numbers_are_those_of_avx512():
    ours = run_python(OTHER, PRNN_CPU_ISA=EMULATED)
    assert run_python(OTHER, PRNN_CPU_ISA="avx512") == ours


PREPARED = """
import test_prepare
test_prepare.input_projection.ROWS_PER_WEIGHT = 0
for case in test_prepare.CASES:
    arrays = case.inputs("bfloat16")
    ours = case.forward()(case.prepared(arrays, 1, 20))
    test_prepare.assert_same_bits(ours, case.forward()(arrays))
"""


@needs_tiles
def test_prepared_weights_are_read_by_tiles():
    run_python(PREPARED, PRNN_CPU_ISA=EMULATED, PRNN_CPU_PLAN="packed")


# ---- where there are tiles -----------------------------------------------------------


@needs_compiler
def test_what_processor_and_system_say_is_understood():
    """Tiles that are missing or refused leave what there is without."""
    if not run_program("c++", "-dumpmachine").stdout.startswith("x86_64"):
        pytest.skip("is of x86-64")
    program = built("check_x86", "-O1", ROOT / "tests/native/check_x86.cc")
    ran = run_program(program)
    assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stdout


@needs_tiles
@needs_compiler
def test_products_keep_to_their_buffers_and_the_manuals_order(tmp_path):
    flag = "-fsanitize=address,undefined"
    require_sanitizer(flag, tmp_path)
    program = built(
        "check_tiles",
        *("-O1", "-g", flag, "-fno-sanitize-recover=all"),
        *build_options("_isa_options_avx512"),
        *("-mavx512bf16", "-fno-exceptions", "-ffp-contract=fast"),
        *("-DPRNN_EMULATES_TILES", f"-DPRNN_ISA={EMULATED}"),
        ROOT / "cpu/tile_product.cc",
        ROOT / "tests/native/check_tiles.cc",
    )
    ran = run_program(program)
    report = f"{ran.stdout}\n{ran.stderr}"
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", ""), report


@pytest.mark.skipif(ffi.native.has_isa("amx_bf16"), reason="this processor has tiles")
def test_where_there_are_none_they_cannot_be_chosen():
    script = """
try:
    import prnn_jax
except ValueError as error:
    print(error)
"""
    printed = run_python(script, PRNN_CPU_ISA="amx_bf16")
    assert "PRNN_CPU_ISA must be an instruction set of this processor" in printed
    assert 'got "amx_bf16"' in printed
