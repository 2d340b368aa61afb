// Threads for the engine, of a pool that others use, too. The calling thread always works too,
// and nothing ever waits for a pool task that has not started: a pool with no thread to spare
// costs speed, never progress.
#pragma once
#include <cstdint>
#include <functional>

namespace prnn {

// What a thread does in a loop in which it waits: leaves the core's units to others on it.
void pause();

// The core this thread is on; -1 where the system does not tell.
int current_core();

class ThreadPool {
 public:
  virtual ~ThreadPool() = default;
  virtual int threads() const = 0;  // including the caller's
  virtual void schedule(std::function<void()> task) = 0;
};

// Calls body(0) … body(count - 1), each once, on up to `threads` threads. The n-th of them begins
// with the n-th of so many equal ranges, then helps the others: what one call has left in a core's
// cache is, mostly, what that core takes in the next.
void parallel_for(ThreadPool& pool, int threads, std::int64_t count,
                  const std::function<void(std::int64_t)>& body);

// Calls body(step, thread, threads) for every step in order. Within a step, the threads' calls run
// at the same time; a step begins when all threads have ended the one before. The caller begins
// alone; pool threads take part from the step after they have joined, so that one that never
// does is never waited for.
void parallel_steps(ThreadPool& pool, int threads, std::int64_t steps,
                    const std::function<void(std::int64_t, int, int)>& body);

}  // namespace prnn
