#include <cuda_runtime.h>

#include <atomic>
#include <cstring>

#include "cuda/kernels.h"

namespace prnn {

Failure HostWatchdog::prepare(double seconds) {
  void* memory = nullptr;
  // Once for each device, and kept until the process ends: programs and graphs hold its address.
  if (auto failed = failure("no memory for the watchdog's report",
                            cudaHostAlloc(&memory, sizeof(WaitReport), cudaHostAllocMapped)))
    return failed;
  std::memset(memory, 0, sizeof(WaitReport));
  void* on_device = nullptr;
  if (auto failed = failure("the watchdog's report cannot be mapped",
                            cudaHostGetDevicePointer(&on_device, memory, 0))) {
    cudaFreeHost(memory);
    return failed;
  }
  report_ = static_cast<WaitReport*>(memory);
  of_kernels_ = {timer_ticks(seconds), static_cast<WaitReport*>(on_device)};
  return std::nullopt;
}

Failure HostWatchdog::given_up() const {
  const std::atomic_ref<std::uint32_t> state(report_->state);
  if (state.load(std::memory_order_acquire) != WaitReport::kWritten) return std::nullopt;
  const WaitReport& r = *report_;
  return "prnn_jax: a kernel on this GPU has given up, and with it the process has lost its CUDA "
         "context: block " +
         std::to_string(r.block) + " (" + std::string(name(static_cast<Exchange>(r.exchange))) +
         " exchange, group " + std::to_string(r.group) + ", batch rows from " +
         std::to_string(r.first_row) + ") waited at step " + std::to_string(r.step) +
         " for values of another block, which did not come within the time that "
         "PRNN_CUDA_WATCHDOG_S allows (in seconds, by default 2; 0 for a debugger: no limit). "
         "Kernels that run beside it and take its multiprocessors need room: PRNN_CUDA_MAX_SMS. "
         "Start the process again";
}

}  // namespace prnn
