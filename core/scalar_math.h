// The functions a cell may use, for plain floats. A SIMD type brings its own (cpu/vector_math.h);
// the cells find them by the type of their arguments.
#pragma once
#include <cmath>

#include "core/portability.h"

namespace prnn {

// 1 / x for x >= 1, on a device within one spacing, without the branches of an exact division.
PRNN_HD float reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return x > 0x1p126f ? 0.0f : 1.0f / x;  // no denormal numbers
#endif
}
PRNN_HD float sigmoid(float a) { return reciprocal(1.0f + expf(-a)); }
PRNN_HD float tanh(float a) { return ::tanhf(a); }
PRNN_HD float exp(float a) { return ::expf(a); }
PRNN_HD float log_sigmoid(float a) { return (a < 0.0f ? a : 0.0f) - ::log1pf(::expf(-::fabsf(a))); }
PRNN_HD float select(bool condition, float yes, float no) { return condition ? yes : no; }

}  // namespace prnn
