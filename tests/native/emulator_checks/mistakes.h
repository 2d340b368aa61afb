// Kernels that are wrong in a way only a sanitizer sees.
#pragma once
#include "kernels.h"

namespace prnn::checks {

struct Hidden {
  const char* name;
  Kernel kernel;
};

inline std::vector<Hidden> hidden_mistakes(Mailbox& mail) {
  const auto bar_sync = [] { ptx::bar_sync(); };
  const auto no_barrier = [] {};
  return {
      // ThreadSanitizer
      {"race_without_bar_sync", [=] { exchange(64, no_barrier, 1, true); }},
      {"race_over_warps", [] { exchange(64, [] { ptx::bar_warp_sync(); }, 1, true); }},
      {"race_single_buffer", [=] { exchange(64, bar_sync, 3, true); }},
      {"race_shuffle_is_no_barrier", [] { exchange(32, [] { ptx::shfl_bfly(0, 1); }, 1, true); }},
      {"race_relaxed_is_no_acquire",
       [&mail] {
         static std::uint32_t data;
         if (ptx::tid() != 0) return;
         if (ptx::ctaid() == 0) {
           data = 1;
           for (int i = 0; i < 2; ++i) ptx::st_relaxed_gpu_b64(mail[i], {1, 2});
         } else if (ptx::ctaid() == 1) {
           poll(mail[0]);
           mail[2][0] = data;
         }
       }},
      {"race_granule_read_plainly",
       [&mail] {
         if (ptx::tid() != 0) return;
         if (ptx::ctaid() == 0) ptx::st_relaxed_gpu_b64(mail[0], {1, 2});
         if (ptx::ctaid() == 1) mail[2][0] = *mail[0];
       }},
      {"race_remote_read_early",
       [&mail] {
         init_mbarrier();
         if (ptx::ctaid() == 1 && ptx::tid() == 0) {
           ptx::mbarrier_arrive_expect_tx(first_mbarrier(), 8);
           *mail[0] = first_mbarrier()[1];
         }
         send(8, 1);
         if (ptx::ctaid() == 1) wait(first_mbarrier(), 0);
         cluster_sync();
       }},
      // AddressSanitizer
      {"overrun_of_shared_memory", [] { ptx::shared()[256 + ptx::tid()] = 1; }},
      {"overrun_of_relaxed_store", [&mail] { ptx::st_relaxed_gpu_b64(mail[4], {1, 2}); }},
      {"overrun_of_relaxed_load", [&mail] { ptx::ld_relaxed_gpu_v2_b64(mail[4]); }},
      {"overrun_of_registers",
       [&mail] {
         std::uint32_t registers[4] = {1, 2, 3, 4};
         const volatile int index = 4;
         *mail[0] = registers[index];
       }},
  };
}

inline int run_hidden(const std::string& name) {
  Mailbox mail(4);
  for (const Hidden& h : hidden_mistakes(mail)) {
    if (name != h.name) continue;
    emulator::launch({.grid = 2, .cluster = 2, .block = 64, .shared_bytes = 256}, h.kernel);
    std::printf("not noticed\n");
    return 0;
  }
  std::printf("no mistake is named %s\n", name.c_str());
  return 2;
}

}  // namespace prnn::checks
