// Where a step's time goes on this GPU: the engine's own kernels of the LSTM in bfloat16, with a
// look at the clock after each part of a step. Looking takes some cycles too, and keeps the
// compiler from mixing the parts: together they are more than a step of the engine.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/call.h"
#include "cuda/planner.h"

namespace prnn {

inline constexpr const char* kSegments[] = {"before", "arrive", "product",
                                            "fetch",  "reduce", "cell"};
inline constexpr int kSegmentCount = 6;

// Launches the call. `cycles` lies on the device: [blocks][segments], each the sum over
// all steps as the block's first thread saw it; "before" is all before the first step: weights,
// bias, and the barrier of the blocks.
cudaError_t launch_stamped(const CudaCall& call, const Plan& plan, const Device& device,
                           cudaStream_t stream, std::uint32_t* cycles);

}  // namespace prnn
