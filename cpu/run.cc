#include "cpu/run.h"

#include <algorithm>

#include "cpu/huge_pages.h"

namespace prnn {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int64_t kWidestVector = 16, kAlignment = 64;

const Products* products_of(const Isa& isa, Dtype weights) {
  switch (weights) {
    case Dtype::kFloat32:
      return isa.float32;
    case Dtype::kBfloat16:
      return isa.bfloat16;
    case Dtype::kFloat16:
      return isa.float16;
  }
  __builtin_unreachable();
}

std::int64_t state_floats(const Shape& shape) { return shape.batch * shape.groups * shape.hidden; }

std::int64_t between_floats(const Problem& p) {
  const int phases = visit(p.cell, [](auto cell) { return decltype(cell)::kPhases; });
  return phases == 1 ? 0 : 3 * state_floats(p.shape);
}

// By turns, what steps multiply, where that is not y or da_h itself.
std::int64_t multiplied_floats(const Problem& p) {
  const bool is_forward = p.kind == Kind::kForward, is_half = p.dtype != Dtype::kFloat32;
  const bool has_own = is_half || (is_forward && p.forward.controls.change_product_input());
  if (!has_own) return 0;
  return 2 * (is_forward ? 1 : numbers(p.cell).gates) * state_floats(p.shape);
}

// What passes from step to step, where the results are no place for it.
std::int64_t carry_floats(const Problem& p) {
  if (p.dtype == Dtype::kFloat32) return 0;
  return (numbers(p.cell).states - (p.kind == Kind::kForward ? 1 : 0)) * state_floats(p.shape);
}

std::int64_t padded_units(const Problem& p) {
  return ceil_div(p.shape.hidden, kWidestVector) * kWidestVector;
}

// The packed weights of the projection, and what it makes at a time.
std::int64_t projection_weights(const Problem& p) {
  const std::int64_t columns = numbers(p.cell).gates * padded_units(p);
  return p.shape.groups * columns * (1 + p.projection.input_size);
}
std::int64_t projected_floats(const Problem& p) {
  return most_projection_steps(p.shape) * numbers(p.cell).gates * state_floats(p.shape);
}
// And what that is made of, if it has to be widened.
bool widens(const Problem& p) { return p.dtype != Dtype::kFloat32; }
std::int64_t widened_floats(const Problem& p) {
  const Shape& shape = p.shape;
  const std::int64_t rows = most_projection_steps(shape) * shape.batch * shape.groups;
  return widens(p) ? rows * p.projection.input_size : 0;
}

float* aligned(float* p) {
  return reinterpret_cast<float*>(ceil_div(reinterpret_cast<std::intptr_t>(p), kAlignment) *
                                  kAlignment);
}

// The large arrays that a call writes whole.
void prepare_results(const Problem& p, const CpuPlan& plan, float* workspace) {
  const CellNumbers n = numbers(p.cell);
  const std::int64_t value = p.dtype == Dtype::kFloat32 ? 4 : 2;
  const std::int64_t sequence = value * p.shape.time * state_floats(p.shape);
  if (!plan.blocking.in_place) prefer_huge_pages(workspace, 4 * workspace_floats(p));
  if (p.kind == Kind::kForward) {
    prefer_huge_pages(p.forward.y, sequence);
    const int kept = p.forward.saves_reserve ? n.saved : n.states - 1;
    prefer_huge_pages(p.forward.saved, sequence * kept);
  } else {
    prefer_huge_pages(p.backward.da_x, sequence * n.gates);
    if (!n.same_gradient) prefer_huge_pages(p.backward.da_h, sequence * n.gates);
  }
}

// Something to run, and how.
struct Work {
  const Isa& isa;
  Problem problem;
  Blocking blocking;
  float* packed;

