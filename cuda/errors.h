// What errors of CUDA's mean.
#pragma once
#include <cuda_runtime.h>

namespace prnn {

// Whether the build has no code of a kernel for the device: what asks about a kernel says the one,
// what launches it the other.
inline bool is_not_in_build(cudaError_t error) {
  return error == cudaErrorInvalidDeviceFunction || error == cudaErrorNoKernelImageForDevice;
}

}  // namespace prnn
