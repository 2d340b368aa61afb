"""The lint of machine code (cuda/lint.py): what breaks a rule, and what does not."""

import importlib
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "cuda"))
lint = importlib.import_module("lint")
machine_code = importlib.import_module("machine_code")

# A kernel as the compiler lays them out: the wait for other blocks and the rare end of
# it out of line, a subroutine behind the kernel's end.
GOOD = """
    LDC R1, c[0x0][0x28]
    LDG.E R2, desc[UR4][R2.64]
  step:
    LDG.E.128.STRONG.GPU R16, desc[UR4][R12.64]
    ISETP.NE.U32.AND P0, PT, R16, -0x1, PT
    @!P0 BRA again
  arrived:
    HMMA.16816.F32.BF16 R8, R4, R16, R8
    HMMA.16816.F32.BF16 R8, R4, R18, R8
    BAR.SYNC.DEFER_BLOCKING 0x0
    BSSY B0, joined
    @P1 BRA joined
    CALL.REL.NOINC subroutine
  joined:
    BSYNC B0
    CCTL.E.PF2 [R6+0x4000]
    STG.E.64.STRONG.GPU desc[UR4][R12.64+0x1000], R6
    @!P2 BRA step
    EXIT
  again:
    LDG.E.128.STRONG.GPU R16, desc[UR4][R12.64]
    @P3 BRA arrived
    @!P4 BRA again
    BPT.TRAP 0x1
  subroutine:
    MUFU.RCP R0, R5
    RET.REL.NODEC R6 0x0
  padding:
    BRA padding
"""
GRID = "_ZN4prnn6kernelILNS_8ExchangeE2EEEvPf"
CLUSTER = "_ZN4prnn6kernelILNS_8ExchangeE1EEEvPf"


def kernel(code: str = GOOD, symbol: str = GRID, registers: int = 255, stack: int = 0):
    """A kernel from its code, read as cuobjdump would print it."""
    lines = [line.strip() for line in code.strip().splitlines()]
    labels, instructions = {}, []
    for line in lines:
        if line.endswith(":"):
            labels[line[:-1]] = hex(16 * len(instructions))
        else:
            instructions.append(line)
    sass = f'arch = sm_90a\n\t\tFunction : {symbol}\n\t.headerflags\t@""\n'
    for n, line in enumerate(instructions):
        words = [labels.get(word, word) for word in line.split(" ")]
        sass += f"        /*{16 * n:04x}*/  {' '.join(words)} ;  /* 0x0123456789 */\n"
        sass += "                                     /* 0x000fe20000000800 */\n"
    resources = (
        f"arch = sm_90a\n Function {symbol}:\n  REG:{registers} STACK:{stack} "
        "SHARED:1024 LOCAL:0 CONSTANT[0]:608 TEXTURE:0 SURFACE:0 SAMPLER:0\n"
    )
    ((key, code_of),) = machine_code.parse_sass(sass.splitlines())
    assert len(code_of) == len(instructions)
    return machine_code.Kernel(
        *key, machine_code.parse_resources(resources)[key], code_of
    )


def test_a_good_kernel_breaks_no_rule():
    good = kernel()
    assert lint.violations(good, 2) == []
    assert good.name == "kernel<grid>"
    assert good.exchange == "grid"
    assert good.resources == machine_code.Resources(255, 0, 1024, 0)


def test_a_call_that_never_returns_is_a_jump():
    """As nvcc leaves a divergent branch for sm_80: it leads to no subroutine."""
    jump = GOOD.replace("    @P3 BRA arrived", "    @P3 CALL.REL.NOINC arrived")
    gives_up = jump.replace("    BPT.TRAP", "    MEMBAR.SC.SYS\n    BPT.TRAP")
    assert lint.violations(kernel(gives_up), 2) == []
    assert len(kernel(gives_up).loop) == len(kernel(GOOD).loop)
    stays = jump.replace("    @!P4 BRA again", "    MEMBAR.SC.SYS\n    @!P4 BRA again")
    assert lint.violations(kernel(stays), 2) == ["1 MEMBAR in the loop"]


# Values of the next step, as they are fetched in this one.
FETCHED = GOOD.replace("  step:\n", "  step:\n    LDG.E.U16 R20, desc[UR4][R6.64]\n")
CONVERTED = "    IMAD.U32 R21, R20, 0x10000, RZ\n"


