// Checks cpu/threads.cc: every unit of every step is done once, after the whole step before, on a
// pool whose threads come late, are slow, or never come, and on the workers of cpu/workers.cc,
// which many callers share. Exits with 1 and a line on a failure. Run under sanitizers by
// tests/test_native.py; with "fork", in children of a process, before it has workers and after.
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cpu/workers.h"

namespace {

// Starts each task on a thread of its own, after a while.
class LateThreads : public prnn::ThreadPool {
 public:
  LateThreads(int threads, int most_delay_us) : threads_(threads), most_delay_us_(most_delay_us) {}
  ~LateThreads() override {
    for (auto& t : running_) t.join();
  }
  int threads() const override { return threads_; }
  void schedule(std::function<void()> task) override {
    const int delay = static_cast<int>(random_() % (most_delay_us_ + 1));
    running_.emplace_back([task = std::move(task), delay] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      task();
    });
  }

 private:
  int threads_, most_delay_us_;
  std::mt19937 random_{7};
  std::vector<std::thread> running_;
};

void fail(const char* what, long long step) {
  std::printf("FAILED: %s at step %lld\n", what, step);
  std::exit(1);
}

void busy(int us) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
  while (std::chrono::steady_clock::now() < end) {
  }
}

// A recurrence in which each unit of a step reads all units of the step before.
void steps(prnn::ThreadPool& pool, int units, int count, int unit_us, int member_delay_us) {
  std::vector<std::vector<long long>> value(count + 1, std::vector<long long>(units, 1));
  for (int s = 1; s <= count; ++s) value[s].assign(units, -1);
  prnn::parallel_steps(pool, pool.threads(), count, [&](std::int64_t s, int member, int members) {
    if (member > 0 && member_delay_us > 0 && s % 7 == 3)
      std::this_thread::sleep_for(std::chrono::microseconds(member_delay_us));
    const int first = units * member / members, last = units * (member + 1) / members;
    for (int u = first; u < last; ++u) {
      busy(unit_us);
      long long sum = 0;
      for (int k = 0; k < units; ++k) {
        if (value[s][k] < 0) fail("a unit was read before it was written", s);
        sum += value[s][k];
      }
      if (value[s + 1][u] != -1) fail("a unit was written twice", s);
      value[s + 1][u] = (sum + u) % 1000003;
    }
  });
  for (int s = 0; s < count; ++s) {
    long long sum = 0;
    for (long long v : value[s]) sum += v;
    for (int u = 0; u < units; ++u)
      if (value[s + 1][u] != (sum + u) % 1000003) fail("a wrong value", s);
  }
}

void loop(prnn::ThreadPool& pool, int count) {
  std::vector<int> times(count, 0);
  prnn::parallel_for(pool, pool.threads(), count, [&](std::int64_t i) { ++times[i]; });
  for (int i = 0; i < count; ++i)
    if (times[i] != 1) fail("parallel_for did not call each index once", i);
}

// The same, on other cores than the caller's: nobody takes part on that one, on which the system
// may leave a thread for long if all others have something else to do.
class ThreadsElsewhere : public LateThreads {
 public:
  explicit ThreadsElsewhere(int threads) : LateThreads(threads, 0) {
    sched_getaffinity(0, sizeof all_, &all_);
    others_ = all_;
    const int here = sched_getcpu();
    CPU_CLR(here, &others_);
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(here, &own);
    if (are_there()) sched_setaffinity(0, sizeof own, &own);
  }
  ~ThreadsElsewhere() override { sched_setaffinity(0, sizeof all_, &all_); }
  bool are_there() const { return CPU_COUNT(&others_) > 0; }
  void schedule(std::function<void()> task) override {
    LateThreads::schedule([task = std::move(task), others = others_] {
      sched_setaffinity(0, sizeof others, &others);
      task();
    });
  }

 private:
  cpu_set_t all_, others_;
};

