// The kernels of each number format, by function: cuda/instances.cu, compiled once for each.
#pragma once
#include <cuda_runtime.h>

#include "cuda/call.h"
#include "cuda/launch.h"
#include "cuda/planner.h"

namespace prnn {

// An error of CUDA's in the caller's words, and no longer the last one.
Failure failure(const char* what, cudaError_t error);

// How many of the kernel's blocks (clusters, for a cluster exchange) can run at once.
struct Residency {
  int blocks_per_sm, clusters;
};

// `shared_limit` is the most dynamic shared memory that a block may have on the device.
template <Number kNumber>
cudaError_t prepare_instance(const CudaCall& call, const Plan& plan, std::int64_t shared_limit,
                             Residency& residency);
template <Number kNumber>
cudaError_t launch_instance(const CudaCall& call, const Plan& plan, cudaStream_t stream);

}  // namespace prnn
