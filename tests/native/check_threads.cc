// Checks cpu/threads.cc: every unit of every step is done once, after the whole step before, on a
// pool whose threads come late, are slow, or never come. Exits with 1 and a line on a failure.
// Run under ThreadSanitizer by tests/test_native.py.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "cpu/threads.h"

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
void steps(int threads, int units, int count, int delay_us, int unit_us, int member_delay_us) {
  LateThreads pool(threads, delay_us);
  std::vector<std::vector<long long>> value(count + 1, std::vector<long long>(units, 1));
  for (int s = 1; s <= count; ++s) value[s].assign(units, -1);
  prnn::parallel_steps(pool, threads, count, [&](std::int64_t s, int member, int members) {
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

void loop(int threads, int count, int delay_us) {
  LateThreads pool(threads, delay_us);
  std::vector<int> times(count, 0);
  prnn::parallel_for(pool, threads, count, [&](std::int64_t i) { ++times[i]; });
  for (int i = 0; i < count; ++i)
    if (times[i] != 1) fail("parallel_for did not call each index once", i);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  for (int round = 0; round < rounds; ++round)
    for (int threads : {1, 2, 3, 8})
      for (int delay_us : {0, 50, 400}) {
        steps(threads, 24, 100, delay_us, 3, 0);
        steps(threads, 24, 60, delay_us, 1, round % 4 == 0 ? 900 : 0);  // crowded: goes on alone
        std::this_thread::sleep_for(std::chrono::milliseconds(6));      // and forgets it again
        steps(threads, 3, 2, delay_us, 1, 0);
        steps(threads, 3, 40, delay_us, 0, 0);
        for (int n = 0; n < 20; ++n) steps(threads, 2, 3, n, 5, 0);  // who comes at the first step
        loop(threads, 1 + round, delay_us);
      }
  std::printf("ok\n");
}