// Members who hold the others up are sent away, but not for good.
void comes_back(int threads) {
  enum { kTogether, kHeldUp, kAlone, kBack };
  std::atomic<int> state{kTogether};
  ThreadsElsewhere pool(threads);
  if (!pool.are_there()) return;
  const auto nap = [](int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); };
  prnn::parallel_steps(pool, threads, 1 << 16, [&](std::int64_t, int member, int members) {
    const int now = state.load();
    if (now == kBack) return;
    if (member > 0) return nap(now == kAlone ? 0 : 2000);
    if (now == kTogether && members > 1) state = kHeldUp;
    if (now == kHeldUp && members == 1) state = kAlone;
    if (now == kAlone && members > 1) state = kBack;
    nap(100);
  });
  if (state != kBack) fail("nobody came back", state);
}

// Runs each task at once, as a pool does that has no room for more.
class CallersThread : public prnn::ThreadPool {
 public:
  int threads() const override { return 4; }
  void schedule(std::function<void()> task) override { task(); }
};

void on_the_callers_thread() {
  CallersThread pool;
  loop(pool, 9);
  steps(pool, 12, 30, 0, 0);
}

// Threads that have no other core than the caller's ask seldom whether they have one.
void on_one_core() {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof all, &all);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
  std::atomic<long> most_naps{0};
  class ThreadsHere : public LateThreads {
   public:
    explicit ThreadsHere(std::atomic<long>& most_naps) : LateThreads(5, 0), naps_(most_naps) {}
    void schedule(std::function<void()> task) override {
      LateThreads::schedule([task = std::move(task), &naps = naps_] {
        task();
        rusage of{};
        getrusage(RUSAGE_THREAD, &of);
        long seen = naps;
        while (of.ru_nvcsw > seen && !naps.compare_exchange_weak(seen, of.ru_nvcsw)) {
        }
      });
    }

   private:
    std::atomic<long>& naps_;
  };
  const auto begin = std::chrono::steady_clock::now();
  {
    ThreadsHere pool(most_naps);
    prnn::parallel_steps(pool, 5, 40, [](std::int64_t, int, int) { busy(1000); });
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  if (most_naps > 20 + took.count() / 2)  // one in 5 ms, of which the first are shorter
    fail("a thread without a core of its own is awake too often", most_naps);
  sched_setaffinity(0, sizeof all, &all);
}

void on_late_threads(int threads, int delay_us, int round) {
  const auto late_steps = [&](int units, int count, int delay_us, int unit_us,
                              int member_delay_us) {
    LateThreads pool(threads, delay_us);
    steps(pool, units, count, unit_us, member_delay_us);
  };
  late_steps(24, 100, delay_us, 3, 0);
  late_steps(24, 60, delay_us, 1, round % 4 == 0 ? 900 : 0);  // oversubscribed: some steps alone
  std::this_thread::sleep_for(std::chrono::milliseconds(6));  // and forgets it again
  late_steps(3, 2, delay_us, 1, 0);
  late_steps(3, 40, delay_us, 0, 0);
  for (int n = 0; n < 20; ++n) late_steps(2, 3, n, 5, 0);  // who comes at the first step
  LateThreads pool(threads, delay_us);
  loop(pool, 1 + round);
}

// Some callers at once, who want more threads than there are workers.
void on_workers(int callers) {
  std::vector<std::thread> running;
  for (int n = 0; n < callers; ++n)
    running.emplace_back([n] {
      prnn::Workers pool(2 + n);
      for (int count : {1, 2, 30}) {
        loop(pool, count);
        steps(pool, 12, count, 2, 0);
      }
      // Longer than workers stay awake.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      loop(pool, 5);
    });
  for (auto& caller : running) caller.join();
}

