// The functions a cell may use, for plain floats. A SIMD type brings its own (cpu/vector_math.h);
// the cells find them by the type of their arguments.
#pragma once
#include <cmath>

#include "core/portability.h"

namespace prnn {

PRNN_HD float sigmoid(float a) { return 1.0f / (1.0f + expf(-a)); }
PRNN_HD float tanh(float a) { return ::tanhf(a); }
PRNN_HD float exp(float a) { return ::expf(a); }
PRNN_HD float log_sigmoid(float a) { return (a < 0.0f ? a : 0.0f) - ::log1pf(::expf(-::fabsf(a))); }
PRNN_HD float select(bool condition, float yes, float no) { return condition ? yes : no; }

}  // namespace prnn
