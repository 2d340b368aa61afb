// The exchange between the blocks of a cluster.
#pragma once
#include "benchmarks/gpu/micro/measurement.cuh"
#include "benchmarks/gpu/wait.cuh"

namespace micro {

// A cluster's exchange: as hand_off() of grid.cuh, through shared memory of all blocks and
// mbarriers.
__global__ void __launch_bounds__(kThreads, 1)
    cluster_hand_off(int size, int bytes, int steps, Clocks* clocks, uint32_t* sums) {
#if __CUDA_ARCH__ >= 900
  const int own = bytes / size, me = ptx::tid(), rank = ptx::cluster_ctarank();
  auto* barriers = reinterpret_cast<ptx::MBarrier*>(ptx::shared());
  char* buffers = ptx::shared() + 128;
  if (me == 0) {
    ptx::mbarrier_init(barriers, 1);
    ptx::mbarrier_init(barriers + 1, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(barriers, static_cast<uint32_t>(bytes));
  }
  ptx::bar_sync();
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  Clocks begin = 0;
  uint32_t total = 0;
  for (int t = 0; t < steps; ++t) {
    char* buffer = buffers + t % 2 * bytes;
    // Granules times destinations, spread over the threads.
    for (int n = me; n < own / 8 * size; n += kThreads) {
      const int to = n % size, at = rank * own + n / size * 8;
      const auto value = static_cast<uint32_t>(t * 31 + at / 4);
      ptx::st_async_v2_b32(ptx::mapa(buffer + at, to), {value, value + 1},
                           ptx::mapa(barriers + t % 2, to));
    }
    bench::Wait wait;
    while (!ptx::mbarrier_try_wait_parity(barriers + t % 2, static_cast<uint32_t>(t / 2 % 2)))
      wait.turn();
    if (me == 0 && t + 1 < steps)
      ptx::mbarrier_arrive_expect_tx(barriers + (t + 1) % 2, static_cast<uint32_t>(bytes));
    for (int at = 16 * me; at < bytes; at += 16 * kThreads) {
      const auto* v = reinterpret_cast<const ptx::Word4*>(buffer + at);
      total += v->x + v->y + v->z + v->w;
    }
    ptx::bar_sync();
    if (t == 8) begin = clock64();
  }
  if (me == 0) clocks[ptx::ctaid()] = clock64() - begin;
  sums[ptx::ctaid() * kThreads + me] = total;
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
#endif
}
inline void cluster() {
  if (bench::compute_capability() < 90) return;
  constexpr int kSteps = 4096;
  for (const int size : {2, 4, 8, 16}) {
    double last = 0;
    for (const int bytes : {512, 2048, 8192, 32768}) {
      Launch how{.blocks = size, .threads = kThreads, .shared_bytes = kWholeSm, .cluster = size};
      const int resident = bench::resident_clusters(cluster_hand_off, how);
      if (resident < 1) break;
      how.blocks = size * resident;
      Array<Clocks> clocks(static_cast<std::size_t>(how.blocks));
      Array<uint32_t> sums(static_cast<std::size_t>(how.blocks) * kThreads);
      for (int n = 0; n < 3; ++n)
        bench::launch(cluster_hand_off, how, size, bytes, kSteps, clocks.get(), sums.get());
      const double cycles = median(clocks) / (kSteps - 9);
      long long wrong = 0;
      const auto read = sums.read();
      for (std::size_t n = 0; n < read.size(); ++n) {
        uint32_t expected = 0;
        for (int t = 0; t < kSteps; ++t)
          for (int at = 16 * static_cast<int>(n % kThreads); at < bytes; at += 16 * kThreads)
            for (int k = 0; k < 4; ++k) expected += static_cast<uint32_t>(t * 31 + at / 4 + k);
        wrong += read[n] != expected;
      }
      const bool latency = bytes == 512;
      report("cluster exchange", latency ? "cluster_exchange" : "", cycles, "cycles",
             latency ? Expected{350, 230, 480} : Expected{350, 230, 4000}, "us",
             cycles / clock_ghz() * 1e-3, "size", size, "clusters", resident, "bytes", bytes,
             "wrong", counted(wrong));
      if (bytes == 32768)
        report("cluster exchange, more bytes", "cluster_bytes", (32768 - 8192) / (cycles - last),
               "bytes/cycle", {16, 8, 32}, "size", size);
      last = cycles;
    }
  }
}

}  // namespace micro
