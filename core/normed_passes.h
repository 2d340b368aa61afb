// The forward pass over a cell with layer norm inside of its step, and what it shares with the
// backward pass (core/normed_backward.h). The first phase makes products, unit by unit, as other
// cells have them; the second, which multiplies nothing, takes a row's step as a whole, for means
// and variances are of all of its units. Their sums are taken vector by vector, in one order, by
// whoever takes the row: no bit depends on how work is divided.
//
// a_x is what x w_ih gives: where parts are normalised apart, that is done here, too.
//
// What a row is divided into, there, is nothing: the phase's "units" are places in a round, which
// threads divide among them, and a row is taken at the place of its number.
#pragma once
#include "core/passes.h"
#include "core/row_norm.h"

namespace prnn {

// What both passes over such a cell share.
template <class C, class Io, class T>
struct NormedPassBase : PassBase<C, Io, T> {
  using Base = PassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  static constexpr int kGates = C::kGates;
  using OfGates = RowNorm<kGates, Io>;
  using OfInner = RowNorm<1, Io>;

  PRNN_HD std::int64_t units(int phase) const {
    return phase == 0 ? shape.hidden : kRowsOfRound * Io::kUnits;
  }

 protected:
  template <class Visit>
  PRNN_HD void each(Visit&& f) const {
    OfInner::each(shape.hidden, f);
  }
  // Whether row b is taken at this place of the round.
  PRNN_HD bool is_at(std::int64_t unit, std::int64_t b) const {
    return unit / Io::kUnits == b % kRowsOfRound;
  }
  PRNN_HD OfGates of_gates() const { return {shape.hidden, cell.norm.per_gate}; }
  PRNN_HD OfInner of_inner() const { return {shape.hidden, false}; }
  PRNN_HD bool normalises_inner() const { return C::kInner && cell.norm.inner != InnerNorm::kNone; }
  PRNN_HD bool normalises_x() const { return !cell.norm.of_sum; }
  // Kept for the backward pass, per unit and step: gates, products, and a_x where that is
  // normalised; then the states that are not y.
  PRNN_HD int reserve() const { return (normalises_x() ? 3 : 2) * kGates; }
  PRNN_HD int kept() const { return reserve() + C::kStates - 1; }
  // The n-th of a row's values.
  PRNN_HD float* scratch(float* of_all, std::int64_t g, std::int64_t b, int n) const {
    return of_all + shape.padded_row(b, g, norm_scratch(kGates)) + n * shape.hidden;
  }
  // Of what has been made of products, and of a_x: as the cell takes them.
  PRNN_HD static Vec<kGates, F> seen_h(const PerUnit<C, F>& own, const Vec<kGates, F>& of_h) {
    Vec<kGates, F> out;
    for (int n = 0; n < kGates; ++n) out[n] = own[n] * of_h[n] + own[kGates + n];
    return out;
  }
  PRNN_HD static Vec<kGates, F> seen_x(const PerUnit<C, F>& own, const Vec<kGates, F>& of_x) {
    Vec<kGates, F> out;
    for (int n = 0; n < kGates; ++n) out[n] = own[C::kGainX + n] * of_x[n];
    if constexpr (!C::kInner) out[kGates - 1] = out[kGates - 1] + own[C::kShiftX];
    return out;
  }
  // Of the inner value, scaled.
  PRNN_HD static F seen(const PerUnit<C, F>& own, F of_inner) {
    if constexpr (C::kInner)
      return own[C::kOfInner] * of_inner + own[C::kOfInner + 1];
    else
      return of_inner;
  }
};

template <NormedCell C, class Io, class T>
struct ForwardPass<C, Io, T> : NormedPassBase<C, Io, T> {
  using Base = NormedPassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape, Base::each, Base::kGates;
  using typename Base::OfGates, typename Base::OfInner;
  ForwardArrays<T> at;

  PRNN_HD static constexpr int products(int phase) { return phase == 0 ? kGates : 1; }
  PRNN_HD std::int64_t depth(int phase) const { return phase == 0 ? shape.hidden : 0; }
  PRNN_HD std::int64_t steps() const { return shape.time; }
  PRNN_HD T weight(std::int64_t g, int, std::int64_t unit, int product, std::int64_t k) const {
    return Base::w(at.w_hh, g, k, product, unit);
  }
  PRNN_HD WeightRows<T> weight_rows(std::int64_t g, int) const {
    return Base::rows_of(at.w_hh, g, 0);
  }
  // It is added to what has been normalised, a unit's shift.
  PRNN_HD T bias(std::int64_t, int, std::int64_t, int) const { return T{}; }
  PRNN_HD bool multiplies(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    return phase == 0 && s < shape.length(b, g);
  }
  PRNN_HD bool has_controls(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return at.has_controls(shape, g, s, b);
  }
  PRNN_HD const float* input(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    return Base::h_input(at, g, s, b);
  }
  PRNN_HD void begin(std::int64_t g, std::int64_t b, std::int64_t unit, Io io) const {
    Base::hand_on_first(at, g, b, unit, io);
  }

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<(kPhase == 0 ? kGates : 1), F>& product, Io io) const {
    if constexpr (kPhase == 0)
      Base::store_values(values(g, b) + unit, product, io);
    else if (Base::is_at(unit, b))
      take_row(g, s, b);
  }

 private:
  // Of a row: products, of which the step makes the gates; and what it makes inside.
  PRNN_HD float* values(std::int64_t g, std::int64_t b) const {
    return Base::scratch(at.phase_scratch, g, b, 0);
  }

