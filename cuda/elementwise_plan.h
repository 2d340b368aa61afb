// How an elementwise recurrence (core/elementwise.h) is divided on a GPU. Each of its elements is a
// thread's. A linear one may have its steps in chunks: with y before a chunk unknown, y after it is
// `factor` times that plus `sum`, which a first kernel makes for all chunks side by side; a second
// one puts them together and takes the steps. That reads a and b twice, and takes the time of a
// chunk, not of all steps (Blelloch 1990, "Prefix sums and their applications").
#pragma once
#include <cstdint>

#include "core/elementwise.h"
#include "cuda/devices.h"

namespace prnn {

// Steps that a thread reads ahead, while it takes as many.
inline constexpr int kStepsAhead = 8;
inline constexpr int kElementwiseThreads = 128;  // of a block

struct ElementwisePlan {
  std::int64_t chunk;  // steps of each, but the last, which may have less
  int chunks;
  double call_us;  // modelled
};

// Floats of the workspace for each element: factor and sum in each chunk.
inline std::int64_t elementwise_workspace(int chunks) {
  return chunks == 1 ? 0 : 2 * std::int64_t{chunks};
}

// So many chunks at most, each of whole turns of kStepsAhead steps.
ElementwisePlan in_chunks(std::int64_t steps, int chunks);

// Looks at sizes and flags alone.
ElementwisePlan plan(const ElementwiseRecurrence& recurrence, const Device& device);

}  // namespace prnn
