"""What tests of benchmarks share: who needs a compiler, and limits of no machine."""

import pytest

from benchmarks import _limits

needs_a_compiler = pytest.mark.skipif(
    _limits.compiler() is None, reason="needs a C++ compiler"
)

LIMITS = _limits.Limits(
    read_gb_per_s={
        n: {1 << 14: 400.0 * n, 1 << 16: 100.0 * n} for n in (1, 2, _limits.cores())
    },
    float32_gflops={n: 200.0 * n for n in (1, 2, _limits.cores())},
    bfloat16_gflops={},
    barrier_us={n: 0.1 * n for n in (2, _limits.cores()) if n > 1},
)
