#include "cpu/run.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace prnn {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The second-level cache, which a core has for itself on every processor we know. The environment
// variable PRNN_CPU_CACHE_BYTES overrides what the system says.
std::int64_t cache_bytes_per_thread() {
  static const std::int64_t bytes = [] {
    if (const char* given = std::getenv("PRNN_CPU_CACHE_BYTES"))
      if (const std::int64_t bytes = std::atoll(given); bytes > 0) return bytes;
#ifdef _SC_LEVEL2_CACHE_SIZE
    const long size = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (size > 0) return static_cast<std::int64_t>(size);
#endif
    return std::int64_t{1} << 20;
  }();
  return bytes;
}

// A part of at least this many multiply-adds is worth a meeting of threads after each step. Where
// one thread does as well as two, measured on two cores of a Zen 5: RNN 256 and LSTM 110 at
// batch 1.
constexpr double kWorthMeeting = 30e3;

// Rows by threads need so many in each: fewer are multiplied at up to a third less speed (measured
// on two cores of a Xeon). Parts of a step below so many multiply-adds are too short for that to
// matter.
constexpr std::int64_t kEnoughRows = 4;
constexpr double kWorthMeetingForRows = 60e3;

// And of at least this many, worth waking a thread for (some 10 µs).
constexpr double kWorthSharing = 1e6;

// Up to so many steps, and products of up to so many rows, use the weights as they lie in memory:
// packing would cost more.
constexpr std::int64_t kInPlaceSteps = 4, kInPlaceProducts = 16;

// Whether a call is to use them so, and has room for the sums where it would have packed them.
bool runs_in_place(const Isa& isa, const Problem& problem, const Blocking& whole) {
  const Shape& shape = problem.shape;
  if (problem.kind == Kind::kBackward) return false;
  const bool is_projection = problem.kind == Kind::kProjection;
  if (shape.time > kInPlaceSteps) return false;
  if (shape.batch > (is_projection ? kInPlaceProducts : kInPlaceRows)) return false;
  const int products = is_projection ? 1 : numbers(problem.cell).gates;
  const std::int64_t units = ceil_div(shape.hidden, isa.width) * isa.width;
  return whole.group_words >= 2 * kInPlaceRows * products * units;
}

Blocking blocking_in_place(const Isa& isa, const Problem& problem, Blocking blocking) {
  blocking.in_place = true;
  blocking.rows = kInPlaceRows;
  for (int phase = 0; phase < blocking.phases; ++phase) {
    blocking.vectors[phase] = 1;
    blocking.panels[phase] = ceil_div(problem.shape.hidden, isa.width);
  }
  return blocking;
}

}  // namespace

CpuPlan plan(const Isa& isa, const Problem& problem, int threads) {
  const Shape& shape = problem.shape;
  CpuPlan out{};
  out.cache_bytes = cache_bytes_per_thread();
  const Blocking whole = isa.block(problem, shape.batch, threads);
  out.weight_bytes = whole.group_words * 4;
  const double work =
      static_cast<double>(whole.group_words) * whole.weights_per_word * shape.groups * shape.batch;

  // Rows need no meeting, but every thread reads all weights: right where they stay in its cache.
  const bool weights_stay = out.weight_bytes <= out.cache_bytes * 3 / 4;
  const std::int64_t parts_per_group = std::min(shape.batch, ceil_div(threads, shape.groups));
  const std::int64_t rows_per_part =
      ceil_div(shape.batch, std::max<std::int64_t>(parts_per_group, 1));
  const bool enough_rows = shape.groups * shape.batch >= threads &&
                           (parts_per_group <= 1 || rows_per_part >= kEnoughRows ||
                            work / threads < kWorthMeetingForRows);
  const bool worth_meeting = work / threads >= kWorthMeeting;
  if (runs_in_place(isa, problem, whole)) {
    const double worth = shape.time == 1 ? kWorthSharing : kWorthMeeting;
    out.split = Split::kUnits;
    out.threads = work / threads >= worth ? threads : 1;
    out.rows_per_part = shape.batch;
    out.blocking = blocking_in_place(isa, problem, whole);
    return out;
  }
  if (problem.kind == Kind::kProjection) {
    // Parts whose rows stay in half the cache while all weights pass by, and enough of them that
    // a thread which comes late finds work.
    const std::int64_t row_bytes = 4 * std::max<std::int64_t>(problem.projection.input_size, 1);
    const std::int64_t that_stay = std::max<std::int64_t>(out.cache_bytes / 2 / row_bytes, 8);
    const std::int64_t rows = std::min(that_stay, ceil_div(shape.batch, 4 * threads));
    out.rows_per_part = ceil_div(rows, whole.rows) * whole.rows;
    out.threads = work / threads < kWorthSharing ? 1 : threads;
    out.blocking = isa.block(problem, out.rows_per_part, 1);
    return out;
  }
  if (threads > 1 && worth_meeting && !(weights_stay && enough_rows)) {
    out.split = Split::kUnits;
    out.threads = threads;
    out.rows_per_part = shape.batch;
    out.blocking = whole;
    return out;
  }
  out.split = Split::kRows;
  out.rows_per_part = rows_per_part;
  const std::int64_t parts = shape.groups * ceil_div(shape.batch, out.rows_per_part);
  out.threads = static_cast<int>(std::min<std::int64_t>(threads, parts));
  out.blocking = isa.block(problem, out.rows_per_part, 1);
  return out;
}