def test_a_prefetch_is_not_used_before_the_products():
    after = FETCHED.replace("    BAR.SYNC", CONVERTED + "    BAR.SYNC")
    assert lint.violations(kernel(after), 2) == []
    before = FETCHED.replace("    ISETP", CONVERTED + "    ISETP")
    (found,) = lint.violations(kernel(before), 2)
    assert found.startswith("1 prefetched values used at once: LDG.E.U16 R20")
    assert found.endswith("IMAD.U32 R21, R20, 0x10000, RZ")
    waiting = "    @P3 BRA arrived"  # from where another turn of the wait comes, too
    assert (
        len(lint.violations(kernel(FETCHED.replace(waiting, CONVERTED + waiting)), 2))
        == 1
    )


def test_a_length_may_be_compared_and_a_register_taken_again():
    compared = "    ISETP.GE.AND P5, PT, R20, RZ, PT\n    IADD3 R22, R20, R3, RZ\n"
    assert (
        lint.violations(kernel(FETCHED.replace("    ISETP", compared + "    ISETP")), 2)
        == []
    )
    taken = "    MOV R20, RZ\n" + CONVERTED
    assert (
        lint.violations(kernel(FETCHED.replace("    ISETP", taken + "    ISETP")), 2)
        == []
    )


def test_weights_must_be_in_registers_of_their_own():
    symbol = "_ZN4prnn6kernelILi1ELi2ELi1ELi1ELi4EEEvPf"  # four fragments of weights
    (found,) = (v for v in lint.violations(kernel(symbol=symbol), 2) if "weights" in v)
    assert found == "weights from 1 registers in the loop, 4 expected"


def test_the_loop_is_all_that_a_step_may_run():
    good = kernel()
    opcodes = [i.opcode for i in good.instructions if i.address in good.loop]
    outside = [i.opcode for i in good.instructions if i.address not in good.loop]
    assert outside == ["LDC", "LDG.E", "EXIT", "BPT.TRAP", "BRA"]
    assert "MUFU.RCP" in opcodes  # in a subroutine
    assert good.count("strong LDG", inside=True) == 2  # one is out of line
    assert good.count("CCTL", inside=True) == 0  # a prefetch is none


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("BAR.SYNC.DEFER_BLOCKING 0x0", "LDL R3, [R1]", "1 accesses to local memory"),
        ("MUFU.RCP R0, R5", "@P1 STL [R1+0x4], R3", "1 accesses to local memory"),
        ("@P3 BRA arrived", "LDL R3, [R1]\n@P3 BRA arrived", "local memory"),
        ("CCTL.E.PF2 [R6+0x4000]", "LD.E.128 R4, [R2.64]", "1 generic loads or stores"),
        ("CCTL.E.PF2 [R6+0x4000]", "MEMBAR.SC.GPU", "1 MEMBAR in the loop"),
        ("CCTL.E.PF2 [R6+0x4000]", "CCTL.IVALL", "1 CCTL in the loop"),
        ("HMMA.16816.F32.BF16 R8, R4, R18, R8", "NOP", "1 HMMA in the loop, at least"),
        (".STRONG.GPU", "", "no strong LDG in the loop of a grid exchange"),
        ("STG.E.64.STRONG.GPU", "STG.E.64", "no strong STG in the loop of a grid"),
        ("@!P2 BRA step", "NOP", "0 HMMA in the loop"),
        ("@!P2 BRA step", "@!P2 BRX R2 -0x70", "an indirect branch"),
    ],
)
def test_what_breaks_a_rule(old, new, message):
    assert old in GOOD
    found = lint.violations(kernel(GOOD.replace(old, new)), 2)
    assert any(message in text for text in found), found


def test_a_loop_over_jobs_around_it_is_not_the_loop_over_time():
    """Between jobs weights are loaded and the team's blocks wait for each other."""
    begin, end = "LDC R1, c[0x0][0x28]", "@!P2 BRA step"
    between = f"{begin}\njob:\nLDL R3, [R1]\nMEMBAR.ALL.GPU"
    jobs = GOOD.replace(begin, between).replace(end, f"{end}\n@!P5 BRA job")
    # And an inner one, over the weights that are in shared memory.
    rolled = "rolled:\nHMMA.16816.F32.BF16 R8, R4, R18, R8\n@P6 BRA rolled\nBAR.SYNC"
    nested = kernel(jobs.replace("BAR.SYNC", rolled))
    assert lint.violations(nested, 3) == []
    assert nested.count("HMMA", inside=True) == 3
    assert nested.count("local", inside=False) == 1
    assert nested.count("MEMBAR", inside=False) == 1


