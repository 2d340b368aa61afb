#include "cpu/prepacked.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/row_norm.h"
#include "cpu/huge_pages.h"

namespace prnn {
namespace {

constexpr std::int64_t kHeaderWords = 32, kWidestVector = 16;
static_assert(sizeof(Prepacked) == kHeaderWords * 4);
// Far more than there are, and no product of sizes overflows by it.
constexpr std::int64_t kMostThreads = 1 << 16;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Of so many columns per group, on any instruction set: one may pack float16 as floats.
std::int64_t packed_words(const Problem& p, std::int64_t columns, std::int64_t depth) {
  if (p.weights == WeightFormat::kInt8) return p.shape.groups * columns * (2 + ceil_div(depth, 4));
  const std::int64_t per_word = p.dtype == Dtype::kBfloat16 ? 2 : 1;
  return p.shape.groups * columns * (1 + ceil_div(depth, per_word));
}
std::int64_t padded(std::int64_t units) { return ceil_div(units, kWidestVector) * kWidestVector; }

std::int64_t steps_words(const Problem& p) {
  const CellNumbers n = numbers(p.cell);
  const std::int64_t hidden = p.shape.hidden, output = p.shape.output();
  return packed_words(p, n.gates * padded(hidden), output) +
         (n.projects ? packed_words(p, padded(output), hidden) : 0) +
         (n.normalises ? packed_words(p, kRowsOfRound * kWidestVector, 0) : 0);
}

float* after_header(const void* array) {
  return const_cast<float*>(static_cast<const float*>(array)) + kHeaderWords;
}

// One after the other; each step can be undone: nothing is lost.
std::uint64_t mixed(std::uint64_t sum, std::uint64_t word) {
  sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
  return sum ^ sum >> 32;
}

// Two of each matrix and one of each bias: more would be felt where a call is one step.
std::uint64_t sample_of(const Problem& p) {
  const CellNumbers n = numbers(p.cell);
  const std::int64_t size = p.dtype == Dtype::kFloat32 ? 4 : 2;
  const std::int64_t columns = p.shape.groups * n.gates * p.shape.hidden;
  std::uint64_t sum = 0;
  const auto add = [&](const void* array, std::int64_t elements, std::int64_t which) {
    for (std::int64_t i = 1; array != nullptr && i <= which; ++i) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, static_cast<const char*>(array) + i * elements / (which + 1) * size, size);
      sum = mixed(sum, bits);
    }
  };
  add(p.forward.w_hh, columns * p.shape.output(), 2);
  add(p.projection.w, columns * p.projection.input_size, 2);
  if (n.projects) add(p.forward.w_hr, p.shape.groups * p.shape.hidden * p.shape.output(), 2);
  add(p.forward.b_hh, columns, 1);
  add(p.projection.b, columns, 1);
  return sum;
}

// All but the layouts and the checksum.
Prepacked header_for(const Isa& isa, const Problem& p) {
  Prepacked out{};
  std::strcpy(out.isa, "prnn6 ");  // another number where panels become others
  std::strncat(out.isa, isa.name, sizeof out.isa - 1 - std::strlen(out.isa));
  out.dtype = static_cast<std::int64_t>(p.dtype);
  out.gates = numbers(p.cell).gates;
  out.phases = visit(p.cell, [](auto cell) { return decltype(cell)::kPhases; });
  out.groups = p.shape.groups;
  out.hidden = p.shape.hidden;
  out.input_size = p.projection.input_size;
  out.weights = p.weights;
  out.projected = p.shape.projected;
  out.sample = sample_of(p);
  return out;
}

}  // namespace

std::int64_t prepacked_words(const Problem& p) {
  const std::int64_t columns = padded(numbers(p.cell).gates * p.shape.hidden);
  return kHeaderWords + steps_words(p) + packed_words(p, columns, p.projection.input_size);
}

bool can_prepare(const Problem& p) {
  return p.weights != WeightFormat::kInt8 ||
         std::max({p.shape.hidden, p.shape.output(), p.projection.input_size}) <= kMostQuantised;
}

void prepare(const Isa& isa, const Problem& problem, ThreadPool& pool, void* out) {
  prefer_huge_pages(out, 4 * prepacked_words(problem));
  const CpuPlan plan = prnn::plan(this_machine(isa.width), isa, problem, pool.threads());
  Prepacked header = header_for(isa, problem);
  header.steps = plan.blocking.layout;
  header.projection = plan.projection.layout;
  header.checksum = checksum_of(header);
  std::memcpy(out, &header, sizeof header);

  const Problem projection = projection_of(problem);
  const Blocking of_steps = isa.block(problem, header.steps);
  const Blocking of_projection = isa.block(projection, header.projection);
  float* const steps = after_header(out);
  const auto pack = [&](const Problem& of, const Blocking& blocking, int phase, float* packed) {
    const std::int64_t tasks = ceil_div(blocking.panels[phase], kPackedTogether);
    parallel_for(pool, pool.threads(), problem.shape.groups * tasks, [&](std::int64_t n) {
      const std::int64_t group = n / tasks, first = n % tasks * kPackedTogether;
      const std::int64_t last = std::min(first + kPackedTogether, blocking.panels[phase]);
      isa.pack(of, blocking, {group, group + 1, 0, 0, first, last}, phase, packed);
    });
  };
  for (int phase = 0; phase < of_steps.phases; ++phase) pack(problem, of_steps, phase, steps);
  pack(projection, of_projection, 0, steps + steps_words(problem));
}

std::uint64_t checksum_of(const Prepacked& header) {
  constexpr std::size_t kWords = offsetof(Prepacked, checksum) / sizeof(std::uint64_t);
  std::uint64_t words[kWords], sum = 0;
  std::memcpy(words, &header, sizeof words);
  for (const std::uint64_t word : words) sum = mixed(sum, word);
  return sum;
}

const Prepacked* prepacked_for(const Isa& isa, const Problem& problem) {
  if (problem.prepacked == nullptr || problem.kind != Kind::kForward) return nullptr;
  // As vectors of weights are read. XLA's arrays are.
  if (reinterpret_cast<std::uintptr_t>(problem.prepacked) % (isa.width * 4) != 0) return nullptr;
  const auto* const header = static_cast<const Prepacked*>(problem.prepacked);
  if (header->checksum != checksum_of(*header)) return nullptr;
  if (header->weights != WeightFormat::kAsGiven && header->weights != WeightFormat::kInt8)
    return nullptr;
  Problem of_header = problem;
  of_header.weights = header->weights;
  if (problem.prepacked_words != prepacked_words(of_header) || !can_prepare(of_header))
    return nullptr;
  Prepacked expected = header_for(isa, of_header);
  expected.steps = header->steps;
  expected.projection = header->projection;
  expected.checksum = header->checksum;
  for (const Layout& layout : {expected.steps, expected.projection})
    if (layout.rows < 1 || layout.threads < 1 || layout.threads > kMostThreads) return nullptr;
  return std::memcmp(header, &expected, sizeof expected) == 0 ? header : nullptr;
}

Problem in_its_format(const Isa& isa, const Problem& problem) {
  Problem out = problem;
  if (const Prepacked* given = prepacked_for(isa, problem)) out.weights = given->weights;
  return out;
}

float* prepacked_steps(const Problem& problem) { return after_header(problem.prepacked); }
float* prepacked_projection(const Problem& problem) {
  return prepacked_steps(problem) + steps_words(problem);
}

}  // namespace prnn
