// What blocks of a grid or a cluster tell each other, and that each fault in it shows.
#pragma once
#include "kernels.h"

namespace prnn::checks {

// Block 0 writes two granules, block 1 watches them arrive.
inline void check_granules() {
  bool first_alone = false, second_alone = false, neither = false;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Mailbox mail(2);
    emulator::launch(
        {.grid = 2},
        [&] {
          if (ptx::tid() != 0) return;
          if (ptx::ctaid() == 0) {
            ptx::st_relaxed_gpu_b64(mail[0], {1, 2});
            ptx::st_relaxed_gpu_b64(mail[1], {3, 4});
            // Its own stores, it sees at once.
            const Word4 own = ptx::ld_relaxed_gpu_v2_b64(mail[0]);
            expect(own.x == 1 && own.y == 2 && own.z == 3 && own.w == 4, "own stores");
            return;
          }
          for (;;) {
            const Word4 v = ptx::ld_relaxed_gpu_v2_b64(mail[0]);
            const bool first = v.x != kUnwritten, second = v.z != kUnwritten;
            expect(v.y == (first ? 2 : kUnwritten) && v.w == (second ? 4 : kUnwritten),
                   "a granule arrives as one");
            if (first && second) return;
            (first ? first_alone : second ? second_alone : neither) = true;
            ptx::spin();
          }
        },
        seeded(seed));
    expect(*mail[0] == (std::uint64_t{2} << 32 | 1) && *mail[1] == (std::uint64_t{4} << 32 | 3),
           "all stores have arrived at the end");
  }
  expect(first_alone && second_alone && neither, "seeds show granules arriving in any order");
}

// A grid of blocks that sum what all have published in the step before. Uses all operations of the
// grid exchange so that a fault in any shows; the result depends on every bit.
inline std::vector<std::uint64_t> grid_relay(const Options& options) {
  constexpr int kBlocks = 4, kSteps = 4;
  Mailbox mail(2 * kBlocks * (kSteps + 1));
  for (int i = 0; i < 2 * kBlocks; ++i) *mail[i] = 0x3f8f1234'3fa0abcd + i * 0x01234567;
  const Kernel kernel = [&] {
    auto* words = reinterpret_cast<std::uint32_t*>(ptx::shared());  // [2][64]
    const int tid = ptx::tid(), lane = tid % 32, warp = tid / 32;
    float carried[4] = {};
    for (int step = 0; step < kSteps; ++step) {
      Word4 v{1, 2, 3, 4};
      for (;;) {
        if (lane < kBlocks) v = ptx::ld_relaxed_gpu_v2_b64(mail[2 * (step * kBlocks + lane)]);
        if (ptx::vote_all(v.x != kUnwritten && v.z != kUnwritten)) break;
        ptx::spin();
      }
      // A permutation of lanes through shared memory, then through the shuffle.
      std::uint32_t* mine = words + 64 * (step % 2) + 32 * warp;
      mine[lane] = v.x + 3 * v.y + 5 * v.z + 7 * v.w;
      ptx::bar_warp_sync();
      const std::uint32_t other =
          ptx::shfl_bfly(mine[(lane + 7) % 32], 2) + static_cast<unsigned>(lane);
      const float f = 1.0f + static_cast<float>(other % 8191) / 8192.0f;
      float d[4] = {carried[0], carried[1], carried[2], carried[3]};
      const Word4 a{ptx::cvt_rn_bf16x2(f, 0.5f * f), ptx::cvt_rn_bf16x2(-f, 2 * f),
                    ptx::cvt_rn_bf16x2(3 * f, f), ptx::cvt_rn_bf16x2(f, -5 * f)};
      ptx::mma_m16n8k16_bf16(d, a, ptx::cvt_rn_bf16x2(f, 7 * f), ptx::cvt_rn_bf16x2(-f, f));
      ptx::bar_warp_sync();
      mine[lane] = bits(d[0] + 2 * d[1] + 3 * d[2] + 5 * d[3]);
      ptx::bar_sync();
      for (int i = 0; i < 4; ++i) carried[i] = 0.125f * d[i];
      if (tid >= 2) continue;
      Word2 out{0, 0};
      for (int i = 0; i < 64; ++i) {
        out.x = 31 * out.x + words[64 * (step % 2) + i];
        out.y ^= out.x + static_cast<unsigned>(tid + ptx::ctaid());
      }
      out.x &= 0x7fffffff;
      ptx::st_relaxed_gpu_b64(mail[2 * ((step + 1) * kBlocks + ptx::ctaid()) + tid], out);
    }
  };
  const Launch shape{.grid = kBlocks, .block = 64, .shared_bytes = 512, .cooperative = true};
  emulator::launch(shape, kernel, options);
  return mail.contents();
}

