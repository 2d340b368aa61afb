// A wait that would not end.
#pragma once
#include "benchmarks/gpu/conformance/definitions.cuh"

namespace conformance {

// Block 3 waits for what never comes.
__global__ void wait_for_ever(prnn::Watchdog watchdog) {
  prnn::Wait wait;
  while (ptx::ctaid() == 3) wait.turn(watchdog, prnn::Exchange::kCluster, bench::WaitJob{1, 8}, 42);
}
// In a process of its own, for the device context is lost: exits with 0 if the kernel failed in
// time, and what it left behind can be read and is right.
inline int give_up() {
  prnn::WaitReport* report = nullptr;
  CHECK(cudaHostAlloc(&report, sizeof *report, cudaHostAllocMapped));
  *report = {};
  prnn::Watchdog watchdog{prnn::timer_ticks(0.5), nullptr};
  CHECK(cudaHostGetDevicePointer(&watchdog.report, report, 0));
  const auto began = std::chrono::steady_clock::now();
  wait_for_ever<<<8, 64>>>(watchdog);
  const cudaError_t error = cudaDeviceSynchronize();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
  const volatile prnn::WaitReport& r = *report;
  const bool says = r.state == prnn::WaitReport::kWritten && r.block == 3 && r.group == 1 &&
                    r.first_row == 8 && r.step == 42 &&
                    r.exchange == static_cast<int>(prnn::Exchange::kCluster);
  return !(error != cudaSuccess && says && passed.count() > 0.4 && passed.count() < 5.0);
}
inline void check_watchdog(const char* program) {
  const std::string again = std::string("'") + program + "' --watchdog";
  report("a wait of half a second is given up, and says where", std::system(again.c_str()) != 0, 1);
}

}  // namespace conformance
