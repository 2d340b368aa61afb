#include "cpu/plan/planner.h"

#include <algorithm>

#include "cpu/plan/cost.h"
#include "cpu/prepacked.h"

namespace prnn {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// ---- room for the projection's weights ----

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

// ---- blocking ----

// Vectors of sums of a group's phase.
std::int64_t most_columns(const Blocking& blocking) {
  return std::max(blocking.columns[0], blocking.columns[1]);
}
// Words that sums take where weights are not packed: those of a block of rows, or by columns of all
// rows, which wait for their steps; and a run's.
std::int64_t words_of_sums(const Isa& isa, const Blocking& blocking, std::int64_t rows,
                           Partition partition) {
  const bool wait = partition == Partition::kColumns;
  const std::int64_t blocks = wait ? ceil_div(rows, kUnpackedRows) : 1;
  return (blocks + 1) * kUnpackedRows * isa.width * most_columns(blocking);
}

// Of weights that are not packed. The sums lie where packed weights would.
Blocking unpacked(const Isa& isa, Blocking blocking, std::int64_t rows, Partition partition) {
  blocking.source = WeightSource::kUnpacked;
  blocking.partition = partition;
  blocking.group_words = words_of_sums(isa, blocking, rows, partition);
  blocking.rows = kUnpackedRows;
  for (int phase = 0; phase < blocking.phases; ++phase) {
    blocking.vectors[phase] = 1;
    blocking.panels[phase] = ceil_div(blocking.units[phase], isa.width);
  }
  return blocking;
}

// ---- the steps ----

// `whole` is one that has been made already: of another choice, or this one's.
Blocking packed(const Isa& isa, const Problem& problem, const Prepacked* prepacked,
                const Choice& choice, const Blocking* whole) {
  const bool by_batch = choice.partition == Partition::kBatch;
  const Layout own{choice.rows, by_batch ? 1 : choice.threads};
  const bool is_made = whole != nullptr && prepacked == nullptr && whole->layout == own;
  Blocking out = is_made ? *whole : isa.block(problem, prepacked ? prepacked->steps : own);
  out.source = choice.source;
  out.partition = choice.partition;
  return out;
}

// Panels of the projection that are packed when their turn comes have room for one thread, or for
// several that share the units.
bool has_panel_buffers(const Problem& problem, const Prepacked* prepacked) {
  return projects(problem) && !keeps_projection(problem) && prepacked == nullptr;
}

Amounts amounts_of(const Problem& problem, const Blocking& whole) {
  const Shape& shape = problem.shape;
  const auto words = static_cast<double>(whole.group_words);
  const bool is_backward = problem.kind == Kind::kBackward;
  const std::int64_t gates = numbers(problem.cell).gates;
  return {.groups = static_cast<double>(shape.groups),
          .rows = static_cast<double>(shape.batch),
          .steps = static_cast<double>(shape.time + (is_backward ? 1 : 0)),
          .phases = static_cast<double>(whole.phases),
          .weight_bytes = 4 * words,
          .multiply_adds = words * whole.weights_per_word,
          .gates = static_cast<double>(gates * shape.hidden),
          .published = static_cast<double>(is_backward ? gates * shape.hidden : shape.output()),
          .is_backward = is_backward,
          .are_of_bfloat16 = whole.products->are_of_bfloat16,
          .rows_of_tile = static_cast<double>(std::max(whole.products->rows_of_tile, 1)),
          .dtype = problem.dtype};
}

// ---- the projection ----

// Rows that are projected at a time: so many make up for reading w_ih once more. And the more
// weights there are to read, the more are projected at a time, even if their a_x has no place in
// the cache: it may take such a part of the weights' bytes.
constexpr std::int64_t kEnoughProjected = 48, kProjectedPart = 4;

// As many steps at a time as stay in a part of the cache, and enough of them.
std::int64_t projection_steps(const Machine& machine, const Problem& problem, std::int64_t rows,
                              std::int64_t step_bytes, std::int64_t weight_bytes) {
  const std::int64_t room = std::max(machine.cache_bytes / 4, weight_bytes / kProjectedPart);
  std::int64_t steps = most_projection_steps(problem);
  while (steps / 2 * rows >= kEnoughProjected && steps * step_bytes > room) steps /= 2;
  return steps;
}

void plan_projection(const Machine& machine, const Isa& isa, const Problem& problem,
                     const Prepacked* prepacked, CpuPlan& out) {
  const Shape& shape = problem.shape;
  const Problem projection = projection_of(problem);
  const bool by_batch = out.choice.partition == Partition::kBatch;
  const int sharers = by_batch ? 1 : out.choice.threads;
  const std::int64_t rows_at_once = out.choice.rows;
  const Blocking whole = isa.block(projection, {rows_at_once, sharers});
  const std::int64_t step_bytes =
      4 * rows_at_once * (by_batch ? 1 : shape.groups) * projection.shape.hidden / sharers;
  out.projection_steps =
      projection_steps(machine, problem, rows_at_once, step_bytes, whole.group_words * 4 / sharers);
  const std::int64_t rows = rows_at_once * out.projection_steps;
  const Layout own{rows, sharers};
  out.projection = isa.block(projection, prepacked ? prepacked->projection : own);
  out.projection.source = prepacked ? WeightSource::kPrepacked : WeightSource::kPacked;
  out.projection.partition = by_batch ? Partition::kBatch : Partition::kHidden;
  // Sums, and panels that are packed when their turn comes, have one buffer: for one thread, or for
  // several that share the units. Sums have more where groups take turns.
  const bool share_rows = by_batch && out.choice.threads > 1;
  if (prepacked || (share_rows && rows_at_once < shape.batch)) return;

  const std::int64_t chunks = ceil_div(shape.time, out.projection_steps);
  const std::int64_t panel_buffers = projection_room(problem) / out.projection.panel_words;
  const bool has_enough =
      panel_buffers >= std::min<std::int64_t>(sharers, out.projection.panels[0]);
  if (!keeps_projection(problem) || (chunks == 1 && has_enough && !share_rows)) {
    out.projection.source = WeightSource::kPackedPerPanel;
    out.projection.panel_buffers = panel_buffers;
  }
  Amounts amounts = amounts_of(projection, out.projection);
  amounts.rows = static_cast<double>(rows);
  amounts.steps = static_cast<double>(chunks);
  amounts.gates = amounts.published = 0;
  const auto us = [&](WeightSource source, Partition partition) {
    return cost_of(machine, amounts, {source, partition, sharers, rows}).call_us();
  };
  const Partition own_partition = out.projection.partition;
  double least = us(out.projection.source, own_partition);
  for (const Partition partition : {own_partition, Partition::kColumns}) {
    if (partition == Partition::kColumns && sharers == 1) continue;
    const std::int64_t words = words_of_sums(isa, whole, rows, partition);
    const double time = us(WeightSource::kUnpacked, partition);
    if (time >= least || words > whole.group_words ||
        shape.groups * words > projection_room(problem))
      continue;
    least = time;
    out.projection = unpacked(isa, whole, rows, partition);
  }
}

bool is_wanted(const Machine& machine, const Choice& choice) {
  return (!machine.wanted_source || machine.wanted_source == choice.source) &&
         (!machine.wanted_partition || machine.wanted_partition == choice.partition);
}

Blocking whole_of(const Isa& isa, const Problem& problem, int threads) {
  return isa.block(problem, {problem.shape.batch, threads});
}

// Of weights as cut for all threads.
Choices choices(const Isa& isa, const Problem& problem, const Blocking& whole, int threads) {
  const Shape& shape = problem.shape;
  const Prepacked* const given = prepacked_for(isa, problem);
  const WeightSource source = given ? WeightSource::kPrepacked : WeightSource::kPacked;
  Choices out{};
  const auto add = [&](WeightSource from, Partition partition, int by, std::int64_t rows) {
    out.all[out.count++] = {from, partition, by, rows};
  };
  add(source, Partition::kBatch, 1, shape.batch);
  if (shape.batch * shape.groups == 0) return out;  // nothing to divide
  if (threads > 1) {
    const std::int64_t parts_of_group = std::min(shape.batch, ceil_div(threads, shape.groups));
    const std::int64_t rows = ceil_div(shape.batch, parts_of_group);
    const std::int64_t parts = shape.groups * ceil_div(shape.batch, rows);
    const int by = static_cast<int>(std::min<std::int64_t>(threads, parts));
    if (by > 1 && !has_panel_buffers(problem, given)) add(source, Partition::kBatch, by, rows);
    add(source, Partition::kHidden, threads, shape.batch);
  }
  if (given || problem.kind != Kind::kForward || shape.batch > kUnpackedRows) return out;
  const auto add_unpacked = [&](Partition partition, int by) {
    if (words_of_sums(isa, whole, shape.batch, partition) <= whole.group_words)
      add(WeightSource::kUnpacked, partition, by, shape.batch);
  };
  const bool has_groups = shape.groups > 1;
  add_unpacked(has_groups ? Partition::kBatch : Partition::kHidden, 1);
  if (threads == 1) return out;
  const int by = static_cast<int>(std::min<std::int64_t>(threads, shape.groups));
  if (has_groups && !has_panel_buffers(problem, given)) add_unpacked(Partition::kBatch, by);
  add_unpacked(Partition::kHidden, threads);
  add_unpacked(Partition::kColumns, threads);
  return out;
}

CpuPlan plan_of(const Machine& machine, const Isa& isa, const Problem& problem,
                const Choice& choice, const Blocking* whole) {
  const Prepacked* const given = prepacked_for(isa, problem);
  CpuPlan out{};
  out.choice = choice;
  out.blocking = packed(isa, problem, given, choice, whole);
  out.weight_bytes = 4 * out.blocking.group_words;
  out.cost = cost_of(machine, amounts_of(problem, out.blocking), choice);
  if (choice.source == WeightSource::kUnpacked)
    out.blocking = unpacked(isa, out.blocking, choice.rows, choice.partition);
  if (projects(problem)) plan_projection(machine, isa, problem, given, out);
  return out;
}

}  // namespace

