"""Cycles of a step from its machine code (cuda/step_time.py), of kernels made here.

Those of the kernels that are built: test_cuda_code.py.
"""

import importlib
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "cuda"))
loops = importlib.import_module("loops")
machine_code = importlib.import_module("machine_code")
step_time = importlib.import_module("step_time")


def instruction(
    text: str, stall: int = 1, result: int = 7, operands: int = 7, waits: tuple = ()
) -> tuple[str, int]:
    """With how it is scheduled, as the upper half of its code says."""
    waited = sum(1 << n for n in waits)
    return text, stall << 41 | result << 46 | operands << 49 | waited << 52


def kernel(*code: tuple[str, int]) -> machine_code.Kernel:
    """Of a loop of these and its end; branches name instructions by their number."""
    last = f"@P0 BRA {0}", 1 << 41 | 7 << 46 | 7 << 49
    instructions = []
    for n, (text, control) in enumerate((*code, last, ("EXIT", 0))):
        predicate = text.split()[0] if text.startswith("@") else ""
        text = text.removeprefix(predicate).strip()
        if "BRA" in text:
            opcode, target = text.split()
            text = f"{opcode} {hex(16 * int(target))}"
        at = 16 * n
        instructions.append(loops.Instruction(at, predicate, text, control))
    resources = machine_code.Resources(255, 0, 0, 0)
    return machine_code.Kernel("sm_90a", "kernel", resources, tuple(instructions))


PRODUCT = instruction("HMMA.16816.F32.BF16 R8, R4, R16, R8", stall=6)
BARRIER = instruction("BAR.SYNC.DEFER_BLOCKING 0x0")
PUBLISH = instruction("STG.E.64.STRONG.GPU desc[UR4][R12.64], R6", stall=3)
LOOK = "LDG.E.128.STRONG.GPU R16, desc[UR4][R12.64]"
FETCH = "LDG.E.U16 R20, desc[UR4][R6.64]"


def cycles(*code) -> dict[str, int]:
    return step_time.parts(kernel(*code))


def test_parts_are_stalls_and_what_is_waited_for():
    found = cycles(
        instruction(LOOK, stall=2, result=0),
        instruction("ISETP.NE.U32.AND P1, PT, R16, RZ, PT", stall=5, waits=(0,)),
        PRODUCT,
        BARRIER,
        instruction("MUFU.RCP R4, R5", stall=4, result=1),
        instruction("FADD R4, R4, R5", stall=5, waits=(1,)),
        PUBLISH,
        instruction("IADD3 R12, R12, 0x4, RZ", stall=7),
    )
    # An L2 hit of 290 cycles, then the comparison.
    assert found["start"] == 0
    assert found["arrive"] == 290 + 5
    assert found["product"] == 6
    assert found["reduce"] == 1 + step_time.BARRIER
    assert found["cell"] == 22
    assert found["publish"] == 5 + 3
    assert found["rest"] == 7 + 1
    assert found["all"] == sum(found[part] for part in step_time.PARTS)


def test_what_is_fetched_a_step_ahead_is_waited_for_where_it_shows():
    step = PRODUCT, BARRIER, PUBLISH
    fetch = instruction(FETCH, result=2)
    used = instruction("PRMT R21, RZ, 0x5410, R20", waits=(2,))
    ahead = cycles(instruction(LOOK, result=0), fetch, *step, used)
    assert ahead["all"] > step_time.latency("LDG.E.U16")
    short = cycles(instruction(LOOK, result=0), *step)
    assert short["all"] < 100
    # Operands have been read long before the result is there.
    operands = instruction(FETCH, operands=2)
    assert cycles(instruction(LOOK, result=0), operands, *step, used)["all"] < 100


def test_the_walk_does_what_a_plain_call_does():
    """Not what a control needs, nor another look; but all of the cell."""
    code = [
        instruction(LOOK, result=0),
        instruction("ISETP.EQ.U32.AND P1, PT, R16, RZ, PT", waits=(0,)),
        instruction("@P1 BRA 1", waits=(0,)),  # again
        PRODUCT,
        BARRIER,
        instruction("@P2 BRA 8"),  # no lengths
        instruction("LDG.E R24, desc[UR4][R6.64]", result=3),
        instruction("ISETP.LT.AND P3, PT, R24, RZ, PT", waits=(3,)),
        instruction("@P4 BRA 10"),  # such a unit does not exist
        instruction("MUFU.EX2 R4, R5", result=1),
        instruction("@P5 LDG.E.U16 R25, desc[UR4][R8.64]", result=3),  # zoneout
        instruction("FADD R4, R4, R25", waits=(1, 3)),
        PUBLISH,
    ]
    path = [i.text.split()[0] for i in step_time.walk(kernel(*code))]
    assert path.count("LDG.E.128.STRONG.GPU") == 1
    assert "LDG.E" not in path
    assert "MUFU.EX2" in path
    assert cycles(*code)["all"] < 290 + 100


def test_weights_in_shared_memory_are_left_out():
    streamed = instruction("HMMA.16816.F32.BF16 R8, R40, R18, R8", stall=6)
    code = [
        instruction(LOOK, result=0),
        PRODUCT,
        instruction("@P1 BRA 5"),
        instruction("LDS.128 R40, [R2]", result=1),
        streamed,
        BARRIER,
        PUBLISH,
    ]
    path = [i.text for i in step_time.walk(kernel(*code))]
    assert sum(text.startswith("HMMA") for text in path) == 1
