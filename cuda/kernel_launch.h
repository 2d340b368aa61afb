// What the launch of a kernel of the engine takes: attributes of the kernel and of the launch, and
// the fill of a grid's mailbox.
#pragma once
#include <cuda_runtime.h>

#include "cuda/call.h"
#include "cuda/planner.h"

namespace prnn {

// A launch's attributes: a grid's blocks wait for each other, so that all must be resident at once
// (cooperative: the driver refuses what cannot be, and runs such kernels one after the other); a
// team of the cluster exchange is a cluster.
class Configuration {
 public:
  Configuration(const Plan& plan, cudaStream_t stream) {
    config_.gridDim = dim3(static_cast<unsigned>(plan.grid()));
    config_.blockDim = dim3(kThreads);
    config_.dynamicSmemBytes = static_cast<std::size_t>(plan.shared_bytes);
    config_.stream = stream;
    config_.attrs = &attribute_;
    if (plan.exchange == Exchange::kGrid) {
      attribute_.id = cudaLaunchAttributeCooperative;
      attribute_.val.cooperative = 1;
      config_.numAttrs = 1;
    } else if (plan.exchange == Exchange::kCluster) {
      attribute_.id = cudaLaunchAttributeClusterDimension;
      attribute_.val.clusterDim = {static_cast<unsigned>(plan.blocks), 1, 1};
      config_.numAttrs = 1;
    }
  }
  Configuration(const Configuration&) = delete;
  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchConfig_t config_{};
  cudaLaunchAttribute attribute_{};
};

// Unwritten values: an asynchronous fill before the launch, ordered by the stream.
inline cudaError_t fill_mailbox(const CudaCall& call, cudaStream_t stream) {
  const Mailbox mailbox = mailbox_of(call);
  if (mailbox.bytes > 0)
    if (const cudaError_t e = cudaMemsetAsync(call.workspace, 0xff, mailbox.bytes, stream))
      return e;
  if (mailbox.separate != nullptr) return cudaSuccess;
  const PassSizes sizes = pass_sizes(call.cell.kind, call.pass, call.is_stack);
  const Shape& shape = call.shape;
  void* output = call.pass == PassKind::kForward ? call.forward.y : call.backward.da_h;
  return cudaMemsetAsync(output, 0xff,
                         static_cast<std::size_t>(shape.time * shape.batch * shape.groups *
                                                  shape.hidden * sizes.published) *
                             value_bytes(call.number),
                         stream);
}

// Lets the kernel have what the plan needs, and any plan of it: what is set is the kernel's, and
// another plan, with less, must not take it from one that is prepared already. `shared_limit` is
// the most dynamic shared memory that a block may have on the device.
template <class Kernel>
cudaError_t allow(Kernel* kernel, const Plan& plan, std::int64_t shared_limit) {
  if (const cudaError_t e = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_limit)))
    return e;
  constexpr int kPortableCluster = 8;
  if (plan.exchange == Exchange::kCluster && plan.blocks > kPortableCluster)
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  return cudaSuccess;
}

}  // namespace prnn
