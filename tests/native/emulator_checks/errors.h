// Kernels that are wrong, and what the emulator answers.
#pragma once
#include <atomic>

#include "kernels.h"

namespace prnn::checks {

struct Wrong {
  const char* expected;  // part of the message
  Launch shape;
  Kernel kernel;
  Options options;
};

inline std::vector<Wrong> wrong_kernels(Mailbox& mail) {
  const Launch one{.block = 64, .shared_bytes = 64};
  const Launch pair{.grid = 2, .cluster = 2, .shared_bytes = 64};
  const Launch four{.grid = 4, .block = 64};
  Options two_resident;
  two_resident.resident_blocks = 2;
  const auto wait_for_all = [&mail] {
    if (ptx::tid() < 2) ptx::st_relaxed_gpu_b64(mail[2 * ptx::ctaid() + ptx::tid()], {1, 2});
    for (int b = 0; b < ptx::nctaid(); ++b) poll(mail[2 * b]);
  };
  return {
      {"block 3 @ spin x 64 (kernels.h:",
       four,
       [&mail] {
         if (ptx::ctaid() == 3) poll(mail[14]);
       },
       {}},
      {"2 blocks have not started", four, wait_for_all, two_resident},
      {"cooperative, but of a grid of 4 blocks only 2",
       {.grid = 4, .block = 64, .cooperative = true},
       wait_for_all,
       two_resident},
      {"block 0 @ bar.sync x 32",
       one,
       [&mail] {
         if (ptx::tid() < 32) poll(mail[14]);
         ptx::bar_sync();
       },
       {}},
      {"of its block wait at bar.sync", one,
       [] {
         if (ptx::tid() >= 32) ptx::bar_sync();
       },
       seeded(3)},
      {"threads of the block have exited",
       one,
       [] {
         if (ptx::tid() < 32) return;
         for (int i = 0; i < 1000; ++i) ptx::bar_warp_sync();
         ptx::bar_sync();
       },
       {}},
      {"divergence: lanes of one warp wait at different bar.sync",
       one,
       [] {
         if (ptx::tid() % 2 == 0) {
           ptx::bar_sync();
         } else {
           ptx::bar_sync();
         }
       },
       {}},
      {"divergence",
       one,
       [] {
         if (ptx::tid() % 2 == 0) {
           ptx::bar_sync();
         } else {
           ptx::vote_all(true);
         }
       },
       {}},
      {"lanes of the warp wait at shfl.sync",
       {},
       [] {
         if (ptx::tid() == 7) {
           ptx::vote_all(true);
         } else {
           ptx::shfl_bfly(1, 1);
         }
       },
       {}},
      {"exited",
       {},
       [] {
         if (ptx::tid() != 7) ptx::vote_all(true);
       },
       {}},
      {"no lane is 32 away", {}, [] { ptx::shfl_bfly(1, 32); }, {}},
      {"no multiple of 16", {}, [&mail] { ptx::ld_relaxed_gpu_v2_b64(mail[1]); }, {}},
      {"no multiple of 8",
       {},
       [&mail] { ptx::st_relaxed_gpu_b64(reinterpret_cast<char*>(mail[1]) + 4, {1, 2}); },
       {}},
      {"null", {}, [] { ptx::st_relaxed_gpu_b64(nullptr, {1, 2}); }, {}},
      {"not an address of this block's shared memory",
       pair,
       [] { ptx::mapa(ptx::shared() + 64, 1); },
       {}},
      {"no block of rank 2", pair, [] { ptx::mapa(ptx::shared(), 2); }, {}},
      {"no address of the cluster's shared memory",
       pair,
       [] {
         const auto last = ptx::mapa(ptx::shared() + 56, 1);
         ptx::st_async_v2_b32(last + 8, {1, 2}, last);
       },
       {}},
      {"the mbarrier does not lie in block 1",
       pair,
       [] {
         init_mbarrier();
         ptx::st_async_v2_b32(ptx::mapa(ptx::shared() + 8, 1), {1, 2}, ptx::mapa(ptx::shared(), 0));
       },
       {}},
      {"the mbarrier is not initialised",
       pair,
       [] {
         send(8, 1);
         cluster_sync();
       },
       {}},
      {"lacks fence.mbarrier_init",
       pair,
       [] {
         init_mbarrier(false);
         send(8, 1);
         cluster_sync();
       },
       {}},
      {"has exited",
       pair,
       [] {
         init_mbarrier();
         send(8, 1);
       },
       {}},
      {"which has exited",
       pair,
       [] {
         init_mbarrier();
         if (ptx::cluster_ctarank() == 1) return;
         for (int i = 0; i < 1000; ++i) ptx::bar_warp_sync();
         send(8, 1);
       },
       {}},
      {"has been overwritten",
       pair,
       [] {
         init_mbarrier();
         if (ptx::tid() == 0) *first_mbarrier() = 0;
         ptx::bar_warp_sync();
         ptx::mbarrier_try_wait_parity(first_mbarrier(), 0);
       },
       {}},
      {"more arrivals than its count",
       pair,
       [] {
         init_mbarrier();
         if (ptx::tid() == 0) {
           ptx::mbarrier_arrive_expect_tx(first_mbarrier(), 8);
           ptx::mbarrier_arrive_expect_tx(first_mbarrier(), 8);
         }
       },
       {}},
      {"block 1 @ ",  // 16 bytes are expected, 8 come
       pair,
       [] {
         init_mbarrier();
         if (ptx::cluster_ctarank() == 1 && ptx::tid() == 0)
           ptx::mbarrier_arrive_expect_tx(first_mbarrier(), 16);
         send(8, 1);
         if (ptx::cluster_ctarank() == 1) wait(first_mbarrier(), 0);
         cluster_sync();
       },
       {}},
      {"second st.async to an address",
       pair,
       [] {
         init_mbarrier();
         send(8, 1);
         send(8, 1);
         cluster_sync();
       },
       {}},
      {"initialised before", pair, [] { ptx::mbarrier_init(first_mbarrier(), 1); }, {}},
      {"without arrive", pair, [] { ptx::barrier_cluster_wait(); }, {}},
      {"a second time without wait",
       pair,
       [] {
         ptx::barrier_cluster_arrive();
         ptx::barrier_cluster_arrive();
       },
       {}},
      {"between barrier.cluster.arrive and wait", pair, [] { ptx::barrier_cluster_arrive(); }, {}},
      {"1 to 32 warps", {.block = 33}, [] {}, {}},
      {"not a number of clusters", {.grid = 3, .cluster = 2}, [] {}, {}},
      {"from within a kernel", {}, [] { emulator::launch({}, [] {}); }, {}},
  };
}

inline void check_errors() {
  Mailbox mail(16);
  int index = 0;
  for (const Wrong& wrong : wrong_kernels(mail)) {
    const std::string name = "error " + std::to_string(index++) + " (" + wrong.expected + "): ";
    try {
      emulator::launch(wrong.shape, wrong.kernel, wrong.options);
      expect(false, name + "none came");
    } catch (const EmulatorError& error) {
      const std::string message = error.what();
      expect(message.find(wrong.expected) != std::string::npos, name + "instead came " + message);
    }
  }
}

// After an error all stacks are unwound; what a kernel throws comes out of launch().
inline void check_exceptions() {
  std::atomic<int> living = 0;
  struct Counted {
    explicit Counted(std::atomic<int>& n) : n(n) { ++n; }
    ~Counted() { --n; }
    std::atomic<int>& n;
  };
  try {
    emulator::launch({.grid = 2, .block = 64}, [&] {
      const Counted counted(living);
      if (ptx::ctaid() == 1 && ptx::tid() == 40) throw std::logic_error("of the kernel");
      ptx::bar_sync();
    });
    expect(false, "what the kernel throws is lost");
  } catch (const std::logic_error& error) {
    expect(std::string(error.what()) == "of the kernel", "another exception");
  }
  expect(living == 0, "a stack is not unwound");
}

}  // namespace prnn::checks
