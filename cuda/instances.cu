// The kernels of one number format: the build compiles this file once for each, with PRNN_NUMBER.
#include "cuda/instances.h"
#include "cuda/kernels.h"

namespace prnn {
namespace {

// The tile by its numbers: nvcc 13.0 cannot take one as a kernel's template argument.
template <class Pass, Number kNumber, Exchange kExchange, int kMTiles, int kRegisterBlocks,
          int kNTiles, int kWarpsM, int kAhead>
__global__ void __launch_bounds__(kThreads, 1) recurrence(const __grid_constant__ Task<Pass> task) {
  // Clusters exist from compute capability 9.0 on; the planner knows.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if constexpr (kExchange != Exchange::kCluster)
#endif
    Engine<Pass, kNumber, kExchange, Tile{kMTiles, kRegisterBlocks, kNTiles, kWarpsM, kAhead}>(task)
        .run();
}

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
cudaError_t fill_mailbox(const CudaCall& call, cudaStream_t stream) {
  const Mailbox mailbox = mailbox_of(call);
  if (mailbox.bytes > 0)
    if (const cudaError_t e = cudaMemsetAsync(call.workspace, 0xff, mailbox.bytes, stream))
      return e;
  if (mailbox.separate != nullptr) return cudaSuccess;
  const PassSizes sizes = pass_sizes(call.cell.kind, call.pass);
  const Shape& shape = call.shape;
  void* output = call.pass == PassKind::kForward ? call.forward.y : call.backward.da_h;
  return cudaMemsetAsync(output, 0xff,
                         static_cast<std::size_t>(shape.time * shape.batch * shape.groups *
                                                  shape.hidden * sizes.published) *
                             value_bytes(call.number),
                         stream);
}

// Calls f(kernel, task) for the instance; an error where there is none.
template <Number kNumber, class F>
cudaError_t with_kernel(const CudaCall& call, const Plan& plan, F&& f) {
  cudaError_t error = cudaErrorInvalidDeviceFunction;
  visit_instance<kNumber>(
      call, plan, [&]<Exchange kExchange, Tile kTile, class Pass>(Task<Pass> task) {
        error = f(&recurrence<Pass, kNumber, kExchange, kTile.m_tiles, kTile.register_blocks,
                              kTile.n_tiles, kTile.warps_m, kTile.ahead>,
                  task);
      });
  return error;
}

}  // namespace

template <Number kNumber>
cudaError_t prepare_instance(const CudaCall& call, const Plan& plan, std::int64_t shared_limit,
                             Residency& residency) {
  return with_kernel<kNumber>(call, plan, [&](auto* kernel, auto&) {
    // The kernel's, not the plan's: another plan of this kernel, with less, must not take it from
    // one that is prepared already.
    if (const cudaError_t e = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_limit)))
      return e;
    constexpr int kPortableCluster = 8;
    if (plan.exchange == Exchange::kCluster && plan.blocks > kPortableCluster)
      if (const cudaError_t e =
              cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1))
        return e;
    if (plan.exchange == Exchange::kCluster)
      return cudaOccupancyMaxActiveClusters(&residency.clusters, kernel,
                                            Configuration(plan, nullptr).get());
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &residency.blocks_per_sm, kernel, kThreads, static_cast<std::size_t>(plan.shared_bytes));
  });
}

template <Number kNumber>
cudaError_t launch_instance(const CudaCall& call, const Plan& plan, cudaStream_t stream) {
  return with_kernel<kNumber>(call, plan, [&](auto* kernel, auto& task) {
    if (plan.exchange == Exchange::kGrid)
      if (const cudaError_t e = fill_mailbox(call, stream)) return e;
    return cudaLaunchKernelEx(Configuration(plan, stream).get(), kernel, task);
  });
}

template cudaError_t prepare_instance<Number::PRNN_NUMBER>(const CudaCall&, const Plan&,
                                                           std::int64_t, Residency&);
template cudaError_t launch_instance<Number::PRNN_NUMBER>(const CudaCall&, const Plan&,
                                                          cudaStream_t);

}  // namespace prnn
