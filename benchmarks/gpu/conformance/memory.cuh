// Global memory that other blocks see: order, tearing, prefetches.
#pragma once
#include "benchmarks/gpu/conformance/definitions.cuh"

namespace conformance {

// As the kernels do: step t of every block needs what all blocks published in step t - 1.
// rows [steps][blocks * 2 * threads] granules' words, filled with ones before.
__global__ void __launch_bounds__(128, 1) exchange(uint32_t* rows, int steps, Counter* wrong) {
  const int threads = static_cast<int>(blockDim.x), words = ptx::nctaid() * 2 * threads;
  const int own = (ptx::ctaid() * threads + ptx::tid()) * 2;
  uint32_t sum = 0;
  for (int t = 0; t < steps; ++t) {
    uint32_t* row = rows + static_cast<std::size_t>(t) * static_cast<std::size_t>(words);
    ptx::prefetch_global_l2(row + own);
    if (t > 0) {
      sum = 0;
      for (int n = 4 * ptx::tid(); n < words; n += 4 * threads) {
        bench::Wait wait;
        ptx::Word4 v = ptx::ld_relaxed_gpu_v2_b64(row - words + n);
        for (;;) {
          const bool x = v.x != ~0u, y = v.y != ~0u, z = v.z != ~0u, w = v.w != ~0u;
          if (x != y || z != w) atomicAdd(wrong, 1);  // a granule is there as a whole or not at all
          if (x && y && z && w) break;
          wait.turn();
          v = ptx::ld_relaxed_gpu_v2_b64(row - words + n);
        }
        sum += v.x + v.y + v.z + v.w;
      }
      for (int mask = 16; mask > 0; mask /= 2) sum += ptx::shfl_bfly(sum, mask);
      uint32_t* sums = reinterpret_cast<uint32_t*>(ptx::shared());
      if (ptx::tid() % 32 == 0) sums[ptx::tid() / 32] = sum;
      ptx::bar_sync();
      sum = 0;
      for (int warp = 0; warp < threads / 32; ++warp) sum += sums[warp];
      ptx::bar_sync();
    }
    // Never all ones: the top bit is not set.
    const auto value = [&](int word) {
      return mixed(sum + static_cast<uint32_t>(word)) & 0x7fffffffu;
    };
    ptx::st_relaxed_gpu_b64(row + own, {value(own), value(own + 1)});
  }
}
inline void check_exchange() {
  constexpr int kThreads = 128, kSteps = 2000;
  for (const int blocks : {2, bench::sms() / 2, bench::sms()}) {
    const int words = blocks * 2 * kThreads;
    Array<uint32_t> rows(static_cast<std::size_t>(kSteps) * words);
    Array<Counter> torn(1);
    rows.fill(0xff);
    torn.fill(0);
    bench::launch(exchange,
                  {.blocks = blocks, .threads = kThreads, .shared_bytes = 64, .cooperative = true},
                  rows.get(), kSteps, torn.get());
    const auto read = rows.read();
    long long wrong = static_cast<long long>(torn.read()[0]);
    uint32_t sum = 0;
    for (int t = 0; t < kSteps; ++t) {
      uint32_t next = 0;
      for (int w = 0; w < words; ++w) {
        const uint32_t value = read[static_cast<std::size_t>(t) * words + w];
        wrong += value != (mixed(sum + static_cast<uint32_t>(w)) & 0x7fffffffu);
        next += value;
      }
      sum = next;
    }
    const std::string name =
        "ld_relaxed_gpu_v2_b64, st_relaxed_gpu_b64 among " + std::to_string(blocks) + " blocks";
    report(name.c_str(), wrong, 1ll * kSteps * words);
  }
}

// Block 0 writes over and over; the others never see half of a write.
__global__ void tear(uint32_t* at, int rounds, Counter* wrong) {
  if (ptx::ctaid() == 0) {
    for (int n = 0; n < rounds; ++n) {
      const auto v = static_cast<uint32_t>(n);
      ptx::st_relaxed_gpu_b64(at + 2 * (ptx::tid() % 2), {v, mixed(v)});
    }
    return;
  }
  for (int n = 0; n < rounds / 8; ++n) {
    const ptx::Word4 v = ptx::ld_relaxed_gpu_v2_b64(at);
    if (v.y != mixed(v.x) || v.w != mixed(v.z)) atomicAdd(wrong, 1);
  }
}
inline void check_tear() {
  Array<uint32_t> at(std::vector<uint32_t>{0, mixed(0), 0, mixed(0)});
  Array<Counter> wrong(1);
  wrong.fill(0);
  const int blocks = std::min(bench::sms(), 64), rounds = 200000;
  bench::launch(tear, {.blocks = blocks, .threads = 32}, at.get(), rounds, wrong.get());
  report("st_relaxed_gpu_b64 is one access", static_cast<long long>(wrong.read()[0]),
         1ll * (blocks - 1) * 32 * (rounds / 8));
}

// A prefetch changes nothing, of written memory or of memory past the end of an array.
__global__ void prefetch(uint32_t* values, int size) {
  for (int n = ptx::tid(); n < size; n += 32) ptx::prefetch_global_l2(values + n);
}
inline void check_prefetch() {
  constexpr int kSize = 1 << 16;
  std::vector<uint32_t> values(kSize);
  for (int n = 0; n < kSize; ++n) values[n] = mixed(static_cast<uint32_t>(n));
  Array<uint32_t> array(values);
  bench::launch(prefetch, {}, array.get(), kSize);
  const auto read = array.read();
  long long wrong = 0;
  for (int n = 0; n < kSize; ++n) wrong += read[n] != values[n];
  report("prefetch_global_l2", wrong, kSize);
}

}  // namespace conformance
