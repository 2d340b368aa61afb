#include "cpu/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace prnn {

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int current_core() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

namespace {

using Clock = std::chrono::steady_clock;

// Spins for about the length of a step, then lets other threads have the core. How long that took,
// but for the first moment: to look at the clock takes as long as a short wait.
template <class Condition>
Clock::duration wait_until(Condition&& condition) {
  constexpr int kMoment = 64, kLongStep = 4000;
  int spins = 0;
  for (; spins < kMoment; ++spins) {
    if (condition()) return {};
    pause();
  }
  const auto begin = Clock::now();
  for (; !condition(); ++spins) {
    if (spins < kLongStep)
      pause();
    else
      std::this_thread::yield();
  }
  return Clock::now() - begin;
}

}  // namespace

void parallel_for(ThreadPool& pool, int threads, std::int64_t count,
                  const std::function<void(std::int64_t)>& body) {
  if (count < threads) threads = static_cast<int>(count);
  if (threads <= 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  struct alignas(128) TaskRange {
    std::atomic<std::int64_t> next;
  };
  struct Shared {  // outlives the call: a task may start after all is done, and then finds no work
    explicit Shared(int threads) : ranges(threads) {}
    std::vector<TaskRange> ranges;
    std::atomic<std::int64_t> done{0};
    std::mutex mutex;
    std::condition_variable all_done;
  };
  auto shared = std::make_shared<Shared>(threads);
  const auto first_of = [=](int range) { return count * range / threads; };
  for (int n = 0; n < threads; ++n) shared->ranges[n].next.store(first_of(n));
  auto work = [=, &body](int me) {
    for (int n = 0; n < threads; ++n) {
      const int range = (me + n) % threads;
      for (std::int64_t i; (i = shared->ranges[range].next.fetch_add(1)) < first_of(range + 1);) {
        body(i);
        if (shared->done.fetch_add(1) + 1 == count) {
          std::lock_guard lock(shared->mutex);
          shared->all_done.notify_all();
        }
      }
    }
  };
  for (int t = 1; t < threads; ++t) pool.schedule([=] { work(t); });
  work(0);
  // What is left is in the hands of others, and mostly nearly done: sleep only if it is not.
  for (int spins = 0; spins < 2000 && shared->done.load() < count; ++spins) pause();
  std::unique_lock lock(shared->mutex);
  shared->all_done.wait(lock, [&] { return shared->done.load() == count; });
}

namespace {

// The barrier of parallel_steps. Thread 0 is the caller.
class Barrier {
 public:
  explicit Barrier(int most) : ended_(most) {}

  // A pool thread asks to take part; -1 if there is no more room, or nothing left to do. A thread
  // that was woken on the caller's core would only take turns with it: it sleeps until the system
  // has found it another, ever longer, for there may be none, and to look takes the caller's time.
  int join() {
    constexpr std::chrono::microseconds kFirstNap{20}, kLongestNap{5000};
    for (auto nap = kFirstNap; core_.load() >= 0 && core_.load() == current_core();
         nap = std::min(2 * nap, kLongestNap)) {
      if (closed_.load()) return -1;
      std::this_thread::sleep_for(nap);
    }
    const int thread = joined_.fetch_add(1) + 1;
    return thread < static_cast<int>(ended_.size()) ? thread : -1;
  }

  // Thread 0: gives the others the time in which a thread that is awake joins.
  void wait_for_joins() {
    constexpr std::chrono::microseconds kAwakeThreads{3};
    const auto until = Clock::now() + kAwakeThreads;
    while (joined_.load() + 1 < static_cast<int>(ended_.size()) && Clock::now() < until) pause();
  }
  // Thread 0, before each step: takes in those who have joined. The announcement of step n + 2
  // overwrites that of step n, which all have read: they ended step n before n + 1 could end.
  int announce(std::int64_t step) {
    const int joined = joined_.load() + 1, most = static_cast<int>(ended_.size());
    const int present = joined < most ? joined : most;
    if (present < most) core_.store(current_core(), std::memory_order_relaxed);
    announced_[step & 1].store(step * kMostThreads + present, std::memory_order_release);
    return present;
  }
  // Any other thread: how many take part in `step`; 0 if the barrier is over.
  int announced(std::int64_t step) {
    std::int64_t value;
    wait_until([&] {
      value = announced_[step & 1].load(std::memory_order_acquire);
      return value >= step * kMostThreads || closed_.load(std::memory_order_acquire);
    });
    return value / kMostThreads == step ? static_cast<int>(value % kMostThreads) : 0;
  }
  // A newcomer's first step: the one whose announcement first counts it in. No later one can be
  // announced before the newcomer says that it is there, with end(first step - 1). -1: none.
  std::int64_t first_step(int thread) {
    std::int64_t first = -1;
    wait_until([&] {
      for (const auto& slot : announced_) {
        const std::int64_t value = slot.load(std::memory_order_acquire);
        if (value >= 0 && value % kMostThreads > thread) first = value / kMostThreads;
      }
      return first >= 0 || closed_.load(std::memory_order_acquire);
    });
    return first;
  }
  void end(std::int64_t step, int thread) {
    ended_[thread].step.store(step, std::memory_order_release);
  }
  // Waits until all of `present` have ended `step`: what they wrote is then visible.
  Clock::duration wait_for_end(std::int64_t step, int present) {
    Clock::duration waited{};
    for (int m = 0; m < present; ++m)
      waited += wait_until([&] { return ended_[m].step.load(std::memory_order_acquire) >= step; });
    return waited;
  }
  void close() { closed_.store(true, std::memory_order_release); }

  static constexpr std::int64_t kMostThreads = 4096;  // less one

 private:
  struct alignas(128) Ended {
    std::atomic<std::int64_t> step{-2};  // not even there
  };
  alignas(128) std::atomic<std::int64_t> announced_[2]{-1, -1};
  alignas(128) std::atomic<int> joined_{0};
  std::atomic<int> core_{-1};
  std::atomic<bool> closed_{false};
  std::vector<Ended> ended_;
};

// Steps shared with a thread that has no core to itself wait for the scheduler, for milliseconds
// where a step takes microseconds. So the caller counts its waiting: once that has cost more than
// its work, all calls go on alone for a while, which is the longer the more often this happens.
class Oversubscription {
 public:
  static bool recent() { return Clock::now().time_since_epoch().count() < until_.load(); }

  // Whether it is oversubscribed.
  bool add(Clock::duration wait) {
    if (wait == Clock::duration{}) return false;
    waited_ += wait;
    const auto now = Clock::now();
    const auto worked = now - begin_ - waited_;
    if (waited_ <= worked + std::chrono::microseconds(500)) return false;
    // Where others had the core for a whole slice of time, waiting is to be a small part of all.
    const auto least = wait < kTimeSlice ? kShortestRest : 4 * wait;
    const auto rest = std::min(std::max(Clock::duration(rest_.load()), least), kLongestRest);
    until_.store((now + rest).time_since_epoch().count());
    rest_.store(std::min(2 * rest, kLongestRest).count());
    return true;
  }
  // A call went well: which may have been by chance, too.
  static void forget() {
    const auto known = Clock::duration(rest_.load());
    if (known > kShortestRest) rest_.store(std::max(known / 2, kShortestRest).count());
  }

 private:
  static constexpr Clock::duration kTimeSlice = std::chrono::milliseconds(3);
  static constexpr Clock::duration kShortestRest = std::chrono::milliseconds(5);
  static constexpr Clock::duration kLongestRest = std::chrono::milliseconds(500);
  const Clock::time_point begin_ = Clock::now();
  Clock::duration waited_{};
  inline static std::atomic<Clock::rep> until_{0}, rest_{kShortestRest.count()};
};

// Steps [first, end), or as many as can be taken before it is oversubscribed. Returns the next.
std::int64_t take_together(ThreadPool& pool, int threads, std::int64_t first, std::int64_t end,
                           const std::function<void(std::int64_t, int, int)>& body) {
  auto barrier = std::make_shared<Barrier>(threads);
  const auto caller = std::this_thread::get_id();
  // `body` is used by present only, and the caller waits for all of those. A pool that has no room
  // for a task, as XLA's, runs it at once: the caller, who would wait for itself.
  for (int t = 1; t < threads; ++t)
    pool.schedule([barrier, caller, &body] {
      if (std::this_thread::get_id() == caller) return;
      const int me = barrier->join();
      if (me < 0) return;
      std::int64_t step = barrier->first_step(me);
      if (step < 0) return;
      barrier->end(step - 1, me);
      for (int present; (present = barrier->announced(step)) > me; ++step) {
        barrier->wait_for_end(step - 1, present);
        body(step, me, present);
        barrier->end(step, me);
      }
    });
  Oversubscription oversubscription;
  barrier->end(first - 1, 0);
  barrier->wait_for_joins();
  std::int64_t step = first;
  int present = 1;
  bool is_oversubscribed = false;
  for (; step < end && !is_oversubscribed; ++step) {
    const bool was_shared = present > 1;
    present = barrier->announce(step);
    const auto waited = barrier->wait_for_end(step - 1, present);
    is_oversubscribed = was_shared && oversubscription.add(waited);
    body(step, 0, present);
    barrier->end(step, 0);
  }
  barrier->wait_for_end(step - 1, present);
  if (!is_oversubscribed) Oversubscription::forget();
  barrier->close();
  return step;
}

}  // namespace

void parallel_steps(ThreadPool& pool, int threads, std::int64_t steps,
                    const std::function<void(std::int64_t, int, int)>& body) {
  threads = std::min(threads, static_cast<int>(Barrier::kMostThreads) - 1);
  for (std::int64_t step = 0; step < steps;) {
    if (threads <= 1 || steps == 1 || Oversubscription::recent())
      body(step++, 0, 1);
    else
      step = take_together(pool, threads, step, steps, body);
  }
}

}  // namespace prnn
