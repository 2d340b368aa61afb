// The engine's inner part. The build compiles this file once for each instruction set, with that
// set's compiler flags and PRNN_ISA as the namespace; cpu/dispatch.cc chooses among the results.
//
// Nothing here may be shared with code compiled for another processor: no standard containers or
// algorithms, only templates over this namespace's types and always-inlined functions.
#include "core/normed_backward.h"
#include "core/projected_passes.h"
#include "core/two_phase_passes.h"
#include "cpu/advance.h"
#include "cpu/elementwise_block.h"
#include "cpu/matrix_block.h"
#include "cpu/problem.h"
#include "cpu/projection.h"
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

Blocking cut(const Problem& problem, const Products& multiply, Layout layout) {
  Blocking out{};
  out.layout = layout;
  out.products = &multiply;
  visit_pass(problem, [&](const auto& pass) {
    using T = typename std::remove_cvref_t<decltype(pass)>::Value;
    out.phases = pass.kPhases;
    out.weights = problem.weights;
    const bool is_int8 = out.weights == WeightFormat::kInt8;
    out.weights_per_word = is_int8 ? Int8::kPerSlice : Packed<T>::kPerSlice;
    out.head_slices = is_int8 ? Int8::kHeadSlices : Widening<T>::kHeadSlices;
    out.rows = kMaxRows;
    for (int p = 0; p < out.phases; ++p) {
      const int products = pass.products(p);
      const std::int64_t depth = pass.depth(p), units = out.units[p] = pass.units(p);
      const std::int64_t unit_vectors = ceil_div(units, kWidth);
      out.columns[p] = products * unit_vectors;
      // One row multiplies all of a panel at once: it takes eight sums to make up for the latency
      // of an addition. More rows take a panel in micropanels.
      const std::int64_t wanted = max(kMaxVectors / products, 1);
      // As many panels as give each thread the same number.
      const std::int64_t rounds = ceil_div(unit_vectors, wanted * layout.threads);
      out.panels[p] = min(unit_vectors, rounds * layout.threads);
      out.vectors[p] = (int)ceil_div(unit_vectors, out.panels[p]);
      out.vector_words[p] = slices(out, depth) * kWidth * products;
      out.phase_words[p] = out.vector_words[p] * unit_vectors;
      out.panel_words = max(out.panel_words, out.vectors[p] * out.vector_words[p]);
      out.micropanel_vectors[p] = multiply.vectors_at_once(products * out.vectors[p], layout.rows);
      out.rows = (int)min(out.rows, multiply.rows_at_once(out.micropanel_vectors[p]));
      if (is_int8) out.rows = (int)min(out.rows, Int8::most_rows(depth));
      out.group_words += out.phase_words[p];
    }
  });
  return out;
}

void pack(const Problem& problem, const Blocking& blocking, const Part& part, int phase,
          float* packed) {
  visit_pass(problem, [&](const auto& pass) {
    for (std::int64_t group = part.first_group; group < part.last_group; ++group)
      for (std::int64_t n = part.first_panel; n < part.last_panel;) {
        Panel panels[kPackedTogether];
        int count = 0;
        for (; count < kPackedTogether && n < part.last_panel; ++count, ++n) {
          const Units units = units_of(blocking, phase, pass.products(phase), n);
          panels[count] = {packed + panel_at(blocking, group, phase, units), units};
        }
        if (problem.weights == WeightFormat::kInt8)
          pack_panels_int8(pass, group, phase, panels, count);
        else
          pack_panels(pass, group, phase, panels, count);
      }
  });
}

// Before others are told that a part is done: what it has put past the caches is there for them.
template <class Pass>
PRNN_HD void fence_far_stores([[maybe_unused]] const Pass& pass) {
#if defined(__AVX512F__)
  if constexpr (requires { pass.at.saves_non_temporal; })
    if (pass.at.saves_non_temporal) _mm_sfence();
#endif
}

void advance(const Problem& problem, const Blocking& blocking, float* packed, const Part& part,
             std::int64_t step, int phase) {
  const Turn turn(*blocking.products, part.last_row - part.first_row);
  visit_pass(problem, [&](const auto& pass) {
    if (phase == 0) advance_phase<0>(pass, blocking, packed, part, step);
    if constexpr (std::remove_cvref_t<decltype(pass)>::kPhases > 1)
      if (phase == 1) advance_phase<1>(pass, blocking, packed, part, step);
    fence_far_stores(pass);
  });
}

void multiply_columns(const Problem& problem, const Blocking& blocking, float* packed,
                      const Part& part, std::int64_t step, int phase) {
  visit_pass(problem, [&](const auto& pass) {
    using Pass = std::remove_cvref_t<decltype(pass)>;
    if constexpr (requires { pass.weight_rows(0, 0); }) {
      if (phase == 0) Unpacked<0, Pass>{pass, blocking, packed, part, step}.multiply_columns();
      if constexpr (Pass::kPhases > 1)
        if (phase == 1) Unpacked<1, Pass>{pass, blocking, packed, part, step}.multiply_columns();
    }
  });
}

void advance_all(const Problem& problem, const Blocking& blocking, float* packed, Part part,
                 std::int64_t first, std::int64_t end) {
  part.first_panel = 0;
  const Turn turn(*blocking.products, part.last_row - part.first_row);
  visit_pass(problem, [&](const auto& pass) {
    for (std::int64_t step = first; step < end; ++step) {
      part.last_panel = blocking.panels[0];
      advance_phase<0>(pass, blocking, packed, part, step);
      if constexpr (std::remove_cvref_t<decltype(pass)>::kPhases > 1) {
        part.last_panel = blocking.panels[1];
        advance_phase<1>(pass, blocking, packed, part, step);
      }
    }
    fence_far_stores(pass);
  });
}

void begin(const Problem& problem, std::int64_t first_row, std::int64_t last_row) {
  visit_pass(problem, [&](const auto& pass) {
    for (std::int64_t b = first_row; b < last_row; ++b)
      for (std::int64_t g = 0; g < pass.shape.groups; ++g)
        for (std::int64_t unit = 0; unit < pass.shape.output(); unit += kWidth)
          pass.begin(g, b, unit, {(int)min(kWidth, pass.shape.output() - unit)});
  });
}

void widen(const Problem& problem, const Part& part, std::int64_t chunk) {
  visit_pass(problem, [&](const auto& pass) {
    if constexpr (requires { pass.at.rows; })
      for (std::int64_t row = part.first_row; row < part.last_row; ++row)
        for (std::int64_t g = part.first_group; g < part.last_group; ++g) pass.widen(g, chunk, row);
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
               &kProducts<Int8>,
               false,
               cut,
               pack,
               begin,
               widen,
               advance,
               multiply_columns,
               advance_all,
               {transpose_rows<float>, multiply_block<float, Widening<float>>},
               {transpose_rows<Bfloat16>, multiply_block<Bfloat16, Widening<Bfloat16>>},
               recur_elements,
               sigmoid_all,
               tanh_all,
               log_sigmoid_all,
               exp_all};

}  // namespace prnn::PRNN_ISA