// ---- the choice ----

Choices choices(const Isa& isa, const Problem& call, int threads) {
  const Problem problem = in_its_format(isa, call);
  return choices(isa, problem, whole_of(isa, problem, threads), threads);
}

Amounts amounts(const Isa& isa, const Problem& call, int threads) {
  const Problem problem = in_its_format(isa, call);
  return amounts_of(problem, whole_of(isa, problem, threads));
}

CpuPlan plan_of(const Machine& machine, const Isa& isa, const Problem& call, const Choice& choice) {
  return plan_of(machine, isa, in_its_format(isa, call), choice, nullptr);
}

CpuPlan plan(const Machine& machine, const Isa& isa, const Problem& call, int threads) {
  const Problem problem = in_its_format(isa, call);
  const Blocking whole = whole_of(isa, problem, threads);
  const Amounts amounts = amounts_of(problem, whole);
  const Choices all = choices(isa, problem, whole, threads);
  const Choice* best = nullptr;
  double least = 0;
  for (const Choice& choice : all) {
    constexpr double kUnwanted = 1e12;
    double us = cost_of(machine, amounts, choice).call_us();
    if (!is_wanted(machine, choice)) us += kUnwanted;
    if (best != nullptr && us >= least) continue;
    best = &choice;
    least = us;
  }
  return plan_of(machine, isa, problem, *best, &whole);
}

// ---- the projection's sizes ----

std::int64_t most_projection_steps(const Problem& problem) {
  constexpr std::int64_t kSteps = 16;
  // More where each chunk packs the weights anew: at batch 8, GRU 1152 takes 6 % less time so.
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
  out.shape.projected = 0;
  return out;
}

}  // namespace prnn
