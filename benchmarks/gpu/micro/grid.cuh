// The exchange between the blocks of a grid, and its barrier.
#pragma once
#include <cooperative_groups.h>

#include "benchmarks/gpu/micro/measurement.cuh"
#include "benchmarks/gpu/wait.cuh"

namespace micro {

// A grid's exchange: row after row of `words` words, of which each block publishes a part and every
// block needs all, filled with ones before. Each thread sums what it reads; sums[step] of block 0.
template <bool kPrefetch>
__global__ void __launch_bounds__(kThreads, 1)
    hand_off(uint32_t* rows, int words, int steps, Clocks* clocks, uint32_t* sums) {
  const int own = words / ptx::nctaid(), first = ptx::ctaid() * own, me = ptx::tid();
  Clocks begin = 0;
  uint32_t total = 0;
  for (int t = 0; t < steps; ++t, rows += words) {
    uint32_t sum = 0;
    if (t > 0)
      for (int n = 4 * me; n < words; n += 4 * kThreads) {
        bench::Wait wait;
        ptx::Word4 v = ptx::ld_relaxed_gpu_v2_b64(rows - words + n);
        while ((v.x & v.y) == ~0u || (v.z & v.w) == ~0u) {
          wait.turn();
          v = ptx::ld_relaxed_gpu_v2_b64(rows - words + n);
        }
        sum += v.x + v.y + v.z + v.w;
      }
    ptx::bar_sync();
    if (t == 8) begin = clock64();
    if (kPrefetch && t + 3 < steps)
      for (int n = 32 * me; n < own; n += 32 * kThreads)
        ptx::prefetch_global_l2(rows + 3 * words + first + n);
    for (int n = 2 * me; n < own; n += 2 * kThreads) {
      const auto value = static_cast<uint32_t>(t * 31 + first + n) & 0x7fffffffu;
      ptx::st_relaxed_gpu_b64(rows + first + n, {value, value + 1});
    }
    total += sum;
  }
  if (me == 0) clocks[ptx::ctaid()] = clock64() - begin;
  if (ptx::ctaid() == 0) sums[me] = total;
}
inline long long wrong_sums(const std::vector<uint32_t>& sums, int words, int blocks, int steps) {
  long long wrong = 0;
  for (int thread = 0; thread < kThreads; ++thread) {
    uint32_t expected = 0;
    const int own = words / blocks;
    for (int t = 0; t + 1 < steps; ++t)
      for (int n = 4 * thread; n < words; n += 4 * kThreads)
        for (int k = 0; k < 4; ++k) {
          const int pair = (n + k) % own / 2 * 2, first = (n + k) / own * own;
          expected += (static_cast<uint32_t>(t * 31 + first + pair) & 0x7fffffffu) +
                      static_cast<uint32_t>((n + k) % 2);
        }
    wrong += sums[static_cast<std::size_t>(thread)] != expected;
  }
  return wrong;
}
template <bool kPrefetch>
void grid_exchange(int blocks, int bytes) {
  constexpr int kSteps = 2048;
  const int words = bytes / 4;
  Array<uint32_t> rows(static_cast<std::size_t>(words) * kSteps), sums(kThreads);
  Array<Clocks> clocks(static_cast<std::size_t>(blocks));
  std::vector<double> cycles;
  for (int n = 0; n < 7; ++n) {
    rows.fill(0xff);
    bench::launch(
        hand_off<kPrefetch>,
        {.blocks = blocks, .threads = kThreads, .shared_bytes = kWholeSm, .cooperative = true},
        rows.get(), words, kSteps, clocks.get(), sums.get());
    cycles.push_back(median(clocks) / (kSteps - 8));
  }
  std::sort(cycles.begin(), cycles.end());
  const bool latency = bytes <= 2048;  // more, and it is bandwidth
  const double us = cycles[3] / clock_ghz() * 1e-3;
  // Without the barrier, which the model counts apart.
  report("grid exchange", latency && blocks >= 16 ? "grid_exchange" : "", cycles[3], "cycles",
         latency ? Expected{760, 500, 1150} : Expected{1000, 700, 2500}, "us", us, "blocks", blocks,
         "bytes", bytes, "prefetch", kPrefetch, "wrong",
         counted(wrong_sums(sums.read(), words, blocks, kSteps)));
}
inline void grid() {
  for (const int blocks : {2, 16, 64, 128})
    if (blocks <= bench::sms()) {
      grid_exchange<false>(blocks, 2048);
      grid_exchange<true>(blocks, 2048);
      grid_exchange<true>(blocks, 8192);
      grid_exchange<true>(blocks, 32768);
    }
}

__global__ void __launch_bounds__(kThreads, 1) grid_sync(int count) {
  const auto all = cooperative_groups::this_grid();
  for (int n = 0; n < count; ++n) all.sync();
}
inline void sync_grid() {
  constexpr int kCount = 2000;
  for (const int blocks : {16, 64, bench::sms()}) {
    const Launch how{
        .blocks = blocks, .threads = kThreads, .shared_bytes = kWholeSm, .cooperative = true};
    const double us = bench::time_us([&] { bench::launch(grid_sync, how, kCount); }) / kCount;
    report("grid.sync", "", us, "us", {1.1, 0.9, 1.3}, "blocks", blocks);
  }
}

}  // namespace micro
