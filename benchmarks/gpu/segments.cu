#include "benchmarks/gpu/segments.h"
#include "cuda/instances.h"
#include "cuda/kernel_launch.h"

namespace prnn {
namespace {

constexpr Number kNumber = Number::kBfloat16;

PRNN_DEVICE std::uint32_t cycles_now() {
#ifdef __CUDA_ARCH__
  std::uint32_t now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
  return now;
#else
  return ptx::globaltimer();  // emulated
#endif
}

class Stamps {
 public:
  PRNN_DEVICE Stamps() : last_(cycles_now()) {}
  PRNN_DEVICE void ended(Segment segment) {
    const std::uint32_t now = cycles_now();
    sums_[static_cast<int>(segment)] += now - last_;
    last_ = now;
  }
  PRNN_DEVICE void write(std::uint32_t* to) const {
    if (ptx::tid() != 0) return;
#pragma unroll
    for (int n = 0; n < kSegmentCount; ++n) to[ptx::ctaid() * kSegmentCount + n] = sums_[n];
  }

 private:
  std::uint32_t last_, sums_[kSegmentCount] = {};
};

template <class Pass, Exchange kExchange, int kMTiles, int kRegisterBlocks, int kNTiles,
          int kWarpsM, int kAhead>
__global__ void __launch_bounds__(kThreads, 1)
    stamped(const __grid_constant__ Task<Pass> task, std::uint32_t* cycles) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if constexpr (kExchange != Exchange::kCluster)
#endif
  {
    Stamps stamps;
    Engine<Pass, kNumber, kExchange, Tile{kMTiles, kRegisterBlocks, kNTiles, kWarpsM, kAhead}>(task)
        .run(stamps);
    stamps.write(cycles);
  }
}

template <class Pass>
constexpr bool is_of_lstm = std::is_same_v<std::remove_cvref_t<decltype(Pass::cell)>, Lstm>;

}  // namespace

cudaError_t launch_stamped(const CudaCall& call, const Plan& plan, const Device& device,
                           cudaStream_t stream, std::uint32_t* cycles) {
  cudaError_t error = cudaErrorInvalidDeviceFunction;
  const auto launch = [&](auto* kernel, const auto& task) {
    if (const cudaError_t e = allow(kernel, plan, device.shared_bytes)) return e;
    if (plan.exchange == Exchange::kGrid)
      if (const cudaError_t e = fill_mailbox(call, stream)) return e;
    return cudaLaunchKernelEx(Configuration(plan, stream).get(), kernel, task, cycles);
  };
  visit_instance<kNumber>(
      call, plan, [&]<Exchange kExchange, Tile kTile, class Pass>(const Task<Pass>& task) {
        if constexpr (is_of_lstm<Pass>)
          error = launch(&stamped<Pass, kExchange, kTile.m_tiles, kTile.register_blocks,
                                  kTile.n_tiles, kTile.warps_m, kTile.ahead>,
                         task);
      });
  return error;
}

}  // namespace prnn
