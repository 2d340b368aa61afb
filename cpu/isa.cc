// The engine's inner part. The build compiles this file once for each instruction set, with that
// set's compiler flags and PRNN_ISA as the namespace; cpu/dispatch.cc chooses among the results.
//
// Nothing here may be shared with code compiled for another processor: no standard containers or
// algorithms, only templates over this namespace's types and always-inlined functions.
#include "core/two_phase_passes.h"
#include "cpu/pack.h"
#include "cpu/problem.h"
#include "cpu/product.h"
#include "cpu/projection.h"
#include "cpu/vector_math.h"

namespace prnn::PRNN_ISA {
namespace {

PRNN_HD std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
PRNN_HD std::int64_t max(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
PRNN_HD std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Calls f(pass) with the problem's pass as a type.
template <class F>
PRNN_HD void visit_pass(const Problem& p, F&& f) {
  if (p.kind == Kind::kProjection) return f(ProjectionPass<Io>{p.shape, p.projection});
  visit(p.cell, [&](auto cell) {
    using C = decltype(cell);
    if (p.kind == Kind::kForward)
      f(ForwardPass<C, Io>{{cell, p.shape}, p.forward});
    else
      f(BackwardPass<C, Io>{{cell, p.shape}, p.backward});
  });
}

// One row alone reads each weight once, whatever the panel: many vectors make up for the latency
// of an addition. More rows share the weights they read: few vectors leave registers for them.
int vectors_per_block(std::int64_t rows) {
  constexpr int kLatency = 8;  // multiply-adds in flight that keep two units busy
  if (rows == 1) return kLatency;
  if (rows == 2) return kRegisters >= 32 ? kLatency : kLatency / 2;
  return 4;
}

Blocking block(const Problem& problem, std::int64_t rows, int threads) {
  Blocking out{};
  visit_pass(problem, [&](const auto& pass) {
    const std::int64_t unit_vectors = ceil_div(problem.shape.hidden, kWidth);
    out.phases = pass.kPhases;
    out.rows = kMaxRows;
    for (int p = 0; p < out.phases; ++p) {
      const int products = pass.products(p);
      const std::int64_t wanted = max(vectors_per_block(rows) / products, 1);
      // As many panels as give each thread the same number, of nearly equal size.
      const std::int64_t rounds = ceil_div(unit_vectors, wanted * threads);
      out.vectors[p] = (int)ceil_div(unit_vectors, rounds * threads);
      const int allowed = max_rows(products * out.vectors[p]);
      out.rows = allowed < out.rows ? allowed : out.rows;
      out.panels[p] = ceil_div(unit_vectors, out.vectors[p]);
      const std::int64_t line = (std::int64_t)products * kWidth;
      out.panel_floats[p] = (1 + pass.depth(p)) * line * out.vectors[p];
      out.phase_floats[p] = (1 + pass.depth(p)) * line * unit_vectors;
      out.group_floats += out.phase_floats[p];
    }
  });
  return out;
}

// The units of a panel.
struct Units {
  std::int64_t first;
  int vectors;
};
PRNN_HD Units units_of(const Shape& shape, const Blocking& blocking, int phase,
                       std::int64_t panel) {
  const std::int64_t first = panel * blocking.vectors[phase];
  const std::int64_t left = ceil_div(shape.hidden, kWidth) - first;
  return {first * kWidth, (int)min(blocking.vectors[phase], left)};
}

PRNN_HD std::int64_t panel_at(const Blocking& blocking, std::int64_t group, int phase,
                              std::int64_t panel) {
  return group * blocking.group_floats + (phase == 0 ? 0 : blocking.phase_floats[0]) +
         panel * blocking.panel_floats[phase];
}

void pack(const Problem& problem, const Blocking& blocking, std::int64_t index, float* packed) {
  visit_pass(problem, [&](const auto& pass) {
    const std::int64_t per_group = blocking.panels[0] + blocking.panels[1];
    const std::int64_t group = index / per_group, in_group = index % per_group;
    const int phase = in_group < blocking.panels[0] ? 0 : 1;
    const std::int64_t panel = in_group - (phase == 0 ? 0 : blocking.panels[0]);
    const Units units = units_of(problem.shape, blocking, phase, panel);
    pack_panel(pass, group, phase, units.first, units.vectors,
               packed + panel_at(blocking, group, phase, panel));
  });
}

// The products of `count` rows, then their steps. Rows without a product get zeros.
template <int kPhase, class Pass>
PRNN_HD void advance_rows(const Pass& pass, const float* panel, const Units& units,
                          std::int64_t group, std::int64_t step, const std::int64_t* rows,
                          int count, bool multiply) {
  constexpr int kGates = Pass::products(kPhase);
  alignas(64) float products[kMaxRows * kMaxVectors * kWidth];
  const int vectors = kGates * units.vectors;
  if (multiply) {
    const float* inputs[kMaxRows] = {};
    for (int r = 0; r < count; ++r) inputs[r] = pass.input(group, kPhase, step, rows[r]);
    kProducts.at[count][vectors](panel, inputs, pass.depth(kPhase), products);
  } else {
    __builtin_memset(products, 0, sizeof(float) * count * vectors * kWidth);
  }
  const Io whole{kWidth};
  for (int r = 0; r < count; ++r)
    for (int v = 0; v < units.vectors; ++v) {
      Vec<kGates, Simd> of_unit;
      for (int gate = 0; gate < kGates; ++gate)
        of_unit[gate] = whole.load(products + ((r * kGates + gate) * units.vectors + v) * kWidth);
      const std::int64_t unit = units.first + v * kWidth;
      const Io io{(int)min(kWidth, pass.shape.hidden - unit)};
      pass.template step<kPhase>(group, step, rows[r], unit, of_unit, io);
    }
}

// Rows in blocks: those that have a product by themselves, so that a row that has ended costs next
// to nothing.
template <int kPhase, class Pass>
PRNN_HD void advance_panel(const Pass& pass, int block, const float* panel, const Units& units,
                           std::int64_t group, std::int64_t step, const Part& part) {
  std::int64_t with[kMaxRows], without[kMaxRows];
  int count_with = 0, count_without = 0;
  std::int64_t left = 0;
  for (std::int64_t b = part.first_row; b < part.last_row; ++b)
    left += pass.multiplies(group, kPhase, step, b);
  // Of nearly equal size.
  std::int64_t blocks = ceil_div(left, block);
  std::int64_t size = blocks > 0 ? ceil_div(left, blocks) : 0;
  for (std::int64_t b = part.first_row; b < part.last_row; ++b) {
    if (pass.multiplies(group, kPhase, step, b)) {
      with[count_with++] = b;
      if (count_with < size) continue;
      advance_rows<kPhase>(pass, panel, units, group, step, with, count_with, true);
      left -= count_with;
      count_with = 0;
      blocks -= 1;
      size = blocks > 0 ? ceil_div(left, blocks) : 0;
    } else {
      without[count_without++] = b;
      if (count_without < block) continue;
      advance_rows<kPhase>(pass, panel, units, group, step, without, count_without, false);
      count_without = 0;
    }
  }
  if (count_without > 0)
    advance_rows<kPhase>(pass, panel, units, group, step, without, count_without, false);
}

template <int kPhase, class Pass>
void advance_phase(const Pass& pass, const Blocking& blocking, const float* packed,
                   const Part& part, std::int64_t step) {
  for (std::int64_t g = part.first_group; g < part.last_group; ++g)
    for (std::int64_t i = part.first_panel; i < part.last_panel; ++i) {
      // Every other step the other way round: the weights read last are in the cache still.
      const std::int64_t n = step % 2 == 0 ? i : part.first_panel + part.last_panel - 1 - i;
      const Units units = units_of(pass.shape, blocking, kPhase, n);
      const float* panel = packed + panel_at(blocking, g, kPhase, n);
      advance_panel<kPhase>(pass, blocking.rows, panel, units, g, step, part);
    }
}

void advance(const Problem& problem, const Blocking& blocking, const float* packed,
             const Part& part, std::int64_t step, int phase) {
  visit_pass(problem, [&](const auto& pass) {
    if (phase == 0) advance_phase<0>(pass, blocking, packed, part, step);
    if constexpr (std::remove_cvref_t<decltype(pass)>::kPhases > 1)
      if (phase == 1) advance_phase<1>(pass, blocking, packed, part, step);
  });
}

void begin(const Problem& problem, std::int64_t first_row, std::int64_t last_row) {
  visit_pass(problem, [&](const auto& pass) {
    for (std::int64_t b = first_row; b < last_row; ++b)
      for (std::int64_t g = 0; g < pass.shape.groups; ++g)
        for (std::int64_t unit = 0; unit < pass.shape.hidden; unit += kWidth)
          pass.begin(g, b, unit, Io{(int)min(kWidth, pass.shape.hidden - unit)});
  });
}

template <class F>
PRNN_HD void map(const float* in, float* out, std::int64_t n, F f) {
  for (std::int64_t i = 0; i < n; i += kWidth) {
    const Io io{(int)min(kWidth, n - i)};
    io.store(out + i, f(io.load(in + i)));
  }
}
void sigmoid_all(const float* in, float* out, std::int64_t n) {
  map(in, out, n, [](Simd a) { return sigmoid(a); });
}
void tanh_all(const float* in, float* out, std::int64_t n) {
  map(in, out, n, [](Simd a) { return tanh(a); });
}
void log_sigmoid_all(const float* in, float* out, std::int64_t n) {
  map(in, out, n, [](Simd a) { return log_sigmoid(a); });
}
void exp_all(const float* in, float* out, std::int64_t n) {
  map(in, out, n, [](Simd a) { return exp(a); });
}

#define PRNN_STRING_(x) #x
#define PRNN_STRING(x) PRNN_STRING_(x)

}  // namespace

extern const Isa kIsa;
const Isa kIsa{PRNN_STRING(PRNN_ISA), kWidth,   kRegisters,      block,  pack, begin, advance,
               sigmoid_all,           tanh_all, log_sigmoid_all, exp_all};

}  // namespace prnn::PRNN_ISA
