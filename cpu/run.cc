#include "cpu/run.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/row_norm.h"
#include "cpu/huge_pages.h"
#include "cpu/prepacked.h"
#include "cpu/stages.h"

namespace prnn {
namespace {

constexpr std::int64_t kWidestVector = 16, kAlignment = 128;

std::int64_t state_floats(const Shape& shape) { return shape.batch * shape.groups * shape.hidden; }

// What the second phase of a step reads of the first: of GRU r h, r and z; m forward and the
// gradient of h backward; or, of cells with layer norm, all that a row is made of.
std::int64_t phase_scratch_floats(const Problem& p) {
  const int phases = visit(p.cell, [](auto cell) { return decltype(cell)::kPhases; });
  if (phases == 1) return 0;
  if (numbers(p.cell).normalises) return p.shape.padded_floats(norm_scratch(numbers(p.cell).gates));
  if (!numbers(p.cell).projects) return p.shape.padded_floats(3);
  return p.kind == Kind::kForward ? p.shape.padded_floats(1) : p.shape.of_output().padded_floats(1);
}

// Whether x is multiplied as it is. Unpacked weights multiply floats.
bool keeps_bfloat16(const Blocking& projection) {
  return projection.source != WeightSource::kUnpacked &&
         projection.weights == WeightFormat::kAsGiven &&
         projection.products->of_bfloat16[1][1] != nullptr;
}

// What steps multiply, double-buffered, where that is not y or da_h itself.
std::int64_t multiplied_floats(const Problem& p) {
  const bool is_forward = p.kind == Kind::kForward, is_half = p.dtype != Dtype::kFloat32;
  const bool has_own = is_half || (is_forward && p.forward.controls.mask != nullptr);
  if (!has_own) return 0;
  return 2 * (is_forward ? p.shape.of_output().padded_floats(1)
                         : p.shape.padded_floats(numbers(p.cell).gates));
}

// What passes from step to step.
std::int64_t carried_floats(const Problem& p) {
  if (numbers(p.cell).projects && p.kind == Kind::kBackward)
    return p.shape.padded_floats(1) + p.shape.of_output().padded_floats(1);
  return p.shape.padded_floats(numbers(p.cell).states - (p.kind == Kind::kForward ? 1 : 0));
}

// Words that a group's phase is packed into at most.
std::int64_t packed_words(const Problem& p, std::int64_t units, std::int64_t products,
                          std::int64_t depth) {
  // An instruction set may pack float16 as floats.
  const std::int64_t per_word = p.dtype == Dtype::kBfloat16 ? 2 : 1;
  const std::int64_t padded = ceil_div(units, kWidestVector) * kWidestVector;
  return padded * products * (1 + ceil_div(depth, per_word));
}
// Of a group's matrices, for all phases.
std::int64_t packed_words(const Problem& p) {
  const CellNumbers n = numbers(p.cell);
  const std::int64_t hidden = p.shape.hidden, output = p.shape.output();
  if (n.normalises)  // whose second phase has places, and no weights
    return packed_words(p, hidden, n.gates, hidden) +
           packed_words(p, kRowsOfRound * kWidestVector, 1, 0);
  if (!n.projects) return packed_words(p, hidden, n.gates, hidden);
  if (p.kind == Kind::kForward)
    return packed_words(p, hidden, n.gates, output) + packed_words(p, output, 1, hidden);
  return packed_words(p, output, 1, n.gates * hidden) + packed_words(p, hidden, 1, output);
}

// What the projection makes at a time.
std::int64_t projected_floats(const Problem& p) {
  return most_projection_steps(p) * numbers(p.cell).gates * state_floats(p.shape);
}
// And what that is made of, if it is not x itself: rows of float, or of bfloat16 that end in zeros.
std::int64_t row_floats(const Problem& p, bool keeps_bfloat16) {
  const std::int64_t size = p.projection.input_size;
  return keeps_bfloat16 ? ceil_div(size, kBfloat16Padding) * kBfloat16Padding / 2 : size;
}
std::int64_t widened_floats(const Problem& p) {
  if (!widens(p)) return 0;
  const Shape& shape = p.shape;
  const std::int64_t rows = most_projection_steps(p) * shape.batch * shape.groups;
  const bool may_keep = p.dtype == Dtype::kBfloat16;
  return rows * std::max(row_floats(p, false), may_keep ? row_floats(p, true) : 0);
}

float* aligned(float* p) {
  return reinterpret_cast<float*>(ceil_div(reinterpret_cast<std::intptr_t>(p), kAlignment) *
                                  kAlignment);
}

// Kept for a backward pass, or for the state after a step, per unit and step.
int kept_values(const Problem& p) {
  const CellNumbers n = numbers(p.cell);
  return p.forward.saves_reserve ? n.kept(p.forward.controls.zoneout != nullptr) : n.states - 1;
}

// The large arrays that a call writes whole.
void prepare_results(const Problem& p, const CpuPlan& plan, float* workspace) {
  const CellNumbers n = numbers(p.cell);
  const std::int64_t value = p.dtype == Dtype::kFloat32 ? 4 : 2;
  const std::int64_t sequence = value * p.shape.time * state_floats(p.shape);
  const std::int64_t of_y = value * p.shape.time * state_floats(p.shape.of_output());
  if (plan.blocking.source != WeightSource::kUnpacked)
    prefer_huge_pages(workspace, 4 * workspace_floats(p));
  if (p.kind == Kind::kForward) {
    prefer_huge_pages(p.forward.y, of_y);
    prefer_huge_pages(p.forward.saved, sequence * kept_values(p));
  } else {
    prefer_huge_pages(p.backward.da_x, sequence * n.gates);
    if (!n.same_gradient) prefer_huge_pages(p.backward.da_h, sequence * n.gates);
  }
}

void hand_on_states(const Problem& p) {
  const std::size_t value = p.dtype == Dtype::kFloat32 ? 4 : 2;
  const auto values = [&](int state) {
    return static_cast<std::size_t>(state_floats(state == 0 ? p.shape.of_output() : p.shape));
  };
  const auto copy = [&](int n, void* to, const void* from) {
    std::memcpy(to, from, (n == 0 ? value : sizeof(float)) * values(n));
  };
  const auto clear = [&](int n, float* to) { std::fill_n(to, values(n), 0.0f); };
  const int states = numbers(p.cell).states;
  if (p.kind == Kind::kForward)
    hand_on_states(p.forward, states, copy, clear);
  else
    hand_on_states(p.backward, states, copy, clear);
  if (p.kind == Kind::kBackward && numbers(p.cell).normalises)
    std::fill_n(p.backward.dper_unit, numbers(p.cell).per_unit * state_floats(p.shape), 0.0f);
}

// Whether what a forward pass keeps is more than its threads' caches hold, and lies in whole lines
// of memory that a vector fills: kept past the caches, they need not be read first. Less is in the
// caches still when the backward pass reads it. Figures: docs/tuning.md.
bool stores_non_temporal(const Isa& isa, const Problem& p, const CpuPlan& plan) {
  constexpr std::int64_t kLine = 16;
  const ForwardArrays<void>& forward = p.forward;
  if (p.kind != Kind::kForward || p.dtype != Dtype::kFloat32 || forward.saved == nullptr)
    return false;
  const bool is_whole = isa.width == kLine && p.shape.hidden % kLine == 0 &&
                        reinterpret_cast<std::intptr_t>(forward.saved) % (4 * kLine) == 0;
  const std::int64_t bytes = 4 * p.shape.time * state_floats(p.shape) * kept_values(p);
  return is_whole && bytes > plan.choice.threads * this_machine(isa.width).cache_bytes;
}

// All steps of some rows. With a projection, each chunk of it before the steps it is made for.
void run_rows(const Work& steps, const Work* projection, Part part, std::int64_t count) {
  const std::int64_t at_a_time = projection ? projection->problem.projection.steps : count;
  for (std::int64_t first = 0; first < count; first += at_a_time) {
    if (projection) {
      const Part made{part.first_group,
                      part.last_group,
                      part.first_row * at_a_time,
                      part.last_row * at_a_time,
                      0,
                      projection->blocking.panels[0]};
      projection->widen(made, first / at_a_time);
      steps.isa.advance(projection->problem, projection->blocking, projection->packed, made,
                        first / at_a_time, 0);
    }
    steps.isa.advance_rows(steps.problem, steps.blocking, steps.packed, part, first,
                           std::min(count, first + at_a_time));
  }
}

// All steps, by threads that each take rows through all of them: some rows of a group, or all of
// some groups, one after the other. The weights of these are packed in one place of the thread's,
// which stays in its cache.
void run_batch(const Work& steps, const Work* projection, const Packing& packing, std::int64_t rows,
               std::int64_t count, ThreadPool& pool, int threads) {
  constexpr std::int64_t kTasksEach = 8;  // more than one: threads are not equally fast
  const Shape& shape = steps.problem.shape;
  const std::int64_t slices = ceil_div(shape.batch, rows), all = shape.groups * slices;
  const bool take_turns = slices == 1;
  if (!take_turns) packing.pack_all(pool);
  const std::int64_t tasks = threads == 1 ? 1 : std::min(all, threads * kTasksEach);
  parallel_for(pool, threads, tasks, [&](std::int64_t task) {
    const std::int64_t first = all * task / tasks, end = all * (task + 1) / tasks;
    const Work of_steps = take_turns ? steps.in_place_of(task) : steps;
    std::optional<Work> of_projection;
    if (projection) of_projection.emplace(take_turns ? projection->in_place_of(task) : *projection);
    // One step of unpacked weights asks for no cache: groups take it together.
    const bool are_together = count == 1 && take_turns && steps.is_unpacked() &&
                              (projection == nullptr || projection->is_unpacked());
    if (are_together)
      return run_rows(of_steps, projection ? &*of_projection : nullptr,
                      {first, end, 0, shape.batch, 0, 0}, count);
    for (std::int64_t n = first; n < end; ++n) {
      const std::int64_t group = n / slices, row = n % slices * rows;
      if (take_turns && projection) of_projection->pack_group(group);
      if (take_turns) of_steps.pack_group(group);
      run_rows(of_steps, projection ? &*of_projection : nullptr,
               {group, group + 1, row, std::min(shape.batch, row + rows), 0, 0}, count);
    }
  });
}

// All steps, by threads that share the units of each. One step is too short for a barrier: threads
// are called for each of its stages.
void run_units(const Work& steps, const Work* projection, const Packing& packing,
               std::int64_t count, ThreadPool& pool, int threads) {
  TaskQueue queue(threads);
  if (count > 1) {
    const Stages stages = Stages::of_call(steps, projection, packing, queue, count, threads);
    parallel_steps(pool, threads, stages.count(),
                   [&](std::int64_t n, int thread, int of) { stages.take(n, thread, of); });
    return;
  }
  const Shape& shape = steps.problem.shape;
  packing.pack_all(pool);
  if (projection) projection->widen({0, shape.groups, 0, shape.batch, 0, 0}, 0);
  const Stages stages = Stages::of_one_step(steps, projection, queue);
  for (std::int64_t n = 0; n < stages.count(); ++n)
    parallel_for(pool, threads, threads,
                 [&](std::int64_t thread) { stages.take(n, thread, threads); });
}

}  // namespace

std::int64_t workspace_floats(const Problem& p) {
  constexpr std::int64_t kRoomToAlign = kAlignment / 4;
  const std::int64_t projection =
      projects(p) ? projection_room(p) + projected_floats(p) + widened_floats(p) + 2 * kRoomToAlign
                  : 0;
  return p.shape.groups * packed_words(p) + phase_scratch_floats(p) + multiplied_floats(p) +
         carried_floats(p) + 2 * kRoomToAlign + projection;
}

void run(const Isa& isa, const Problem& problem, ThreadPool& pool, float* workspace) {
  if (state_floats(problem.shape) == 0) return;
  if (problem.shape.time == 0) return hand_on_states(problem);
  run(isa, problem, plan(this_machine(isa.width), isa, problem, pool.threads()), pool, workspace);
}

void run(const Isa& isa, Problem problem, const CpuPlan& plan, ThreadPool& pool, float* workspace) {
  problem.weights = plan.blocking.weights;
  const Shape& shape = problem.shape;
  const bool is_prepacked = plan.blocking.source == WeightSource::kPrepacked;
  float* const packed = aligned(workspace);
  Work steps{isa, problem, plan.blocking, packed};
  Work projection{isa, projection_of(problem), plan.projection, nullptr};
  const Work* const made = projects(problem) ? &projection : nullptr;

  ForwardArrays<void>& forward = steps.problem.forward;
  const std::int64_t own = is_prepacked ? 0 : shape.groups * plan.blocking.group_words;
  float* const phase_scratch = aligned(packed + own);
  float* const multiplied = phase_scratch + phase_scratch_floats(problem);
  float* const carried = multiplied + multiplied_floats(problem);
  forward.phase_scratch = steps.problem.backward.phase_scratch = phase_scratch;
  forward.carried = steps.problem.backward.carried = carried;
  forward.saves_non_temporal = stores_non_temporal(isa, problem, plan);
  if (multiplied_floats(problem) > 0) {
    forward.multiplied = steps.problem.backward.multiplied = multiplied;
    isa.begin(steps.problem, 0, shape.batch);
  }
  if (made) {
    projection.packed = aligned(carried + carried_floats(problem));
    float* const a_x = projection.packed + projection_room(problem);
    projection.problem.projection.a = a_x;
    projection.problem.projection.rows = aligned(a_x + projected_floats(problem));
    const bool keeps = keeps_bfloat16(plan.projection);
    projection.problem.projection.keeps_bfloat16 = keeps;
    projection.problem.projection.row_floats = row_floats(problem, keeps);
    projection.problem.projection.steps = forward.chunk_steps = plan.projection_steps;
    forward.projected_a_x = a_x;
  }
  if (is_prepacked) {
    steps.packed = prepacked_steps(problem);
    projection.packed = prepacked_projection(problem);
  }

  prepare_results(problem, plan, workspace);
  const Packing packing(steps, made, plan.choice.threads);
  const std::int64_t count = shape.time + (problem.kind == Kind::kBackward ? 1 : 0);
  if (plan.choice.partition != Partition::kBatch)
    return run_units(steps, made, packing, count, pool, plan.choice.threads);
  run_batch(steps, made, packing, plan.choice.rows, count, pool, plan.choice.threads);
}

}  // namespace prnn
