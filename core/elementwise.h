// Recurrences without a product in a step, element by element (IndRNN, minGRU, SRU, RG-LRU, LRU):
//   y[s] = f(a[s] y[s - 1] + b[s])
// of `rows` independent ones, each of `width` elements. State between the steps is float, whatever
// the arrays are.
#pragma once
#include <cstdint>

#include "core/activations.h"
#include "core/dtype.h"

namespace prnn {

struct ElementwiseRecurrence {
  Dtype dtype;
  std::int64_t rows, steps, width;
  bool reverse;      // from the last step to the first
  bool is_constant;  // a: [rows, width], the same in all steps; else [rows, steps, width]
  // A step's a is that of the step before, as its gradient needs it; of the first, 1.
  bool is_shifted;
  bool is_linear;  // f(v) = v
  // Two elements side by side are one number, its real and its imaginary part: in all arrays, of
  // float32, of a linear recurrence.
  bool is_complex;
  AnyActivation f;
  const void *a, *b, *y_0;  // b: [rows, steps, width]; y_0: [rows, width]
  void* y;                  // as b

  PRNN_HD std::int64_t elements() const { return rows * width; }
  int value_bytes() const { return dtype == Dtype::kFloat32 ? 4 : 2; }
};

}  // namespace prnn
