// How a call is cut: over threads, and into blocks of rows and panels of units.
#include <algorithm>

#include "cpu/caches.h"
#include "cpu/prepared.h"
#include "cpu/run.h"

namespace prnn {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A part of at least this many multiply-adds is worth a meeting of threads after each step. On two
// cores of a Zen 4, LSTM 64 and RNN 128 at batch 1 take 0.7 of one thread's time so, LSTM 40 (3e3
// in a part) as long. Cores that are farther from each other would want more.
constexpr double kWorthMeeting = 8e3;

// Rows by threads need so many in each: three take as long as four, and two nearly as long
// (measured on two cores of a Xeon). And where parts are unequal, as 7 rows of two threads, less
// than such a part of the time may go to waiting. Parts of a step below so many multiply-adds are
// too short for either to matter, if of more than one row.
constexpr std::int64_t kEnoughRows = 4, kMostWaiting = 8;
constexpr double kWorthMeetingForRows = 60e3;

// Or the weights come from the cache that cores share, step by step, if they take no more than such
// a part of it and a thread has rows enough to multiply by them while others come. On a Zen 3 with
// AVX2 a core reads 80 GB/s of it and multiplies four rows meanwhile: LSTM 256 takes 0.97 and 0.95
// of the time of threads that share the units, at batch 8 and 16, and 0.92 backward at 16, GRU 512
// at 16 0.98 and 0.94. A Zen 4 is as fast: LSTM 256 takes 0.92 and 0.96, GRU 256 at 8 0.88, RNN 512
// at 8 0.87, and with two rows of a thread 1.1 to 1.2. Others multiply wide vectors twice as fast,
// and a Xeon reads such weights at half the rate: rows for those are an estimate by these rates,
// not the result of a measurement.
constexpr std::int64_t kSharedPart = 3, kRowsMeanwhile = 4, kRowsOfWideMeanwhile = 16;

// Weights may exceed the cache by such a part of it, and stay in it but for a few: two matrices of
// half its size have their biases besides.
constexpr std::int64_t kBeyondCache = 16;

// A call of one step has no meeting, and is worth handing to a worker that is awake from this many
// on: LSTM 192 at batch 1 gains a tenth, LSTM 256 a fifth.
constexpr double kWorthSharing = 60e3;

// Up to so many steps, and so many rows of steps, use the weights as they lie in memory: packing
// would cost more. Of one row, 4 steps take 0.8 to 0.9 of the time in place, 6 steps 0.95, 8 steps
// 1 to 1.1; of four rows, 2 steps 0.4 to 0.9, 4 steps 1.05 to 1.2. Fewer with AVX2: 4 steps of one
// row 0.7 to 1, 5 steps 0.9 to 1.3; of two rows, 2 steps 0.7 to 1.1, 4 steps 1.3 to 1.5; if
// threads' own caches hold the weights. If not, 6 steps of LSTM 512 take 0.7 to 1, 8 steps 1.1.
constexpr std::int64_t kInPlaceSteps = 6, kInPlaceRowSteps = 8;
constexpr std::int64_t kInPlaceNarrowSteps = 4, kInPlaceNarrowFarther = 6;

// More of weights that are far: they and what is packed of them want more than such a part of the
// shared cache twice, and other layers want it, too. LSTM 1024 takes 0.85 of the time for 16 steps
// of one row, 0.46 for 8 of two, 0.68 for 4 of four; LSTM 768 1.1, 0.75 and 1.1.
constexpr double kFarPart = 1.0 / 6;
constexpr std::int64_t kInPlaceFarSteps = 16;

// Weights that the shared cache hardly holds come from memory in each step, and faster as they lie,
// for several lines are read at a time: LSTM 1280 to 1760 takes 0.65 to 0.87 of the time whatever
// the number of steps, GRU 1536 and 1760 0.66 and 0.68; of two rows 0.8 to 0.89. Not in 16 bits,
// which are half as much to read, and to widen besides.
constexpr double kFromMemoryPart = 0.75;
constexpr std::int64_t kInPlaceFromMemoryRows = 2;

// Projections of up to so many rows are in place as well. With AVX2, of fewer: packed, 6 rows take
// 0.91 to 0.98 of the time of a layer with 192 to 512 units, 8 rows 0.8 to 0.87, 16 rows 0.7 to
// 0.78. Only weights that come from memory, and not from the shared cache, are read so much better
// in place that 8 rows take longer packed (LSTM 1024: 1.05; 4 rows 1.4, 16 rows 0.92).
constexpr std::int64_t kInPlaceProducts = 16, kInPlaceNarrow = 4, kInPlaceNarrowFar = 8;

// Rows that are projected at a time: so many make up for reading w_ih once more.
constexpr std::int64_t kEnoughProjected = 48;
// And the more weights there are to read, the more are projected at a time, even if their a_x has
// no place in the cache: it may take such a part of the weights' bytes.
constexpr std::int64_t kProjectedPart = 4;

// Vectors of them, in a phase of a group.
std::int64_t most_columns(const Blocking& blocking) {
  return std::max(blocking.columns[0], blocking.columns[1]);
}

// The most floats of a projection's weights that are packed as a whole. More of them are in no
// cache when they are used again, and the workspace of a layer would grow beyond 32 MiB, which
// glibc maps anew for every call: of those there is room for a quarter of the columns, or so many
// at least.
constexpr std::int64_t kMostKept = 2 << 20, kFewestPlaced = 512, kWidest = 16;

std::int64_t projected_columns(const Problem& problem) {
  return ceil_div(projection_of(problem).shape.hidden, kWidest) * kWidest;
}
// Floats of a group's weights.
std::int64_t packed_projection(const Problem& problem, std::int64_t columns) {
  return columns * (1 + problem.projection.input_size);
}

// Whether the weights of all groups take more than such a part of a cache that cores share.
bool exceeds_shared_cache(const Problem& problem, const Blocking& whole, double part) {
  const std::int64_t cache = shared_cache_bytes();
  return cache > 0 && 4 * whole.group_words * problem.shape.groups > part * cache;
}

// Whether a call is to use weights where they lie.
bool uses_in_place(const Isa& isa, const Problem& problem, const Blocking& whole, int threads) {
  const Shape& shape = problem.shape;
  const std::int64_t rows = shape.time * shape.batch;
  const bool is_narrow = isa.width <= 8;
  const bool is_far = exceeds_shared_cache(problem, whole, kFarPart);
  switch (problem.kind) {
    case Kind::kBackward:
      return false;
    case Kind::kProjection:
      if (!is_narrow) return rows <= kInPlaceProducts;
      return rows <= (is_far ? kInPlaceNarrowFar : kInPlaceNarrow);
    case Kind::kForward:
      if (shape.batch > kInPlaceRows) return false;
      if (problem.dtype == Dtype::kFloat32 && shape.batch <= kInPlaceFromMemoryRows &&
          exceeds_shared_cache(problem, whole, kFromMemoryPart))
        return true;
      if (is_far) return rows <= kInPlaceFarSteps;
      if (is_narrow) {
        const bool is_near = 4 * whole.group_words <= threads * cache_bytes_per_thread();
        return rows <= (is_near ? kInPlaceNarrowSteps : kInPlaceNarrowFarther);
      }
      return shape.time <= kInPlaceSteps && rows <= kInPlaceRowSteps;
  }
  return false;
}

// And has room for the sums where it would have packed them.
bool runs_in_place(const Isa& isa, const Problem& problem, const Blocking& whole, int threads) {
  return uses_in_place(isa, problem, whole, threads) &&
         whole.group_words >= 2 * kInPlaceRows * isa.width * most_columns(whole);
}

// How, by so many threads that share the units. Of a matrix so large that each page of memory is
// looked up anew, threads had better read whole lines than the same part of each gate's.
Blocking blocking_in_place(const Isa& isa, const Problem& problem, Blocking blocking,
                           std::int64_t rows, int threads) {
  const std::int64_t blocks = ceil_div(rows, kInPlaceRows);
  const bool has_room =
      blocking.group_words >= (blocks + 1) * kInPlaceRows * isa.width * most_columns(blocking);
  const bool is_large = blocking.group_words * 4 > threads * cache_bytes_per_thread();
  blocking.by_columns = threads > 1 && has_room && is_large;
  blocking.in_place = true;
  // What a group has there are its sums: the totals of all blocks or of one, and a run's.
  blocking.group_words =
      ((blocking.by_columns ? blocks : 1) + 1) * kInPlaceRows * isa.width * most_columns(blocking);
  blocking.rows = kInPlaceRows;
  for (int phase = 0; phase < blocking.phases; ++phase) {
    blocking.vectors[phase] = 1;
    blocking.panels[phase] = ceil_div(problem.shape.hidden, isa.width);
  }
  return blocking;
}

// All but the projection of a call that makes its own a_x.
CpuPlan plan_steps(const Isa& isa, const Problem& problem, int threads, const Prepared* prepared) {
  const Shape& shape = problem.shape;
  CpuPlan out{};
  out.cache_bytes = cache_bytes_per_thread();
  const auto blocked = [&](std::int64_t rows, int sharers) {
    Blocking blocking = isa.block(problem, prepared ? prepared->steps : Layout{rows, sharers});
    blocking.is_packed = prepared != nullptr;
    return blocking;
  };
  const Blocking whole = blocked(shape.batch, threads);
  out.weight_bytes = whole.group_words * 4;
  const double work =
      static_cast<double>(whole.group_words) * whole.weights_per_word * shape.groups * shape.batch;

  // Rows need no meeting, but every thread reads all weights: right where they stay in its cache.
  // Those of the projection are read for a few steps at a time, so they may take all the rest.
  std::int64_t all_bytes = out.weight_bytes;
  if (projects(problem))
    all_bytes += isa.block(projection_of(problem), {shape.batch, threads}).group_words * 4;
  out.weights_stay = out.weight_bytes <= out.cache_bytes * 3 / 4 &&
                     all_bytes <= out.cache_bytes + out.cache_bytes / kBeyondCache;
  const std::int64_t parts_per_group = std::min(shape.batch, ceil_div(threads, shape.groups));
  const std::int64_t rows_per_part =
      ceil_div(shape.batch, std::max<std::int64_t>(parts_per_group, 1));
  const std::int64_t uneven = rows_per_part * parts_per_group - shape.batch;
  const bool all_work = shape.groups * shape.batch >= threads;
  const bool evenly = parts_per_group <= 1 || uneven * kMostWaiting < shape.batch;
  const bool enough_rows =
      all_work && (parts_per_group <= 1 || (rows_per_part >= kEnoughRows && evenly) ||
                   (rows_per_part > 1 && work / threads < kWorthMeetingForRows));
  const bool is_wide = isa.width > 8 && !halves_wide_vectors();
  const std::int64_t meanwhile = is_wide ? kRowsOfWideMeanwhile : kRowsMeanwhile;
  const bool may_come = all_work && evenly && rows_per_part >= meanwhile &&
                        out.weight_bytes * shape.groups <= shared_cache_bytes() / kSharedPart;
  const bool in_place = !prepared && runs_in_place(isa, problem, whole, threads);
  const bool has_no_meeting = shape.time == 1 && (in_place || prepared);
  const bool worth_meeting = work / threads >= (has_no_meeting ? kWorthSharing : kWorthMeeting);
  if (in_place) {
    out.split = Split::kUnits;
    out.threads = worth_meeting ? threads : 1;
    out.rows_per_part = shape.batch;
    out.blocking = blocking_in_place(isa, problem, whole, shape.batch, out.threads);
    return out;
  }
  const bool has_places = projects(problem) && !keeps_projection(problem) && !prepared;
  const bool by_rows = (out.weights_stay && enough_rows) || may_come;
  if (threads > 1 && (has_places || (worth_meeting && !by_rows))) {
    out.split = Split::kUnits;
    out.threads = threads;
    out.rows_per_part = shape.batch;
    out.blocking = whole;
    return out;
  }
  out.split = Split::kRows;
  out.weights_come = !out.weights_stay && may_come;
  out.rows_per_part = rows_per_part;
  const std::int64_t parts = shape.groups * ceil_div(shape.batch, out.rows_per_part);
  out.threads = static_cast<int>(std::min<std::int64_t>(threads, parts));
  out.blocking = blocked(out.rows_per_part, 1);
  return out;
}

// How a call makes its own a_x: as many steps at a time as stay in a part of the cache, and enough
// of them.
void plan_projection(const Isa& isa, const Problem& problem, const Prepared* prepared,
                     CpuPlan& out) {
  const Shape& shape = problem.shape;
  const Problem projection = projection_of(problem);
  const bool by_rows = out.split == Split::kRows;
  const int sharers = by_rows ? 1 : out.threads;
  const std::int64_t rows = by_rows ? out.rows_per_part : shape.batch;
  const std::int64_t columns = numbers(problem.cell).gates * shape.hidden;
  const std::int64_t step_bytes = 4 * rows * (by_rows ? 1 : shape.groups) * columns / sharers;
  const std::int64_t weight_bytes =
      isa.block(projection, {rows, sharers}).group_words * 4 / sharers;
  const std::int64_t room = std::max(out.cache_bytes / 4, weight_bytes / kProjectedPart);
  std::int64_t& steps = out.projection_steps;
  steps = most_projection_steps(problem);
  while (steps / 2 * rows >= kEnoughProjected && steps * step_bytes > room) steps /= 2;
  const Layout own{rows * steps, sharers};
  out.projection = isa.block(projection, prepared ? prepared->projection : own);
  out.projection.is_packed = prepared != nullptr;
  if (prepared) return;
  // The sums have one place: for one thread, or for several that share the units.
  if (by_rows && out.threads > 1) return;
  if (runs_in_place(isa, projection, out.projection, sharers)) {
    const Blocking in_place =
        blocking_in_place(isa, projection, out.projection, rows * steps, sharers);
    if (shape.groups * in_place.group_words <= projection_room(problem)) {
      out.projection = in_place;
      return;
    }
  }
  // And so have panels that are packed when their turn comes.
  const bool is_used_once = steps >= shape.time;
  const std::int64_t places = projection_room(problem) / out.projection.panel_words;
  const bool has_enough = places >= std::min<std::int64_t>(sharers, out.projection.panels[0]);
  if (!keeps_projection(problem) || (is_used_once && has_enough)) out.projection.places = places;
}

}  // namespace

