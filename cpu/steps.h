// The steps of some rows and units, whose products are there.
#pragma once
#include "cpu/panel.h"
#include "cpu/prefetch.h"

namespace prnn::PRNN_ISA {

// Whether nothing but lengths and resets bends the call's course, as in most calls.
template <class Pass>
PRNN_HD bool is_plain(const Pass& pass) {
  if constexpr (!std::is_same_v<typename Pass::Value, float>)
    return false;
  else if constexpr (requires { pass.at.controls; })
    return pass.at.controls.zoneout == nullptr && pass.at.controls.mask == nullptr &&
           pass.at.multiplied == nullptr;
  else
    return true;
}

// And not those either.
template <class Pass>
PRNN_HD void straighten(Pass& pass) {
  pass.shape.lengths = nullptr;
  if constexpr (requires { pass.at.controls; }) pass.at.controls.resets = nullptr;
}
template <class Pass>
PRNN_HD bool is_straight(const Pass& pass) {
  if constexpr (requires { pass.at.controls; })
    if (pass.at.controls.resets != nullptr) return false;
  return pass.shape.lengths == nullptr;
}

// Whether steps of some rows, which count, are those of a call that nothing bends: what is in
// float32 and plain has code of its own, for looking after each control costs a tenth of a short
// step, and more.
template <class Pass>
PRNN_HD bool are_plain(const Pass& pass, std::int64_t group, std::int64_t step,
                       const std::int64_t* rows, int count) {
  if (!is_plain(pass)) return false;
  if (is_straight(pass)) return true;
  for (int r = 0; r < count; ++r)
    if (pass.bends(group, step, rows[r])) return false;
  return true;
}

// What the steps of some rows take: `count` units' products of row r and gate n begin at
// [r · row_stride + n · gate_stride].
struct Multiplied {
  const float* products;
  std::int64_t row_stride, gate_stride;
};

// Not inlined: it is most of the engine's code.
template <int kPhase, bool kPlain, class Pass>
[[gnu::noinline]] void take_steps(const Pass& shared, Multiplied multiplied, Units units,
                                  std::int64_t group, std::int64_t step, const std::int64_t* rows,
                                  int count) {
  Pass pass = shared;  // a copy, which no store below can change
  if (kPlain && !is_plain(pass)) __builtin_unreachable();
  if (kPlain) straighten(pass);
  constexpr int kGates = Pass::products(kPhase);
  constexpr bool kCanAsk = requires { is_worth_asking(shared); };
  using UnitIo = Io<typename Pass::Value>;
  const UnitIo whole{kWidth};  // products of no unit are of no consequence
  const auto take = [&](std::int64_t row, const float* products, int v,
                        auto asks) __attribute__((always_inline)) {
    if constexpr (kCanAsk)
      if (asks) ask_for_step(pass, group, step + 1, row, units.first_of(v));
    Vec<kGates, Simd> of_unit;
    for (int gate = 0; gate < kGates; ++gate)
      of_unit[gate] = whole.load(products + gate * multiplied.gate_stride + v * kWidth);
    const UnitIo io{units.count_of(pass.shape, v)};
    pass.template step<kPhase>(group, step, row, units.first_of(v), of_unit, io);
  };
  const auto products_of = [&](int r) { return multiplied.products + r * multiplied.row_stride; };
  bool asks = false;
  if constexpr (kCanAsk) asks = is_worth_asking(pass);
  if constexpr (kGates == 1) {
    const auto take_all = [&](auto asks) __attribute__((always_inline)) {
      for (int r = 0; r < count; ++r) {
        const std::int64_t row = rows[r];
        const float* const products = products_of(r);
        for (int v = 0; v < units.vectors; ++v) take(row, products, v, asks);
      }
    };
    // Steps this short would feel the question.
    if constexpr (!kPlain)
      take_all(asks);
    else if (asks)
      take_all(std::true_type{});
    else
      take_all(std::false_type{});
  } else {
    // A vector or two of each row. As one loop, or the compiler would prepare more for each row
    // than the step of a vector takes: a tenth of short steps. A part may have no vector at all.
    for (int n = 0, r = 0, v = 0; n < count * units.vectors; ++n) {
      take(rows[r], products_of(r), v, asks);
      if (++v == units.vectors) v = 0, ++r;
    }
  }
}

}  // namespace prnn::PRNN_ISA
