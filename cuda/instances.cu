// The kernels of one number format: the build compiles this file once for each, with PRNN_NUMBER.
#include "cuda/instances.h"
#include "cuda/kernel_launch.h"
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
    if (const cudaError_t e = allow(kernel, plan, shared_limit)) return e;
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
