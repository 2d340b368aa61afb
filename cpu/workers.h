// The engine's own threads. A call of a few steps is over before a sleeping thread is awake; these
// stay awake for a while after each task, and are there when the next call comes.
#pragma once
#include "cpu/threads.h"

namespace prnn {

// How many there may be in this process, beside the callers' own threads: one less than there are
// cores that it may use, all of their time or a part (cpu/quota.h), or what the environment
// variable PRNN_CPU_WORKERS says.
int most_workers();
// Or calls use XLA's pool: where that variable says 0.
bool has_own_threads();

// Has a worker run the task, or, if all are busy, the first that ends what it does. All calls share
// the workers; there is no limit to how long a task may wait, and it may be that it never runs
// (where the system starts no thread, or in a child of a fork). Workers are started when first
// needed, and never end.
void run_on_worker(std::function<void()> task);

// The workers as a call sees them.
class Workers : public ThreadPool {
 public:
  // threads: the caller's included.
  explicit Workers(int threads) : threads_(threads) {}
  int threads() const override { return threads_; }
  void schedule(std::function<void()> task) override { run_on_worker(std::move(task)); }

 private:
  int threads_;
};

}  // namespace prnn
