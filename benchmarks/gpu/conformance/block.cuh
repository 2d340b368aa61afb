// Within a block: numbers of threads, barriers, shuffles, votes.
#pragma once
#include "benchmarks/gpu/conformance/definitions.cuh"

namespace conformance {

__global__ void who_am_i(int* out) {
  int* own = out + 3 * (ptx::ctaid() * static_cast<int>(blockDim.x) + ptx::tid());
  own[0] = ptx::tid();
  own[1] = ptx::ctaid();
  own[2] = ptx::nctaid();
}
inline void check_who_am_i() {
  constexpr int kBlocks = 5, kThreads = 96;
  Array<int> out(3 * kBlocks * kThreads);
  out.fill(0xff);
  bench::launch(who_am_i, {.blocks = kBlocks, .threads = kThreads}, out.get());
  long long wrong = 0;
  const auto read = out.read();
  for (int n = 0; n < kBlocks * kThreads; ++n)
    wrong += read[3 * n] != n % kThreads || read[3 * n + 1] != n / kThreads ||
             read[3 * n + 2] != kBlocks;
  report("tid, ctaid, nctaid", wrong, kBlocks * kThreads);
}

// Threads write to shared memory and read what others wrote, round after round.
template <bool kWarp>
__global__ void barrier(int rounds, Counter* wrong) {
  const int threads = static_cast<int>(blockDim.x), me = ptx::tid();
  volatile int* values = reinterpret_cast<int*>(ptx::shared());
  if (reinterpret_cast<uint64_t>(ptx::shared()) % 128 != 0) atomicAdd(wrong, 1);
  for (int n = 0; n < rounds; ++n) {
    values[me] = n * 1000 + me;
    kWarp ? ptx::bar_warp_sync() : ptx::bar_sync();
    const int from = kWarp ? me / 32 * 32 + (me + 1 + n) % 32 : (me + 33 + n) % threads;
    if (values[from] != n * 1000 + from) atomicAdd(wrong, 1);
    kWarp ? ptx::bar_warp_sync() : ptx::bar_sync();
  }
}
template <bool kWarp>
inline void check_barrier(const char* name) {
  Array<Counter> wrong(1);
  wrong.fill(0);
  constexpr int kBlocks = 64, kThreads = 256, kRounds = 1000;
  bench::launch(barrier<kWarp>,
                {.blocks = kBlocks, .threads = kThreads, .shared_bytes = 4 * kThreads}, kRounds,
                wrong.get());
  report(name, static_cast<long long>(wrong.read()[0]), 1ll * kBlocks * kThreads * kRounds);
}

__global__ void shuffle(uint32_t* out) {
  for (int mask = 0; mask < 32; ++mask)
    out[32 * mask + ptx::tid()] = ptx::shfl_bfly(static_cast<uint32_t>(ptx::tid()) * 7919u, mask);
}
inline void check_shuffle() {
  Array<uint32_t> out(32 * 32);
  bench::launch(shuffle, {}, out.get());
  const auto read = out.read();
  long long wrong = 0;
  for (uint32_t n = 0; n < 1024; ++n) wrong += read[n] != (n % 32 ^ n / 32) * 7919u;
  report("shfl_bfly", wrong, 1024);
}

// Vote n: all but lane n say yes; vote 32: all do.
__global__ void vote(int* out) {
  for (int n = 0; n <= 32; ++n) out[32 * n + ptx::tid()] = ptx::vote_all(ptx::tid() != n);
}
inline void check_vote() {
  Array<int> out(32 * 33);
  bench::launch(vote, {}, out.get());
  const auto read = out.read();
  long long wrong = 0;
  for (int n = 0; n < 32 * 33; ++n) wrong += read[n] != (n / 32 == 32);
  report("vote_all", wrong, 32 * 33);
}

}  // namespace conformance