namespace {

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

}  // namespace

std::int64_t workspace_floats(const Problem& p) {
  if (p.kind == Kind::kProjection)
    return ceil_div(p.shape.hidden, kWidestVector) * kWidestVector * (1 + p.projection.input_size) +
           kAlignment / 4;
  const std::int64_t units = ceil_div(p.shape.hidden, kWidestVector) * kWidestVector;
  // An instruction set may pack float16 as floats.
  const std::int64_t per_word = p.dtype == Dtype::kBfloat16 ? 2 : 1;
  const std::int64_t lines = numbers(p.cell).gates * (1 + ceil_div(p.shape.hidden, per_word));
  return p.shape.groups * lines * units + between_floats(p) + multiplied_floats(p) +
         carry_floats(p) + kAlignment / 4;
}

void run(const Isa& isa, Problem problem, ThreadPool& pool, float* workspace) {
  const Shape& shape = problem.shape;
  const CpuPlan plan = prnn::plan(isa, problem, pool.threads());
  Blocking blocking = plan.blocking;
  blocking.products = products_of(isa, problem.dtype);
  float* packed = reinterpret_cast<float*>(
      ceil_div(reinterpret_cast<std::intptr_t>(workspace), kAlignment) * kAlignment);
  if (problem.kind != Kind::kProjection) {
    float* between = packed + shape.groups * blocking.group_words;
    float* multiplied = between + between_floats(problem);
    float* carry = multiplied + multiplied_floats(problem);
    problem.forward.between = between;
    problem.forward.carry = problem.backward.carry = carry;
    if (multiplied_floats(problem) > 0) {
      problem.forward.multiplied = problem.backward.multiplied = multiplied;
      isa.begin(problem, 0, shape.batch);
    }
  }

  if (!blocking.in_place) {
    const std::int64_t panels = shape.groups * (blocking.panels[0] + blocking.panels[1]);
    parallel_for(pool, plan.threads, panels,
                 [&](std::int64_t i) { isa.pack(problem, blocking, i, packed); });
  }

  if (plan.split == Split::kUnits) {
    const std::int64_t steps = shape.time + (problem.kind == Kind::kBackward ? 1 : 0);
    const auto advance = [&](std::int64_t n, std::int64_t member, std::int64_t members) {
      const int phase = static_cast<int>(n % blocking.phases);
      const std::int64_t panels = blocking.panels[phase], first = panels * member / members;
      const Part part{0, shape.groups, 0, shape.batch, first, panels * (member + 1) / members};
      isa.advance(problem, blocking, packed, part, n / blocking.phases, phase);
    };
    if (steps > 1) return parallel_steps(pool, plan.threads, steps * blocking.phases, advance);
    // Too short for a meeting.
    for (std::int64_t n = 0; n < blocking.phases; ++n)
      parallel_for(pool, plan.threads, plan.threads,
                   [&](std::int64_t member) { advance(n, member, plan.threads); });
    return;
  }
  const std::int64_t slices = ceil_div(shape.batch, plan.rows_per_part);
  parallel_for(pool, plan.threads, shape.groups * slices, [&](std::int64_t i) {
    const std::int64_t group = i / slices, row = i % slices * plan.rows_per_part;
    const std::int64_t end = std::min(shape.batch, row + plan.rows_per_part);
    isa.advance_rows(problem, blocking, packed, {group, group + 1, row, end, 0, 0});
  });
}

}  // namespace prnn
