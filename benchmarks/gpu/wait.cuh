// The waits of this folder's kernels: they end with an error after two seconds, as the engine's do.
#pragma once
#include "cuda/wait.cuh"

namespace bench {

struct WaitJob {
  int group = 0, first_row = 0;
};
inline constexpr std::uint32_t kPatience = prnn::timer_ticks(2.0);
static __device__ prnn::WaitReport wait_report;

class Wait {
 public:
  __device__ void turn() {
    wait_.turn({kPatience, &wait_report}, prnn::Exchange::kGrid, WaitJob{}, 0);
  }

 private:
  prnn::Wait wait_;
};

}  // namespace bench
