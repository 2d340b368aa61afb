// The engine's inner part. The build compiles this file once for each instruction set, with that
// set's compiler flags and PRNN_ISA as the namespace; cpu/dispatch.cc chooses among the results.
//
// Nothing here may be shared with code compiled for another processor: no standard containers or
// algorithms, only templates over this namespace's types and always-inlined functions.
#include "core/two_phase_passes.h"
#include "cpu/in_place.h"
#include "cpu/io.h"
#include "cpu/matrix_block.h"
#include "cpu/panel.h"
#include "cpu/problem.h"
#include "cpu/product.h"
#include "cpu/projection.h"
#include "cpu/steps.h"
#include "cpu/vector_math.h"

namespace prnn::PRNN_ISA {
namespace {

// Calls f(pass) with the problem's pass as a type.
template <class F>
PRNN_HD void visit_pass(const Problem& p, F&& f) {
  visit(p.dtype, [&](auto value) {
    using T = decltype(value);
    if (p.kind == Kind::kProjection)
      return f(
          ProjectionPass<Io<T>, T>{p.shape, __builtin_bit_cast(ProjectionArrays<T>, p.projection)});
    visit(p.cell, [&](auto cell) {
      using C = decltype(cell);
      if (p.kind == Kind::kForward)
        f(ForwardPass<C, Io<T>, T>{{cell, p.shape},
                                   __builtin_bit_cast(ForwardArrays<T>, p.forward)});
      else
        f(BackwardPass<C, Io<T>, T>{{cell, p.shape},
                                    __builtin_bit_cast(BackwardArrays<T>, p.backward)});
    });
  });
}

// One row alone reads each weight once, whatever the panel: many vectors make up for the latency
// of an addition. More rows share the weights they read: few vectors leave registers for them. Two
// or three rows take as many vectors as there are registers for: three, 10 to 17 % less time than
// with four vectors.
int vectors_per_block(std::int64_t rows) {
  constexpr int kLatency = 8;  // multiply-adds in flight that keep two units busy
  constexpr bool kHasRegisters = max_rows(kLatency) >= 3;
  if (rows == 1 || (kHasRegisters && rows <= 3)) return kLatency;
  return kLatency / 2;
}

Blocking block(const Problem& problem, std::int64_t rows, Layout layout) {
  Blocking out{};
  out.layout = layout;
  visit_pass(problem, [&](const auto& pass) {
    using T = typename std::remove_cvref_t<decltype(pass)>::Value;
    const std::int64_t hidden = problem.shape.hidden;
    out.phases = pass.kPhases;
    out.weights_per_word = Packed<T>::kPerLine;
    out.rows = kMaxRows;
    for (int p = 0; p < out.phases; ++p) {
      const int products = pass.products(p);
      const std::int64_t depth = pass.depth(p);
      const LeftOver left = out.left_over[p] = left_over(hidden, products, depth);
      out.columns[p] = products * ceil_div(hidden, kWidth);
      const std::int64_t unit_vectors = ceil_div(hidden - left.units, kWidth);
      const std::int64_t wanted = max(vectors_per_block(layout.rows) / products, 1);
      // As many panels as give each thread the same number.
      const std::int64_t rounds = ceil_div(unit_vectors, wanted * layout.threads);
      out.panels[p] = min(unit_vectors, rounds * layout.threads);
      out.vectors[p] = unit_vectors > 0 ? (int)ceil_div(unit_vectors, out.panels[p]) : 1;
      out.vector_words[p] = lines<T>(depth) * kWidth * products;
      out.phase_words[p] = out.vector_words[p] * unit_vectors;
      out.panel_words = max(out.panel_words, out.vectors[p] * out.vector_words[p]);
      if (left.units > 0) {
        const std::int64_t of_left = words<T>(left, products, depth);
        out.panels[p] += 1;
        out.phase_words[p] += of_left;
        out.panel_words = max(out.panel_words, of_left);
      }
      const int widest = unit_vectors > 0 ? products * out.vectors[p]
                                          : (int)ceil_div(products * left.units, kWidth);
      const int by_halves = max_rows(widest), at_once = rows_in_registers(widest);
      // By halves where one block will do, or each has far more rows: of 16 rows, two blocks of
      // eight take longer than three smaller ones.
      const int allowed = rows <= kMaxRows || at_once * 2 <= by_halves ? by_halves : at_once;
      out.rows = allowed < out.rows ? allowed : out.rows;
      out.group_words += out.phase_words[p];
    }
  });
  return out;
}

PRNN_HD std::int64_t panel_at(const Blocking& blocking, std::int64_t group, int phase,
                              const Units& units) {
  return group * blocking.group_words + (phase == 0 ? 0 : blocking.phase_words[0]) +
         units.first / kWidth * blocking.vector_words[phase];
}

void pack(const Problem& problem, const Blocking& blocking, std::int64_t index, float* packed) {
  visit_pass(problem, [&](const auto& pass) {
    const std::int64_t per_group = blocking.panels[0] + blocking.panels[1];
    const std::int64_t group = index / per_group, in_group = index % per_group;
    const int phase = in_group < blocking.panels[0] ? 0 : 1;
    const std::int64_t panel = in_group - (phase == 0 ? 0 : blocking.panels[0]);
    const Units units = units_of(problem.shape, blocking, phase, pass.products(phase), panel);
    pack_panel(pass, group, phase, units, packed + panel_at(blocking, group, phase, units));
  });
}

// Whether all rows have a product in this step, or none.
template <class Pass>
PRNN_HD bool rows_are_alike(const Pass& pass, std::int64_t step) {
  if constexpr (requires { pass.rows_are_alike(step); })
    return pass.rows_are_alike(step);
  else
    return pass.shape.lengths == nullptr;
}

// The products of `count` rows, then their steps. Rows without a product get zeros.
template <int kPhase, bool kPlain, class Pass>
PRNN_HD void advance_rows(const Pass& pass, const Products& product, const float* panel,
                          Units units, std::int64_t group, std::int64_t step,
                          const std::int64_t* rows, int count, bool multiply) {
  alignas(64) float products[(kMaxRows * kMaxVectors + 1) * kWidth];
  const int vectors = units.product_vectors;
  if (multiply) {
    const float* inputs[kMaxRows] = {};
#pragma GCC unroll 8
    for (int r = 0; r < kMaxRows; ++r)
      if (r < count) inputs[r] = pass.input(group, kPhase, step, rows[r]);
    const std::int64_t depth = pass.depth(kPhase);
    if (units.along_k)
      multiply_along_k(panel, inputs, count, depth, Pass::products(kPhase) * units.product_stride,
                       products);
    else
      product.at[count][vectors](panel, inputs, depth, products);
  } else {
    __builtin_memset(products, 0, sizeof(float) * count * vectors * kWidth);
  }
  // A vector that is read of the last product reaches beyond it where products share vectors.
  if (units.share_vectors())
    __builtin_memset(products + count * vectors * kWidth, 0, sizeof(float) * kWidth);
  take_steps<kPhase, kPlain>(pass, {products, vectors * kWidth, units.product_stride}, units, group,
                             step, rows, count);
}

// Rows in blocks: those that have a product by themselves, so that a row that has ended costs next
// to nothing.
template <int kPhase, class Pass>
PRNN_HD void advance_panel(const Pass& pass, const Blocking& blocking, const float* panel,
                           const Units& units, std::int64_t group, std::int64_t step,
                           const Part& part) {
  const auto advance = [&](auto is_plain, const std::int64_t* rows, int count, bool multiply) {
    advance_rows<kPhase, is_plain.value>(pass, *blocking.products, panel, units, group, step, rows,
                                         count, multiply);
  };
  const std::is_same<typename Pass::Value, float> plain;
  const std::false_type bent;
  std::int64_t with[kMaxRows], without[kMaxRows];
  if (rows_are_alike(pass, step)) {
    const bool multiplies = pass.multiplies(group, kPhase, step, part.first_row);
    std::int64_t blocks = ceil_div(part.last_row - part.first_row, blocking.rows);
    for (std::int64_t b = part.first_row; b < part.last_row; --blocks) {
      const int count = (int)ceil_div(part.last_row - b, blocks);
      for (int r = 0; r < count; ++r) with[r] = b++;
      if (are_plain(pass, group, step, with, count))
        advance(plain, with, count, multiplies);
      else
        advance(bent, with, count, multiplies);
    }
    return;
  }
  int count_with = 0, count_without = 0;
  std::int64_t left = 0;
  for (std::int64_t b = part.first_row; b < part.last_row; ++b)
    left += pass.multiplies(group, kPhase, step, b);
  // Of nearly equal size.
  std::int64_t blocks = ceil_div(left, blocking.rows);
  std::int64_t size = blocks > 0 ? ceil_div(left, blocks) : 0;
  for (std::int64_t b = part.first_row; b < part.last_row; ++b) {
    if (pass.multiplies(group, kPhase, step, b)) {
      with[count_with++] = b;
      if (count_with < size) continue;
      if (are_plain(pass, group, step, with, count_with))
        advance(plain, with, count_with, true);
      else
        advance(bent, with, count_with, true);
      left -= count_with;
      count_with = 0;
      blocks -= 1;
      size = blocks > 0 ? ceil_div(left, blocks) : 0;
    } else {
      without[count_without++] = b;
      if (count_without < blocking.rows) continue;
      advance(bent, without, count_without, false);
      count_without = 0;
    }
  }
  if (count_without > 0) advance(bent, without, count_without, false);
}

template <int kPhase, class Pass>
void advance_phase(const Pass& pass, const Blocking& blocking, float* packed, const Part& part,
                   std::int64_t step) {
  if constexpr (requires { pass.weight_rows(0, 0); })
    if (blocking.in_place)
      return InPlace<kPhase, Pass>{pass, blocking, packed, part, step}.advance();
  for (std::int64_t g = part.first_group; g < part.last_group; ++g)
    for (std::int64_t i = part.first_panel; i < part.last_panel; ++i) {
      // Every other step the other way round: the weights read last are in the cache still.
      const std::int64_t n = step % 2 == 0 ? i : part.first_panel + part.last_panel - 1 - i;
      const Units units = units_of(pass.shape, blocking, kPhase, Pass::products(kPhase), n);
      float* const panel =
          packed + (blocking.places > 0 ? 0 : panel_at(blocking, g, kPhase, units));
      if constexpr (requires { Pass::kPacksInTurn; })
        if (blocking.places > 0) pack_panel(pass, g, kPhase, units, panel);
      advance_panel<kPhase>(pass, blocking, panel, units, g, step, part);
    }
}

void advance(const Problem& problem, const Blocking& blocking, float* packed, const Part& part,
             std::int64_t step, int phase) {
  visit_pass(problem, [&](const auto& pass) {
    if (phase == 0) advance_phase<0>(pass, blocking, packed, part, step);
    if constexpr (std::remove_cvref_t<decltype(pass)>::kPhases > 1)
      if (phase == 1) advance_phase<1>(pass, blocking, packed, part, step);
  });
}

void multiply_columns(const Problem& problem, const Blocking& blocking, float* packed,
                      const Part& part, std::int64_t step, int phase) {
  visit_pass(problem, [&](const auto& pass) {
    using Pass = std::remove_cvref_t<decltype(pass)>;
    if constexpr (requires { pass.weight_rows(0, 0); }) {
      if (phase == 0) InPlace<0, Pass>{pass, blocking, packed, part, step}.multiply_columns();
      if constexpr (Pass::kPhases > 1)
        if (phase == 1) InPlace<1, Pass>{pass, blocking, packed, part, step}.multiply_columns();
    }
  });
}

void advance_all(const Problem& problem, const Blocking& blocking, float* packed, Part part,
                 std::int64_t first, std::int64_t end) {
  part.first_panel = 0;
  visit_pass(problem, [&](const auto& pass) {
    for (std::int64_t step = first; step < end; ++step) {
      part.last_panel = blocking.panels[0];
      advance_phase<0>(pass, blocking, packed, part, step);
      if constexpr (std::remove_cvref_t<decltype(pass)>::kPhases > 1) {
        part.last_panel = blocking.panels[1];
        advance_phase<1>(pass, blocking, packed, part, step);
      }
    }
  });
}

void begin(const Problem& problem, std::int64_t first_row, std::int64_t last_row) {
  visit_pass(problem, [&](const auto& pass) {
    for (std::int64_t b = first_row; b < last_row; ++b)
      for (std::int64_t g = 0; g < pass.shape.groups; ++g)
        for (std::int64_t unit = 0; unit < pass.shape.hidden; unit += kWidth)
          pass.begin(g, b, unit, {(int)min(kWidth, pass.shape.hidden - unit)});
  });
}

void widen(const Problem& problem, const Part& part, std::int64_t piece) {
  visit_pass(problem, [&](const auto& pass) {
    if constexpr (requires { pass.at.rows; })
      for (std::int64_t row = part.first_row; row < part.last_row; ++row)
        for (std::int64_t g = part.first_group; g < part.last_group; ++g)
          for (std::int64_t k = 0; k < pass.at.input_size; k += kWidth)
            pass.widen(g, piece, row, k, {(int)min(kWidth, pass.at.input_size - k)});
  });
}

template <class F>
PRNN_HD void map(const float* in, float* out, std::int64_t n, F f) {
  for (std::int64_t i = 0; i < n; i += kWidth) {
    const Io<float> io{(int)min(kWidth, n - i)};
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
const Isa kIsa{PRNN_STRING(PRNN_ISA),
               kWidth,
               &kProducts<Widening<float>>,
               &kProducts<Widening<Bfloat16>>,
               &kProducts<Widening<Float16>>,
               block,
               pack,
               begin,
               widen,
               advance,
               multiply_columns,
               advance_all,
               transpose_rows,
               multiply_block,
               sigmoid_all,
               tanh_all,
               log_sigmoid_all,
               exp_all};

}  // namespace prnn::PRNN_ISA