// A cluster whose blocks send each other a granule per step and warp, counted by mbarriers.
inline std::vector<std::uint64_t> cluster_relay(const Options& options) {
  constexpr int kBlocks = 4, kClusters = 2, kSteps = 6, kWarps = 2;
  struct Shared {
    ptx::MBarrier arrived[2];
    Word2 values[2][kBlocks * kWarps];
  };
  std::vector<std::uint64_t> results(kBlocks * kClusters * kWarps);
  const Kernel kernel = [&] {
    auto& shared = *reinterpret_cast<Shared*>(ptx::shared());
    const int tid = ptx::tid(), lane = tid % 32, warp = tid / 32;
    const int rank = ptx::cluster_ctarank();
    if (tid == 0) {
      for (ptx::MBarrier& b : shared.arrived) {
        ptx::mbarrier_init(&b, 1);
        ptx::mbarrier_arrive_expect_tx(&b, sizeof(shared.values[0]));
      }
      ptx::fence_mbarrier_init();
    }
    cluster_sync();
    Word2 mine{static_cast<std::uint32_t>(ptx::ctaid()), static_cast<std::uint32_t>(warp)};
    for (int step = 0; step < kSteps; ++step) {
      const int now = step % 2;
      const std::uint32_t parity = step / 2 % 2;
      if (lane < kBlocks) {
        const auto to = [&](const void* p) { return ptx::mapa(p, lane); };
        const Word2 sent{mine.x, mine.y + static_cast<std::uint32_t>(lane)};  // each another
        ptx::st_async_v2_b32(to(&shared.values[now][rank * kWarps + warp]), sent,
                             to(&shared.arrived[now]));
      }
      wait(&shared.arrived[now], parity);
      for (const Word2& v : shared.values[now]) {
        mine.x = 31 * mine.x + v.x;
        mine.y ^= mine.x + v.y;
      }
      // All have read the values before any warp tells other blocks, by its next st.async, that
      // they may overwrite them two steps on; the mbarrier must expect those first.
      ptx::bar_sync();
      if (tid == 0 && step + 2 < kSteps)
        ptx::mbarrier_arrive_expect_tx(&shared.arrived[now], sizeof(shared.values[0]));
    }
    cluster_sync();
    if (lane == 0) results[ptx::ctaid() * kWarps + warp] = mine.x | std::uint64_t{mine.y} << 32;
  };
  const Launch shape{.grid = kBlocks * kClusters,
                     .cluster = kBlocks,
                     .block = 32 * kWarps,
                     .shared_bytes = sizeof(Shared)};
  emulator::launch(shape, kernel, options);
  return results;
}

inline void check_relays(int seeds) {
  Options plain;
  plain.random_order = plain.weak_stores = false;
  const auto grid = grid_relay(plain), cluster = cluster_relay(plain);
  for (int seed = 0; seed < seeds; ++seed) {
    expect(grid_relay(seeded(seed)) == grid, "the grid's result depends on the schedule");
    Options options = seeded(seed);
    if (seed % 2 == 1) options.resident_blocks = 4;  // one cluster at a time
    expect(cluster_relay(options) == cluster, "the cluster's result depends on the schedule");
  }
}

// ---- faults ----

inline void check_faults() {
  const auto grid = grid_relay({}), cluster = cluster_relay({});
  for (const std::string_view name : emulator::fault_names()) {
    constexpr int kSeeds = 20;
    int noticed = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      Options options = seeded(seed);
      options.fault = name;
      bool wrong = false;
      for (const bool of_grid : {true, false}) {
        try {
          wrong |= of_grid ? grid_relay(options) != grid : cluster_relay(options) != cluster;
        } catch (const EmulatorError&) {
          wrong = true;
        }
      }
      noticed += wrong;
    }
    expect(noticed == kSeeds, "the fault " + std::string(name) + " shows only with " +
                                  std::to_string(noticed) + " seeds of " + std::to_string(kSeeds));
  }
}

}  // namespace prnn::checks
