// Elementwise recurrences (core/elementwise.h) on a GPU, as ffi/ calls them.
#pragma once
#include <cstdint>

#include "core/elementwise.h"
#include "cuda/launch.h"

namespace prnn {

// Loads the kernels of such a call, which may not be done while a stream is captured.
Failure prepare(const ElementwiseRecurrence& recurrence, int chunks);

// Neither allocates nor waits; may be captured into a graph. `workspace`: elementwise_workspace()
// floats.
Failure launch(const ElementwiseRecurrence& recurrence, int chunks, float* workspace,
               CUstream_st* stream);

}  // namespace prnn
