#include "cuda/elementwise_plan.h"

#include <algorithm>

namespace prnn {
namespace {

// Of the model, on every device. All assumed: no GPU has run these kernels yet.
constexpr double kDramLatency = 2.5;   // in latencies of L2
constexpr double kCyclesOfStep = 12;   // of a warp alone
constexpr double kPartOfL2 = 0.5;      // that a call's own arrays may have
constexpr double kThreadsOfSm = 2048;  // at most, and of fewer memory's time is the longer
constexpr int kMostChunks = 256;

// A thread's turns come one after the other, and all threads share the memory.
double call_us(const ElementwiseRecurrence& p, const Device& device, const ElementwisePlan& plan) {
  const int kernels = plan.chunks == 1 ? 1 : 2;
  const auto elements = static_cast<double>(p.elements());
  const double array = elements * static_cast<double>(p.steps) * p.value_bytes();
  const int read = p.is_constant ? 1 : 2;
  const double bytes = array * (read * kernels + 1);
  const bool is_cached = array * (read + 1) <= kPartOfL2 * static_cast<double>(device.l2_bytes);
  const double memory_us = bytes / (is_cached ? device.l2_bytes_per_s : device.dram_bytes_per_s);
  const double latency = device.model.l2_latency * (is_cached ? 1 : kDramLatency);
  const auto turns = static_cast<double>(ceil_div(plan.chunk, kStepsAhead));
  const double threads = elements * plan.chunks;
  const double waves = std::max(1.0, threads / (kThreadsOfSm * device.sms));
  // What was handed over is read in turns, too.
  const auto carried = static_cast<double>(ceil_div(plan.chunks - 1, kStepsAhead));
  const double cycles =
      kernels * waves * turns * (latency + kStepsAhead * kCyclesOfStep) + carried * latency;
  return kernels * device.model.launch_us +
         std::max(1e6 * memory_us, cycles / device.clock_ghz / 1e3);
}

}  // namespace

ElementwisePlan in_chunks(std::int64_t steps, int chunks) {
  const std::int64_t chunk = ceil_div(ceil_div(steps, chunks), kStepsAhead) * kStepsAhead;
  if (chunks == 1 || chunk >= steps) return {steps, 1, 0};
  return {chunk, static_cast<int>(ceil_div(steps, chunk)), 0};
}

ElementwisePlan plan(const ElementwiseRecurrence& recurrence, const Device& device) {
  ElementwisePlan best{};
  for (int chunks = 1; chunks <= kMostChunks; chunks *= 2) {
    ElementwisePlan each = in_chunks(recurrence.steps, chunks);
    each.call_us = call_us(recurrence, device, each);
    if (chunks == 1 || each.call_us < best.call_us) best = each;
    if (!recurrence.is_linear || each.chunks < chunks) break;
  }
  return best;
}

}  // namespace prnn
