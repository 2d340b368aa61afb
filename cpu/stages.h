// What threads that share the units of each step do, one stage after the other: pack, widen,
// project, multiply columns, step. No stage begins before all threads have ended the one before.
#pragma once
#include <functional>
#include <vector>

#include "cpu/work.h"

namespace prnn {

class Stages {
 public:
  // All steps of a call. The packing is done in parts, for a thread may arrive late; where there is
  // none, the first chunk of the projection is.
  static Stages of_call(const Work& steps, const Work* projection, const Packing& packing,
                        TaskQueue& queue, std::int64_t count, std::int64_t threads);

  // The one step of a call whose weights are packed, and whose x is widened.
  static Stages of_one_step(const Work& steps, const Work* projection, TaskQueue& queue);

  std::int64_t count() const;

  // A thread's part of the n-th stage.
  void take(std::int64_t n, std::int64_t thread, std::int64_t threads) const;

 private:
  // The n-th stage of all, and of which chunk or step it is.
  struct At {
    std::int64_t n, of, thread, threads;
  };
  using Stage = std::function<void(const At&)>;

  Stages(std::int64_t steps, std::int64_t steps_per_chunk)
      : steps_(steps), steps_per_chunk_(steps_per_chunk) {}

  void add_work(std::vector<Stage>& to, const Work& work, int phase, std::int64_t rows,
                TaskQueue& queue);

  std::vector<Stage> once_, of_chunk_, of_step_;
  std::int64_t steps_, steps_per_chunk_;
  std::int64_t done_ = 0;  // of the first chunk's stages, by those that are taken once
};

}  // namespace prnn