def test_the_loop_of_a_streamed_tile_is_that_over_panels():
    """Not the one over k blocks, in which all products are and no panel ends."""
    symbol = "_ZN4prnn6kernelILi2ELi0ELi2ELi1ELi1EEEvPf"
    code = GOOD.replace("    BAR.SYNC", "    @P6 BRA step\n    BAR.SYNC")
    code = code.replace("step:\n", "panel:\nMOV R0, RZ\nstep:\n")
    code = code.replace("@!P2 BRA step", "@!P2 BRA panel")
    streamed = kernel(code, symbol)
    assert streamed.is_streamed
    assert streamed.count("BAR", inside=True) == 1
    assert streamed.count("strong STG", inside=True) == 1
    # Its weights come from memory, and may be split into parts before the products.
    loaded = code.replace(
        "    ISETP", "    LDG.E.128 R20, [R2.64]\n" + CONVERTED + "    ISETP"
    )
    assert lint.violations(kernel(loaded, symbol), 1) == []
    resident = kernel(code, symbol.replace("Li0E", "Li1E"))
    assert resident.count("BAR", inside=True) == 0


def test_local_memory_outside_of_the_loop_is_counted_only():
    spills = kernel(GOOD.replace("LDC R1, c[0x0][0x28]", "STL [R1], R3"))
    assert lint.violations(spills, 2) == []
    assert spills.count("local", inside=False) == 1


def test_no_loop_is_an_error():
    (found,) = lint.violations(kernel("HMMA.16816.F32 R8, R4, R16, R8\nEXIT"), 1)
    assert "no loop" in found


def test_a_cluster_exchange_stores_to_other_blocks():
    found = lint.violations(kernel(symbol=CLUSTER), 2)
    assert found == ["no STAS in the loop of a cluster exchange"]
    prefetch, waits = "CCTL.E.PF2 [R6+0x4000]", "CCTL.IVALL\nSTAS.64 [R2.64], R4"
    with_stas = GOOD.replace(prefetch, waits)
    assert lint.violations(kernel(with_stas, CLUSTER), 2) == []


@pytest.mark.parametrize(
    ("symbol", "name", "least"),
    [
        (
            "_ZN4prnn6kernelIXtlNS_4TileELi2ELi10ELi2ELi1EEELNS_8ExchangeE2EEEvPf",
            "kernel<Tile{2, 10, 2, 1}, grid>",
            80,
        ),
        (
            "_ZN4prnn1kINS_11ForwardPassINS_4LstmENS_6UnitIoILNS_6NumberE0EEENS_8"
            "Bfloat16ENS_7ShapeOfIiLb1EEEEELS4_0ELNS_8ExchangeE1ELi4ELi5ELi1ELi2EEEvNS_4TaskIT_EE",
            "k<ForwardPass<Lstm>, bfloat16, cluster, 4, 5, 1, 2>",
            40,
        ),
        (
            "_ZN4prnn1kINS_11ForwardPassINS_4LstmENS_6UnitIoILNS_6NumberE0EEENS_8"
            "Bfloat16ENS_7ShapeOfIlLb0EEEEELS4_0ELNS_8ExchangeE1ELi4ELi5ELi1ELi2EEEvNS_4TaskIT_EE",
            "k<ForwardPass<Lstm, controls>, bfloat16, cluster, 4, 5, 1, 2>",
            40,
        ),
        (
            "_ZN12_GLOBAL__N_11kILN4prnn6NumberE3ELNS1_8ExchangeE0ELi1ELi8ELi1ELi8ELi4EEEvPf",
            "k<float32, block, 1, 8, 1, 8, 4>",
            48,
        ),
    ],
)
def test_the_name_tells_how_many_products_there_must_be(symbol, name, least):
    named = kernel(symbol=symbol)
    assert named.name == name
    assert named.expected_hmma == least
    few = f"2 HMMA in the loop, at least {least} expected"
    assert few in lint.violations(named)


def test_names_that_are_no_cxx_names_stay():
    assert machine_code.readable("plain_c_name") == "plain_c_name"
    assert machine_code.readable("_Znonsense") == "_Znonsense"


def test_other_kernels_need_no_loop():
    fill = kernel("STG.E desc[UR4][R2.64], R6\nEXIT", "_ZN4prnn4fillEPf")
    assert not fill.is_recurrence
    assert lint.violations(fill) == []
    assert fill.name == "fill"


def test_table_and_json_agree():
    entries = [lint.summary(kernel(), 2), lint.summary(kernel(symbol=CLUSTER), 2)]
    assert json.loads(json.dumps(entries)) == entries
    header, _, *rows = lint.markdown(entries).splitlines()
    assert header.count("|") == rows[0].count("|") == rows[1].count("|")
    assert rows[0].startswith("| `kernel<grid>` | 255 | 0 |")
    assert [len(e["violations"]) for e in entries] == [0, 1]
