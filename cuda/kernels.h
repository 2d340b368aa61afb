// The kernels of each number format, by function: cuda/instances.cu, compiled once for each.
#pragma once
#include <cuda_runtime.h>

#include "cuda/call.h"
#include "cuda/planner.h"

namespace prnn {

// How many of the kernel's blocks (clusters, for a cluster exchange) can run at once.
struct Residency {
  int blocks_per_sm, clusters;
};

template <Number kNumber>
cudaError_t prepare_instance(const CudaCall& call, const Plan& plan, Residency& residency);
template <Number kNumber>
cudaError_t launch_instance(const CudaCall& call, const Plan& plan, cudaStream_t stream);

}  // namespace prnn
