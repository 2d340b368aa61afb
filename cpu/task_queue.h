// A stage's work in tasks: each thread has its own, and helps the others when it has done them. One
// core may be slower than the other for a moment, because of what else runs on it.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace prnn {

class TaskQueue {
 public:
  explicit TaskQueue(int threads) : begun_(threads) {}

  // Calls f(owner, task) for tasks 0 to tasks - 1 of each thread that nobody has begun, a thread's
  // own first. Stages are numbered in the order in which they are taken.
  template <class F>
  void take(std::int64_t stage, std::int64_t thread, std::int64_t threads, std::int64_t tasks,
            F&& f) {
    const std::int64_t none = (stage + 1) * kMostTasks;
    for (std::int64_t n = 0; n < threads; ++n) {
      const std::int64_t owner = (thread + n) % threads;
      std::atomic<std::int64_t>& begun = begun_[owner].tasks;
      for (std::int64_t seen = begun.load(std::memory_order_relaxed);;) {
        const std::int64_t task = seen < none ? 0 : seen - none;
        if (task >= tasks) break;
        if (!begun.compare_exchange_weak(seen, none + task + 1, std::memory_order_relaxed))
          continue;
        f(owner, task);
        seen = begun.load(std::memory_order_relaxed);
      }
    }
  }

 private:
  static constexpr std::int64_t kMostTasks = 1 << 20;
  struct alignas(128) Begun {
    std::atomic<std::int64_t> tasks{0};  // of the stage, and the stage's number
  };
  std::vector<Begun> begun_;
};

}  // namespace prnn