CpuPlan plan(const Isa& isa, const Problem& problem, int threads) {
  const Prepared* const prepared = prepared_for(isa, problem);
  CpuPlan out = plan_steps(isa, problem, threads, prepared);
  if (projects(problem)) plan_projection(isa, problem, prepared, out);
  return out;
}

std::int64_t most_projection_steps(const Problem& problem) {
  constexpr std::int64_t kSteps = 16;
  // More where each piece packs the weights anew: at batch 8, GRU 1152 takes 6 % less time so.
  const std::int64_t rows = keeps_projection(problem) ? 128 : 256;
  std::int64_t steps = 1;
  while (steps < problem.shape.time && (steps < kSteps || steps * problem.shape.batch < rows))
    steps *= 2;
  return steps;
}

bool projects(const Problem& problem) {
  return problem.kind == Kind::kForward && problem.projection.input_size > 0;
}

bool keeps_projection(const Problem& problem) {
  return problem.shape.groups * packed_projection(problem, projected_columns(problem)) <= kMostKept;
}

std::int64_t projection_room(const Problem& problem) {
  std::int64_t columns = projected_columns(problem);
  if (!keeps_projection(problem))
    columns = std::min(columns, std::max(columns / (4 * kWidest) * kWidest, kFewestPlaced));
  return problem.shape.groups * packed_projection(problem, columns);
}

Problem projection_of(const Problem& problem) {
  Problem out = problem;
  out.kind = Kind::kProjection;
  out.shape.hidden *= numbers(problem.cell).gates;
  return out;
}

}  // namespace prnn
