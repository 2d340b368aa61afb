// The steps of some rows and units, whose products are there.
#pragma once
#include "cpu/fast_path.h"
#include "cpu/io.h"
#include "cpu/prefetch.h"
#include "cpu/problem.h"

namespace prnn::PRNN_ISA {

// Rows that are multiplied at once, whose steps follow.
struct RowBlock {
  std::int64_t rows[kMaxRows];
  const float* inputs[kMaxRows];  // what they multiply
  int count;
  bool multiplies;                 // or there is nothing to multiply, and products are zero
  const ProductsBySize* products;  // by what its inputs are
  bool is_fast;                    // as are_fast() says
};

// Vectors of units, side by side, whose products wait for their steps. They lie panel by panel, of
// one size: that of row r and gate n of the first vector at products[r · row_stride +
// n · gate_stride], of the next kWidth further, or in the next panel.
struct Pending {
  std::int64_t units, first_unit;  // of the phase; of these
  int vectors, per_panel;
  float* products;
  std::int64_t row_stride, gate_stride, panel_stride;

  // f(unit, lanes, its products) for each vector of a row. As one loop, or the compiler would
  // prepare more for each panel than the step of a vector takes.
  template <class F>
  PRNN_HD void visit(int row, F&& f) const {
    float* at = products + row * row_stride;
    const std::int64_t to_next_panel = panel_stride - (per_panel - 1) * kWidth;
    std::int64_t unit = first_unit;
    for (int n = 0, v = 0; n < vectors; ++n, unit += kWidth) {
      f(unit, (int)min(units - unit, kWidth), at);
      const bool is_last = ++v == per_panel;
      at += is_last ? to_next_panel : kWidth;
      v = is_last ? 0 : v;
    }
  }
  template <int kGates>
  PRNN_HD Vec<kGates, Simd> load(const float* at) const {
    const Io<float> whole{kWidth};  // products of no unit are of no consequence
    Vec<kGates, Simd> values;
    for (int gate = 0; gate < kGates; ++gate) values[gate] = whole.load(at + gate * gate_stride);
    return values;
  }
  template <int kGates>
  PRNN_HD void store(float* at, const Vec<kGates, Simd>& values, int lanes) const {
    const Io<float> io{lanes};
    for (int gate = 0; gate < kGates; ++gate) io.store(at + gate * gate_stride, values[gate]);
  }
};

// A pass that takes products as activate() leaves them.
template <class Pass>
PRNN_HD const Pass& of_activated(const Pass& pass) {
  return pass;
}
template <CellInParts C, class Io, class T>
PRNN_HD ForwardPass<Activated<C>, Io, T> of_activated(const ForwardPass<C, Io, T>& pass) {
  return {{{pass.cell}, pass.shape}, pass.at};
}

// Activates a row's products where they lie.
template <class Pass>
PRNN_HD void activate(const Pass&, const Pending&, std::int64_t, std::int64_t, std::int64_t, int) {}
template <CellInParts C, class Io, class T>
PRNN_HD void activate(const ForwardPass<C, Io, T>& pass, const Pending& pending, std::int64_t group,
                      std::int64_t step, std::int64_t row, int pending_row) {
  pending.visit(pending_row,
                [&](std::int64_t unit, int lanes, float* at) __attribute__((always_inline)) {
                  const auto a_x = pass.fetch(group, step, row, unit, Io{lanes}).a_x;
                  const auto a_h = pending.load<C::kGates>(at);
                  pending.store<C::kGates>(at, pass.cell.activate(a_x, a_h), lanes);
                });
}

// The steps of a block's rows; its first is row `first` of those that wait. A row's are taken one
// after the other: where it lies is made out once for all of them. Not inlined: it is most of the
// engine's code.
template <int kPhase, bool kFast, class Pass>
[[gnu::noinline]] void take_steps(const Pass& shared, const Pending& all, std::int64_t group,
                                  std::int64_t step, const RowBlock& block, int first) {
  const Pending pending = all;  // copies, which no store below can change
  Pass pass = shared;
  if (kFast && !(is_fast(pass) && is_inner(pass, step))) __builtin_unreachable();
  if (kFast) straighten(pass);
  const auto& finishing = of_activated(pass);
  constexpr int kGates = Pass::products(kPhase);
  constexpr bool kCanAsk = requires { is_worth_prefetching(pass); };
  bool asks = false;
  if constexpr (kCanAsk) asks = is_worth_prefetching(pass);
  for (int r = 0; r < block.count; ++r) {
    const std::int64_t row = block.rows[r];
    if (block.multiplies) activate(pass, pending, group, step, row, first + r);
    pending.visit(first + r, [&](std::int64_t unit, int lanes,
                                 const float* at) __attribute__((always_inline)) {
      if constexpr (kCanAsk)
        if (asks && begins_line(unit)) prefetch_step(pass, group, step + 1, row, unit);
      const Io<typename Pass::Value> io{lanes};
      finishing.template step<kPhase>(group, step, row, unit, pending.load<kGates>(at), io);
    });
  }
}

// Of passes that have plain steps, or not.
template <int kPhase, class Pass>
void take_steps_of(const Pass& pass, const Pending& pending, std::int64_t group, std::int64_t step,
                   const RowBlock& block, int first) {
  if constexpr (kHasFastPath<Pass>)
    if (block.is_fast) return take_steps<kPhase, true>(pass, pending, group, step, block, first);
  take_steps<kPhase, false>(pass, pending, group, step, block, first);
}

}  // namespace prnn::PRNN_ISA
