// Recurrences without a product in a step, element by element (IndRNN, minGRU, SRU, RG-LRU):
//   y[s] = f(a[s] y[s - 1] + b[s])
// of `rows` independent ones, each of `width` elements. They take what memory takes to read a and b
// and to write y. State between the steps is float, whatever the arrays are. Results do not depend
// on the number of threads.
#pragma once
#include <cstdint>

#include "core/activations.h"
#include "core/dtype.h"
#include "cpu/problem.h"
#include "cpu/threads.h"

namespace prnn {

struct ElementwiseRecurrence {
  Dtype dtype;
  std::int64_t rows, steps, width;
  bool reverse;      // from the last step to the first
  bool is_constant;  // a: [rows, width], the same in all steps; else [rows, steps, width]
  // A step's a is that of the step before, as its gradient needs it; of the first, 1.
  bool is_shifted;
  bool is_linear;  // f(v) = v
  AnyActivation f;
  const void *a, *b, *y_0;  // b: [rows, steps, width]; y_0: [rows, width]
  void* y;                  // as b
};

// Elements of a piece of a row at most: their states stay in the first-level cache, and what is
// read lies in long pieces.
inline constexpr std::int64_t kMostElements = 2048;

void run(const Isa& isa, const ElementwiseRecurrence& recurrence, ThreadPool& pool);

}  // namespace prnn
