// The first GPU, and the engine's calls on it as the XLA handlers make them, but with plans by
// hand.
#pragma once
#include "cuda/launch.h"
#include "native/device_memory.h"

namespace prnn {

class Gpu {
 public:
  // Blocks wait so many seconds for another; 0: for ever.
  explicit Gpu(double patience = 2) {
    require(cudaSetDevice(0), "cudaSetDevice");
    require(read_device(0, device_));
    require(watchdog_.prepare(patience));
    require(order_.prepare());
    require(cudaStreamCreate(&stream_), "cudaStreamCreate");
  }
  Gpu(const Gpu&) = delete;
  const Device& device() const { return device_; }

  void prepare(const CudaCall& call, const Plan& plan) const {
    require(prnn::prepare(call, plan, device_));
  }
  // And waits for it.
  void run(const CudaCall& call, const Plan& plan) {
    require(launch(watched(call), plan, stream_, order_));
    wait();
  }

  // For launches of others on the stream.
  cudaStream_t stream() const { return stream_; }
  CudaCall watched(CudaCall call) const {
    call.watchdog = watchdog_.of_kernels();
    return call;
  }
  void wait() const {
    const cudaError_t error = cudaStreamSynchronize(stream_);
    if (error != cudaSuccess) require(watchdog_.given_up());
    require(error, "the kernel failed");
  }

 private:
  Device device_;
  HostWatchdog watchdog_;
  GridOrder order_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace prnn