  PRNN_HD void take_row(std::int64_t g, std::int64_t s, std::int64_t b) const {
    if (s >= shape.length(b, g)) return end_row(g, s, b);
    const std::int64_t row = Base::row_of(g, s, b), hidden = shape.hidden;
    float* const products = values(g, b);
    float* const inner = products + kGates * hidden;
    const float epsilon = cell.norm.epsilon;
    const bool of_inner = Base::normalises_inner(), of_parts = Base::normalises_x();
    const bool saves = at.saved != nullptr && at.saves_reserve;
    T* const saved = saves ? at.saved + Base::in_sequence(row, Base::kept()) : nullptr;
    const auto raw_x = [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      return Base::values(Base::template fetch_a_x<kGates>(at, row, g, s, b, unit, 0, io), io);
    };
    const auto raw_h = [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      auto raw = Base::template load_values<kGates>(products + unit, io);
      if (of_parts) return raw;
      const auto a_x = raw_x(unit, io);
      for (int n = 0; n < kGates; ++n) raw[n] = raw[n] + a_x[n];
      return raw;
    };

    auto sums_h = OfGates::zeros(), sums_x = OfGates::zeros();
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const auto h = raw_h(unit, io);
      OfGates::add(sums_h, h, io);
      if (saves) Base::keep_values(saved + kGates * hidden + unit, h, at.saves_non_temporal, io);
      if (!of_parts) return;
      const auto x = raw_x(unit, io);
      OfGates::add(sums_x, x, io);
      if (saves)
        Base::keep_values(saved + 2 * kGates * hidden + unit, x, at.saves_non_temporal, io);
    });
    const auto norm = Base::of_gates();
    const auto scale_h = norm.scale(sums_h, epsilon, raw_h);
    typename OfGates::Scale scale_x{};
    if (of_parts) scale_x = norm.scale(sums_x, epsilon, raw_x);
    auto sums = OfInner::zeros();
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const auto own = Base::per_unit(at.per_unit, g, unit, io);
      const auto a_h = Base::seen_h(own, scale_h(raw_h(unit, io)));
      const auto a_x = of_parts ? Base::seen_x(own, scale_x(raw_x(unit, io))) : OfGates::zeros();
      const auto prev = before(g, s, b, unit, io);
      const auto opened = cell.open(a_x, a_h, prev);
      if (!of_inner) return finish(g, s, b, row, unit, opened, opened.inner, prev, io);
      Base::store_values(products + unit, opened.gates, io);
      io.store(inner + unit, opened.inner);
      OfInner::add(sums, {opened.inner}, io);
    });
    if (!of_inner) return;
    const auto made = [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      return Vec<1, F>{io.load(inner + unit)};
    };
    const auto scale = Base::of_inner().scale(sums, epsilon, made);
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const auto value = made(unit, io);
      const typename C::template Opened<F> opened{
          Base::template load_values<kGates>(products + unit, io), value[0]};
      const F seen = Base::seen(Base::per_unit(at.per_unit, g, unit, io), scale(value)[0]);
      finish(g, s, b, row, unit, opened, seen, before(g, s, b, unit, io), io);
    });
  }
  PRNN_HD void finish(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t row,
                      std::int64_t unit, const typename C::template Opened<F>& opened, F seen,
                      const State<C, F>& prev, Io io) const {
    State<C, F> next = cell.close(opened, seen, prev);
    at.controls.zone_out(next, prev, shape, g, shape.time_at(g, s, b), b, unit, io);
    next[0] = io.stored(next[0]);
    io.store(at.y + Base::in_sequence(row, 1) + unit, next[0]);
    Base::hand_on(at, g, s, b, unit, next[0], io);
    const std::int64_t state = shape.state_at(b, g) + unit;
    for (int n = 1; n < C::kStates; ++n) io.store(carried(g, b, unit, n), next[n]);
    if (s + 1 == shape.length(b, g))
      for (int n = 0; n < C::kStates; ++n) at.state_n.store(n, state, next[n], io);
    if (at.saved == nullptr) return;
    const int first = at.saves_reserve ? Base::reserve() : 0;  // of the states
    T* const saved = at.saved + Base::in_sequence(row, first + C::kStates - 1) + unit;
    if (at.saves_reserve) Base::keep_values(saved, opened.gates, at.saves_non_temporal, io);
    if constexpr (C::kStates > 1)
      Base::keep_values(saved + first * shape.hidden, Vec<1, F>{next[1]}, at.saves_non_temporal,
                        io);
  }
  PRNN_HD void end_row(std::int64_t g, std::int64_t s, std::int64_t b) const {
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const std::int64_t state = shape.state_at(b, g) + unit;
      if (s == 0)
        for (int n = 0; n < C::kStates; ++n)
          at.state_n.store(n, state, at.state_0.load(n, state, io), io);
      io.store(at.y + Base::in_sequence(Base::row_of(g, s, b), 1) + unit, F(0.0f));
    });
  }
  // The states that the step starts from.
  PRNN_HD State<C, F> before(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                             Io io) const {
    State<C, F> prev;
    prev[0] = io.load(Base::h_before(at.y, at.state_0.h, g, s, b) + unit);
    for (int n = 1; n < C::kStates; ++n)
      prev[n] = s == 0 ? at.state_0.load(n, shape.state_at(b, g) + unit, io)
                       : io.load(carried(g, b, unit, n));
    at.controls.replace(prev, shape, g, s, b, unit, io);
    return prev;
  }
  PRNN_HD float* carried(std::int64_t g, std::int64_t b, std::int64_t unit, int n) const {
    return Base::carried_at(at.carried, g, b, unit, n - 1, C::kStates - 1);
  }
};

}  // namespace prnn
