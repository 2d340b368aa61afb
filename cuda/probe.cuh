// What the engine tells of itself while it runs, to whom it may concern.
#pragma once
#include "core/portability.h"

namespace prnn {

// Parts of a job, in order: what comes before its first step, and those of a step.
enum class Segment { kBefore, kArrive, kProduct, kFetch, kReduce, kCell };

// Told when each of them ends. What is shipped asks nothing (benchmarks/gpu/segments.cu does).
struct NoProbe {
  PRNN_DEVICE void ended(Segment) const {}
};

}  // namespace prnn