// One that is started later may run on the cores that its caller then may, and on no other.
void start_all_workers() {
  std::atomic<int> running{0};
  const int all = prnn::most_workers();
  for (int n = 0; n < all; ++n)
    prnn::run_on_worker([&running, all] {
      running += 1;
      while (running.load() < all) std::this_thread::yield();
      running += 1;
    });
  while (running.load() < 2 * all) std::this_thread::yield();
}

// A worker that is awake on the core that its next caller is on runs on another.
void on_other_cores() {
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  if (CPU_COUNT(&all) < 2 || prnn::most_workers() < 1) return;
  start_all_workers();
  for (int n = 0; n < 200; ++n) {
    std::atomic<int> core{-1};
    prnn::run_on_worker([&] { core = sched_getcpu(); });
    while (core.load() < 0) {
    }
    cpu_set_t one;  // the worker's, which now waits for more
    CPU_ZERO(&one);
    CPU_SET(core.load(), &one);
    sched_setaffinity(0, sizeof one, &one);
    const int here = core.exchange(-1);
    prnn::run_on_worker([&] { core = sched_getcpu(); });
    while (core.load() < 0) {
    }
    if (core.load() == here) fail("a worker ran where its caller was", n);
    sched_setaffinity(0, sizeof all, &all);
  }
}

// What calls leave behind while all workers are busy does not grow without end.
void behind_a_long_call() {
  std::atomic<int> begun{0};
  std::atomic<bool> is_over{false};
  const int all = prnn::most_workers();
  for (int n = 0; n < all; ++n)
    prnn::run_on_worker([&] {
      begun += 1;
      while (!is_over.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      begun -= 1;
    });
  while (begun.load() < all) std::this_thread::yield();
  constexpr int kTasks = 20000;
  const auto kept = std::make_shared<int>();
  for (int n = 0; n < kTasks; ++n) prnn::run_on_worker([kept] {});
  if (kept.use_count() > kTasks / 10) fail("workers keep too many tasks", kept.use_count());
  is_over = true;
  while (kept.use_count() > 1 || begun.load() > 0) std::this_thread::yield();
}

// The exit status of a child that does this; 0 is well.
template <class F>
int in_a_child(F&& what) {
  const pid_t child = fork();
  if (child == 0) {
    what();
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  return status;
}

// Of a worker that somebody else puts on one core, where its caller is, too: it stays there.
void stays_where_it_is_put() {
  std::atomic<int> id{0};
  prnn::run_on_worker([&] { id = gettid(); });
  while (id.load() == 0) std::this_thread::yield();
  cpu_set_t one, now;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
  sched_getaffinity(id.load(), sizeof now, &now);
  if (CPU_EQUAL(&one, &now)) return;  // it has put itself there: nobody can tell
  sched_setaffinity(id.load(), sizeof one, &one);
  for (int n = 0; n < 20; ++n) {
    std::atomic<bool> done{false};
    prnn::run_on_worker([&] { done = true; });
    while (!done.load()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(n % 2 == 0 ? 0 : 500));
  }
  sched_getaffinity(id.load(), sizeof now, &now);
  if (!CPU_EQUAL(&one, &now)) fail("a worker left the core it was put on", 0);
}

void with_forks() {
  // Of a process without workers: each child's are new.
  for (int n = 0; n < 20; ++n)
    if (in_a_child(stays_where_it_is_put) != 0) fail("a child with cores of its own", n);
  on_workers(1);
  if (in_a_child([] { on_workers(2); }) != 0) fail("a child of a fork", 0);
  on_workers(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "fork") == 0) {
    with_forks();
    std::printf("ok\n");
    return 0;
  }
  on_other_cores();
  on_the_callers_thread();
  on_one_core();
  behind_a_long_call();
  for (int threads : {2, 3}) comes_back(threads);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  for (int round = 0; round < rounds; ++round) {
    for (int callers : {1, 2, 5}) on_workers(callers);
    for (int threads : {1, 2, 3, 8})
      for (int delay_us : {0, 50, 400}) on_late_threads(threads, delay_us, round);
  }
  std::printf("ok\n");
}
