"""All mistakes in the CUDA engine that are made on purpose."""

from faults import (
    block,
    bounds,
    controls,
    exchange,
    half_steps,
    norms,
    rounding,
    stack,
    streamed,
)
from faults.fault import Fault

FAULTS: list[Fault] = [
    *exchange.FAULTS,
    *block.FAULTS,
    *bounds.FAULTS,
    *controls.FAULTS,
    *rounding.FAULTS,
    *streamed.FAULTS,
    *stack.FAULTS,
    *half_steps.FAULTS,
    *norms.FAULTS,
]
