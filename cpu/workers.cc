#include "cpu/workers.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "cpu/environment.h"
#include "cpu/quota.h"

namespace prnn {
namespace {

using Clock = std::chrono::steady_clock;

// How long a worker stays awake. The calls of a streaming model follow each other within some
// 50 µs; to wake a thread costs up to 50 µs on a virtual machine.
constexpr std::chrono::microseconds kAwake{200};

// The cores on which a thread may run. Where the system does not tell, anywhere.
class Cores {
 public:
#if defined(__linux__)
  Cores() {
    known_ = sched_getaffinity(0, sizeof cores_, &cores_) == 0;
    given_ = cores_;
  }
  int count() const { return known_ ? CPU_COUNT(&cores_) : anywhere(); }
  // Has a thread run on the others only, if there are any. Where somebody else has given it other
  // cores meanwhile (taskset, a cpuset), it is on those that it stays.
  void keep_off(pthread_t thread, int core) {
    if (core < 0 || !known_) return;
    const cpu_set_t now = of(thread);
    if (!CPU_EQUAL(&now, &given_)) cores_ = now;
    if (CPU_COUNT(&cores_) < 2) return;
    cpu_set_t others = cores_;
    CPU_CLR(core, &others);
    pthread_setaffinity_np(thread, sizeof others, &others);
    given_ = of(thread);
  }
#else
  int count() const { return anywhere(); }
  void keep_off(pthread_t, int) {}
#endif

 private:
  static int anywhere() { return static_cast<int>(std::thread::hardware_concurrency()); }
#if defined(__linux__)
  // What the system says of a thread; else as it was.
  cpu_set_t of(pthread_t thread) const {
    cpu_set_t out;
    return pthread_getaffinity_np(thread, sizeof out, &out) == 0 ? out : given_;
  }
  cpu_set_t cores_;  // all
  cpu_set_t given_;  // those that keep_off has left
  bool known_;
#endif
};

// A thread of ours, and where it is. The system puts a thread that wakes where its waker is, and
// leaves two on a core for milliseconds while another has nothing to do: the one that waits its
// turn cannot help itself, so the other sends it away.
struct Worker {
  pthread_t thread{};
  Cores cores;
  std::atomic<int> core{-1};  // where it last looked
  int avoided = -1;           // by who gives it something to do, or by itself while it does that
  bool is_idle = true, is_asleep = false;

  void avoid(int other) {
    if (avoided == other) return;
    cores.keep_off(thread, other);
    avoided = other;
  }
  // Of one that is idle: whether it may be next on the core that asks.
  bool may_be_on(int other) const { return is_asleep || core.load() == other; }
};

class Queue {
 public:
  void push(std::function<void()> task) {
    std::unique_lock lock(mutex_);
    if (idle_ <= static_cast<int>(tasks_.size()) && started() < most_workers()) start();
    if (started() == 0) return;
    const int core = current_core();
    if (tasks_.size() >= kMostWaiting) {
      tasks_.pop_front();
      waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
    tasks_.push_back({std::move(task), core});
    for (Worker& worker : workers_)
      if (worker.is_idle && worker.may_be_on(core)) worker.avoid(core);
    waiting_.fetch_add(1, std::memory_order_release);
    const bool all_awake = asleep_ == 0;
    lock.unlock();
    if (!all_awake) wake_.notify_one();
  }

 private:
  // Where one call keeps all workers busy for seconds, the others leave tasks behind that nobody
  // has begun: of more, the oldest are given up.
  static constexpr std::size_t kMostWaiting = 1024;
  struct Task {
    std::function<void()> run;
    int core;  // of the thread that wants it done
  };
  int started() const { return static_cast<int>(workers_.size()); }
  void start() {
    Worker& worker = workers_.emplace_back();
    try {
      std::thread thread([this, &worker] { work(worker); });
      worker.thread = thread.native_handle();
      thread.detach();
      idle_ += 1;
    } catch (const std::system_error&) {  // the call goes on with fewer
      workers_.pop_back();
    }
  }
  [[noreturn]] void work(Worker& worker) {
    for (;;) {
      const Task task = take(worker);
      if (current_core() == task.core) worker.avoid(task.core);
      task.run();
      std::lock_guard lock(mutex_);
      worker.is_idle = true;
      idle_ += 1;
    }
  }
  Task take(Worker& worker) {
    const auto until = Clock::now() + kAwake;
    // Others that want this core get it: after each look at the queue.
    while (waiting_.load(std::memory_order_acquire) == 0 && Clock::now() < until) {
      worker.core.store(current_core(), std::memory_order_relaxed);
      pause_or_yield();
    }
    std::unique_lock lock(mutex_);
    worker.is_asleep = true;
    asleep_ += 1;
    wake_.wait(lock, [this] { return !tasks_.empty(); });
    asleep_ -= 1;
    worker.is_asleep = worker.is_idle = false;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    idle_ -= 1;
    return task;
  }
  static void pause_or_yield() {
    for (int n = 0; n < 16; ++n) pause();
    std::this_thread::yield();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  std::atomic<int> waiting_{0};  // as many as tasks_ has
  std::deque<Worker> workers_;
  int idle_ = 0, asleep_ = 0;
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
    if (const auto given = kWorkers.value()) return static_cast<int>(*given);
    const int cores = Cores().count();
    const double quota = cpu_quota().value_or(cores);
    return static_cast<int>(std::ceil(std::min<double>(quota, cores))) - 1;
  }();
  return most;
}

bool has_own_threads() { return kWorkers.value() != 0; }

void run_on_worker(std::function<void()> task) { queue().push(std::move(task)); }

}  // namespace prnn
