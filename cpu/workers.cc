#include "cpu/workers.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace prnn {
namespace {

using Clock = std::chrono::steady_clock;

// How long a worker stays awake. The calls of a streaming model follow each other within some
// 50 µs; to wake a thread costs up to 50 µs on a virtual machine.
constexpr std::chrono::microseconds kAwake{200};

int usable_cores() {
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

class Queue {
 public:
  void push(std::function<void()> task) {
    std::unique_lock lock(mutex_);
    if (idle_ <= static_cast<int>(tasks_.size()) && started_ < most_workers()) start();
    if (started_ == 0) return;
    tasks_.push_back(std::move(task));
    waiting_.fetch_add(1, std::memory_order_release);
    const bool all_awake = asleep_ == 0;
    lock.unlock();
    if (!all_awake) wake_.notify_one();
  }

 private:
  void start() {
    try {
      std::thread([this] { work(); }).detach();
      started_ += 1;
      idle_ += 1;
    } catch (const std::system_error&) {  // the call goes on with fewer
    }
  }
  [[noreturn]] void work() {
    for (;;) take()();
  }
  std::function<void()> take() {
    const auto until = Clock::now() + kAwake;
    // Others that want this core get it: after each look at the queue.
    while (waiting_.load(std::memory_order_acquire) == 0 && Clock::now() < until) pause_or_yield();
    std::unique_lock lock(mutex_);
    asleep_ += 1;
    wake_.wait(lock, [this] { return !tasks_.empty(); });
    asleep_ -= 1;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    idle_ -= 1;
    lock.unlock();
    return [this, task = std::move(task)] {
      task();
      std::lock_guard lock(mutex_);
      idle_ += 1;
    };
  }
  static void pause_or_yield() {
    for (int n = 0; n < 16; ++n) pause();
    std::this_thread::yield();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::atomic<int> waiting_{0};  // as many as tasks_ has
  int started_ = 0, idle_ = 0, asleep_ = 0;
};

// Never destroyed: workers use it to the end of the process. A child of a fork has none of its
// parent's threads, and begins anew.
std::atomic<Queue*> queue_of_process{nullptr};

Queue& queue() {
  if (Queue* queue = queue_of_process.load(std::memory_order_acquire)) return *queue;
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { queue_of_process.store(nullptr); });
  static_cast<void>(registered);
  Queue* const made = new Queue;
  Queue* found = nullptr;
  if (queue_of_process.compare_exchange_strong(found, made)) return *made;
  delete made;
  return *found;
}

}  // namespace

int most_workers() {
  static const int most = [] {
    if (const char* given = std::getenv("PRNN_CPU_WORKERS")) return std::atoi(given);
    return usable_cores() - 1;
  }();
  return most;
}

void run_on_worker(std::function<void()> task) { queue().push(std::move(task)); }

}  // namespace prnn