  std::int64_t panels() const {
    return problem.shape.groups * (blocking.panels[0] + blocking.panels[1]);
  }
  void pack(std::int64_t panel) const { isa.pack(problem, blocking, panel, packed); }
  // Of a projection: what rows multiply in a piece, if they cannot as it is.
  void widen(const Part& part, std::int64_t piece) const {
    if (widens(problem)) isa.widen(problem, part, piece);
  }
  // The share of one of those who divide the units of a phase among them.
  void advance(std::int64_t step, int phase, std::int64_t rows, std::int64_t member,
               std::int64_t members) const {
    const std::int64_t panels = blocking.panels[phase], first = panels * member / members;
    const Part part{0, problem.shape.groups, 0, rows, first, panels * (member + 1) / members};
    isa.advance(problem, blocking, packed, part, step, phase);
  }
};

// All steps of some rows. With a projection, each piece of it before the steps it is made for.
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

// All steps, by threads that share the units of each.
void run_units(const Work& steps, const Work* projection, std::int64_t count, ThreadPool& pool,
               int threads) {
  const std::int64_t rows = steps.problem.shape.batch, phases = steps.blocking.phases;
  const std::int64_t at_a_time = projection ? projection->problem.projection.steps : count;
  const auto project = [&](std::int64_t piece, std::int64_t member, std::int64_t members) {
    projection->advance(piece, 0, rows * at_a_time, member, members);
  };
  const auto widen = [&](std::int64_t piece, std::int64_t member, std::int64_t members) {
    const std::int64_t all = rows * at_a_time, first = all * member / members;
    const std::int64_t end = all * (member + 1) / members;
    projection->widen({0, steps.problem.shape.groups, first, end, 0, 0}, piece);
  };
  const bool is_short = count == 1;  // too short for a meeting
  // What a thread makes of the one step's a_x is what it needs.
  const bool in_one =
      is_short && projection && projection->blocking.in_place && steps.blocking.in_place;
  if (projection) widen(0, 0, 1);
  if (projection && !in_one) {  // the first piece without a meeting: who comes late finds work
    const std::int64_t parts = projection->blocking.in_place ? threads : projection->panels();
    parallel_for(pool, threads, parts, [&](std::int64_t n) { project(0, n, parts); });
  }
  // From here on, what is done in turn: the phases of all steps of a piece, then the next piece, in
  // one turn or two.
  const std::int64_t of_projection = !projection ? 0 : widens(projection->problem) ? 2 : 1;
  const std::int64_t turns = at_a_time * phases + of_projection;
  const auto take_turn = [&](std::int64_t n, std::int64_t member, std::int64_t members) {
    const std::int64_t piece = n / turns, turn = n % turns;
    if (turn == turns - 1 && projection) return project(piece + 1, member, members);
    if (turn == at_a_time * phases) return widen(piece + 1, member, members);
    steps.advance(piece * at_a_time + turn / phases, static_cast<int>(turn % phases), rows, member,
                  members);
  };
  const std::int64_t last_piece = (count - 1) / at_a_time;
  const std::int64_t all = count * phases + last_piece * of_projection;
  if (!is_short) return parallel_steps(pool, threads, all, take_turn);
  for (std::int64_t n = 0; n < all; ++n)
    parallel_for(pool, threads, threads, [&](std::int64_t member) {
      if (in_one && n == 0) project(0, member, threads);
      take_turn(n, member, threads);
    });
}

}  // namespace

std::int64_t workspace_floats(const Problem& p) {
  constexpr std::int64_t kRoomToAlign = kAlignment / 4;
  // An instruction set may pack float16 as floats.
  const std::int64_t per_word = p.dtype == Dtype::kBfloat16 ? 2 : 1;
  const std::int64_t lines = numbers(p.cell).gates * (1 + ceil_div(p.shape.hidden, per_word));
  const std::int64_t projection =
      projects(p) ? projection_weights(p) + projected_floats(p) + widened_floats(p) + kRoomToAlign
                  : 0;
  return p.shape.groups * lines * padded_units(p) + between_floats(p) + multiplied_floats(p) +
         carry_floats(p) + kRoomToAlign + projection;
}

void run(const Isa& isa, Problem problem, ThreadPool& pool, float* workspace) {
  const Shape& shape = problem.shape;
  const CpuPlan plan = prnn::plan(isa, problem, pool.threads());
  Work steps{isa, problem, plan.blocking, aligned(workspace)};
  steps.blocking.products = products_of(isa, problem.dtype);
  Work projection{isa, projection_of(problem), plan.projection, nullptr};
  projection.blocking.products = steps.blocking.products;
  const Work* const made = projects(problem) ? &projection : nullptr;

  ForwardArrays<void>& forward = steps.problem.forward;
  float* const between = steps.packed + shape.groups * plan.blocking.group_words;
  float* const multiplied = between + between_floats(problem);
  float* const carry = multiplied + multiplied_floats(problem);
  forward.between = between;
  forward.carry = steps.problem.backward.carry = carry;
  if (multiplied_floats(problem) > 0) {
    forward.multiplied = steps.problem.backward.multiplied = multiplied;
    isa.begin(steps.problem, 0, shape.batch);
  }
  if (made) {
    projection.packed = aligned(carry + carry_floats(problem));
    float* const a_x = projection.packed + projection_weights(problem);
    projection.problem.projection.a = a_x;
    projection.problem.projection.rows = a_x + projected_floats(problem);
    projection.problem.projection.steps = forward.made_steps = plan.projection_steps;
    forward.made_a_x = a_x;
  }

  prepare_results(problem, plan, workspace);
  const std::int64_t of_steps = plan.blocking.in_place ? 0 : steps.panels();
  const std::int64_t of_projection = !made || plan.projection.in_place ? 0 : projection.panels();
  parallel_for(pool, plan.threads, of_steps + of_projection, [&](std::int64_t i) {
    i < of_steps ? steps.pack(i) : projection.pack(i - of_steps);
  });

  const std::int64_t count = shape.time + (problem.kind == Kind::kBackward ? 1 : 0);
  if (plan.split == Split::kUnits) return run_units(steps, made, count, pool, plan.threads);
  const std::int64_t slices = ceil_div(shape.batch, plan.rows_per_part);
  parallel_for(pool, plan.threads, shape.groups * slices, [&](std::int64_t i) {
    const std::int64_t group = i / slices, row = i % slices * plan.rows_per_part;
    const std::int64_t end = std::min(shape.batch, row + plan.rows_per_part);
    run_rows(steps, made, {group, group + 1, row, end, 0, 0}, count);
  });
}

}  // namespace prnn
