// Clusters: distributed shared memory and its barriers.
#pragma once
#include "benchmarks/gpu/conformance/definitions.cuh"

namespace conformance {

// Every block of a cluster sends 8 bytes of each thread to all blocks, phase after phase, between
// two buffers, as the kernels do. out [blocks][phases]: the sum that a block read in a phase.
__global__ void __launch_bounds__(64, 1) send(int size, int phases, uint32_t* out, Counter* wrong) {
#if __CUDA_ARCH__ >= 900
  constexpr int kThreads = 64;
  char* shared = ptx::shared();
  auto* barriers = reinterpret_cast<ptx::MBarrier*>(shared);
  const uint32_t buffer_bytes = static_cast<uint32_t>(size) * kThreads * 8;
  const auto buffer = [&](int n) { return shared + 128 + n % 2 * static_cast<int>(buffer_bytes); };
  const int me = ptx::tid(), rank = ptx::cluster_ctarank();
  if (rank != ptx::ctaid() % size) atomicAdd(wrong, 1);
  if (ptx::cvta_shared(shared + 16) - ptx::cvta_shared(shared) != 16) atomicAdd(wrong, 1);
  if (me == 0) {
    ptx::mbarrier_init(barriers, 1);
    ptx::mbarrier_init(barriers + 1, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::bar_sync();
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  uint32_t sum = static_cast<uint32_t>(ptx::ctaid() / size);
  if (me == 0) ptx::mbarrier_arrive_expect_tx(barriers, buffer_bytes);
  for (int n = 0; n < phases; ++n) {
    const int slot = (rank * kThreads + me) * 8;
    const uint32_t word = static_cast<uint32_t>(rank * kThreads + me) * 2;
    ptx::bar_warp_sync();
    for (int to = 0; to < size; ++to)
      ptx::st_async_v2_b32(ptx::mapa(buffer(n) + slot, to),
                           {mixed(sum + word), mixed(sum + word + 1)},
                           ptx::mapa(barriers + n % 2, to));
    bench::Wait wait;
    while (!ptx::mbarrier_try_wait_parity(barriers + n % 2, static_cast<uint32_t>(n / 2 % 2)))
      wait.turn();
    if (me == 0) ptx::mbarrier_arrive_expect_tx(barriers + (n + 1) % 2, buffer_bytes);
    sum = 0;
    for (int k = 0; k < size * kThreads; ++k) {
      const auto* v = reinterpret_cast<const ptx::Word2*>(buffer(n) + 8 * k);
      sum += v->x + v->y;
    }
    if (me == 0) out[ptx::ctaid() * phases + n] = sum;
    ptx::bar_sync();
  }
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
#endif
}

// Without the last 8 of its bytes a phase is not complete; with them it is.
__global__ void incomplete(Counter* wrong) {
#if __CUDA_ARCH__ >= 900
  auto* barrier = reinterpret_cast<ptx::MBarrier*>(ptx::shared());
  char* to = ptx::shared() + 128;
  if (ptx::tid() == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::bar_sync();
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  const int other = 1 - ptx::cluster_ctarank();
  if (ptx::tid() == 0) {
    ptx::mbarrier_arrive_expect_tx(barrier, 16);
    ptx::st_async_v2_b32(ptx::mapa(to, other), {1, 2}, ptx::mapa(barrier, other));
    for (int n = 0; n < 20; ++n)  // each may wait for a while
      if (ptx::mbarrier_try_wait_parity(barrier, 0)) atomicAdd(wrong, 1);
  }
  ptx::bar_sync();
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  if (ptx::tid() == 0) {
    ptx::st_async_v2_b32(ptx::mapa(to + 8, other), {3, 4}, ptx::mapa(barrier, other));
    bench::Wait wait;
    while (!ptx::mbarrier_try_wait_parity(barrier, 0)) wait.turn();
    const auto* v = reinterpret_cast<const uint32_t*>(to);
    for (uint32_t n = 0; n < 4; ++n)
      if (v[n] != n + 1) atomicAdd(wrong, 1);
    // The phase after is not complete.
    if (ptx::mbarrier_try_wait_parity(barrier, 1)) atomicAdd(wrong, 1);
  }
  ptx::bar_sync();
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
#endif
}

// The barrier orders what other blocks wrote to global memory.
__global__ void cluster_barrier(int size, int rounds, int* at, Counter* wrong) {
#if __CUDA_ARCH__ >= 900
  const int rank = ptx::cluster_ctarank(), first = ptx::ctaid() - rank;
  for (int n = 0; n < rounds; ++n) {
    at[ptx::ctaid() * 32 + ptx::tid()] = n;
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    const int other = first + (rank + 1) % size;
    if (at[other * 32 + (ptx::tid() + n) % 32] != n) atomicAdd(wrong, 1);
    ptx::bar_sync();
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  }
#endif
}

inline void check_clusters() {
  if (bench::compute_capability() < 90) return;
  constexpr int kPhases = 500, kThreads = 64, kRounds = 1000;
  Array<Counter> wrong(1);
  for (const int size : {2, 4, 8, 16}) {
    const std::string suffix = ", clusters of " + std::to_string(size);
    const Launch how{.blocks = size * 3,
                     .threads = kThreads,
                     .shared_bytes = 128 + 2 * 16 * kThreads * 8,
                     .cluster = size};
    if (bench::resident_clusters(send, how) < 1) {
      report(("any" + suffix).c_str(), 1, 1, size <= 8);
      continue;
    }
    Array<uint32_t> out(static_cast<std::size_t>(how.blocks) * kPhases);
    wrong.fill(0);
    bench::launch(send, how, size, kPhases, out.get(), wrong.get());
    const auto read = out.read();
    long long bad = static_cast<long long>(wrong.read()[0]);
    for (int block = 0; block < how.blocks; ++block) {
      uint32_t sum = static_cast<uint32_t>(block / size);
      for (int n = 0; n < kPhases; ++n) {
        uint32_t next = 0;
        for (uint32_t w = 0; w < static_cast<uint32_t>(size) * kThreads * 2; ++w)
          next += mixed(sum + w);
        sum = next;
        bad += read[static_cast<std::size_t>(block) * kPhases + n] != sum;
      }
    }
    report(("st_async_v2_b32, mapa, mbarrier_*" + suffix).c_str(), bad, 1ll * how.blocks * kPhases);

    Array<int> at(static_cast<std::size_t>(how.blocks) * 32);
    wrong.fill(0);
    bench::launch(cluster_barrier, {.blocks = how.blocks, .cluster = size}, size, kRounds, at.get(),
                  wrong.get());
    report(("barrier_cluster_arrive, _wait" + suffix).c_str(),
           static_cast<long long>(wrong.read()[0]), 1ll * how.blocks * 32 * kRounds);
  }
  wrong.fill(0);
  bench::launch(incomplete, {.blocks = 2, .shared_bytes = 256, .cluster = 2}, wrong.get());
  report("mbarrier_arrive_expect_tx counts bytes", static_cast<long long>(wrong.read()[0]), 2);
}

}  // namespace conformance
