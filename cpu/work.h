// A call's work as its threads share it: what a thread packs, and what it advances in a stage.
#pragma once
#include <algorithm>

#include "cpu/run.h"
#include "cpu/task_queue.h"

namespace prnn {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Whether what a projection multiplies is made of x first: rows of floats, or of bfloat16 that end
// in zeros.
inline bool widens(const Problem& p) { return p.dtype != Dtype::kFloat32; }

// Something to run, and how.
struct Work {
  const Isa& isa;
  Problem problem;
  Blocking blocking;
  float* packed;

  bool is_unpacked() const { return blocking.source == WeightSource::kUnpacked; }
  std::int64_t first_panel(int phase, std::int64_t thread, std::int64_t threads) const {
    return blocking.panels[phase] * thread / threads;
  }
  // In how many tasks each thread packs the panels of a phase and group that it advances: so it has
  // them in its cache. Those of a task are packed together, and there are some tasks at least, for
  // a thread who comes late.
  std::int64_t tasks_each(int phase, std::int64_t threads) const {
    constexpr std::int64_t kEnoughTasks = 4;
    const std::int64_t panels = ceil_div(blocking.panels[phase], threads);
    return std::min(panels, std::max(kEnoughTasks, ceil_div(panels, kPackedTogether)));
  }
  std::int64_t packed_each(std::int64_t threads) const {
    if (blocking.source != WeightSource::kPacked) return 0;
    return problem.shape.groups * (tasks_each(0, threads) + tasks_each(1, threads));
  }
  // Packs the n-th of a thread's tasks.
  void pack(std::int64_t n, std::int64_t thread, std::int64_t threads) const {
    const std::int64_t of_phase_0 = problem.shape.groups * tasks_each(0, threads);
    const int phase = n < of_phase_0 ? 0 : 1;
    if (phase == 1) n -= of_phase_0;
    const std::int64_t tasks = tasks_each(phase, threads), group = n / tasks, task = n % tasks;
    const std::int64_t first = first_panel(phase, thread, threads);
    const std::int64_t count = first_panel(phase, thread + 1, threads) - first;
    const Part part{
        group, group + 1, 0, 0, first + count * task / tasks, first + count * (task + 1) / tasks};
    isa.pack(problem, blocking, part, phase, packed);
  }
  // The same for groups that take turns in one place, that of the n-th: from a group's weights, or
  // sums, to the next one's it is no word.
  Work in_place_of(std::int64_t n) const {
    Work out = *this;
    if (blocking.source == WeightSource::kPrepacked) return out;
    out.packed += n * blocking.group_words;
    out.blocking.group_words = 0;
    return out;
  }
  // Packs all weights of a group.
  void pack_group(std::int64_t group) const {
    if (blocking.source != WeightSource::kPacked) return;
    for (int phase = 0; phase < blocking.phases; ++phase)
      isa.pack(problem, blocking, {group, group + 1, 0, 0, 0, blocking.panels[phase]}, phase,
               packed);
  }
  // Of a projection: what rows multiply in a chunk, if they cannot as it is.
  void widen(const Part& part, std::int64_t chunk) const {
    if (widens(problem)) isa.widen(problem, part, chunk);
  }
  // The share of one of those who divide the columns of a phase's products among them.
  void multiply_columns(std::int64_t step, int phase, std::int64_t rows, std::int64_t thread,
                        std::int64_t threads) const {
    const std::int64_t all = blocking.columns[phase];
    const Part part{0,    problem.shape.groups,   0,
                    rows, all * thread / threads, all * (thread + 1) / threads};
    isa.multiply_columns(problem, blocking, packed, part, step, phase);
  }
  // Or the units, in tasks that other threads may take.
  void advance(std::int64_t step, int phase, std::int64_t rows, std::int64_t thread,
               std::int64_t threads, TaskQueue& queue, std::int64_t stage) const {
    float* place = packed;
    if (blocking.source == WeightSource::kPackedPerPanel) {
      if (thread >= blocking.panel_buffers) return;
      threads = std::min(threads, blocking.panel_buffers);
      place += thread * blocking.panel_words;
    }
    const std::int64_t tasks = tasks_of_stage(phase, rows, threads);
    const auto run_task = [&](std::int64_t owner, std::int64_t task) {
      if (step % 2 != 0) task = tasks - 1 - task;
      const std::int64_t first = first_panel(phase, owner, threads);
      const std::int64_t count = first_panel(phase, owner + 1, threads) - first;
      advance_panels(step, phase, rows, first + count * task / tasks,
                     first + count * (task + 1) / tasks, place);
    };
    if (tasks == 1) return run_task(thread, 0);
    queue.take(stage, thread, threads, tasks, run_task);
  }
  // So many that one is worth the trouble.
  std::int64_t tasks_of_stage(int phase, std::int64_t rows, std::int64_t threads) const {
    constexpr std::int64_t kMostTasks = 8, kWorthTaking = 1 << 20;
    if (is_unpacked()) return 1;
    const std::int64_t weights = blocking.group_words * blocking.weights_per_word;
    const std::int64_t work = weights * problem.shape.groups * rows / threads / blocking.phases;
    const std::int64_t most = std::min(kMostTasks, blocking.panels[phase] / threads);
    return std::clamp<std::int64_t>(work / kWorthTaking, 1, std::max<std::int64_t>(most, 1));
  }
  void advance_panels(std::int64_t step, int phase, std::int64_t rows, std::int64_t first,
                      std::int64_t last, float* weights) const {
    const Part part{0, problem.shape.groups, 0, rows, first, last};
    isa.advance(problem, blocking, weights, part, step, phase);
  }
};

// Packs what a number of threads will use, and each what it will use itself.
class Packing {
 public:
  Packing(const Work& steps, const Work* projection, std::int64_t threads)
      : steps_(steps), projection_(projection), threads_(threads) {
    of_steps_ = steps.packed_each(threads);
    each_ = of_steps_ + (projection ? projection->packed_each(threads) : 0);
  }
  std::int64_t each() const { return each_; }
  // The n-th of a thread's tasks.
  void pack(std::int64_t n, std::int64_t thread) const {
    n < of_steps_ ? steps_.pack(n, thread, threads_)
                  : projection_->pack(n - of_steps_, thread, threads_);
  }
  void pack_all(ThreadPool& pool) const {
    parallel_for(pool, static_cast<int>(threads_), each_ * threads_,
                 [&](std::int64_t i) { pack(i % each_, i / each_); });
  }

 private:
  const Work& steps_;
  const Work* projection_;
  std::int64_t threads_, of_steps_, each_;
};

}  // namespace prnn
