// The passes over a cell whose step is two products in series (GRU, reset before the product).
// Forward: the gates r and z from h, then n from r h. Backward: ∂(r h) from ∂a_n, then what that
// and the published ∂a_r, ∂a_z give for the step before.
#pragma once
#include "core/passes.h"

namespace prnn {

template <TwoPhaseCell C, class Io, class T>
struct ForwardPass<C, Io, T> : PassBase<C, Io, T> {
  using Base = PassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  static constexpr int kOpen = C::kOpenGates, kPhaseScratch = 1 + kOpen;
  ForwardArrays<T> at;

  PRNN_HD static constexpr int products(int phase) { return phase == 0 ? kOpen : 1; }
  PRNN_HD std::int64_t depth(int) const { return shape.hidden; }
  PRNN_HD std::int64_t steps() const { return shape.time; }
  PRNN_HD T weight(std::int64_t g, int phase, std::int64_t unit, int product,
                   std::int64_t k) const {
    return Base::w(at.w_hh, g, k, phase * kOpen + product, unit);
  }
  PRNN_HD WeightRows<T> weight_rows(std::int64_t g, int phase) const {
    return Base::rows_of(at.w_hh, g, phase * kOpen);
  }
  PRNN_HD T bias(std::int64_t g, int phase, std::int64_t unit, int product) const {
    return at.b_hh[(g * C::kGates + phase * kOpen + product) * shape.hidden + unit];
  }
  PRNN_HD bool multiplies(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    return s < shape.length(b, g);
  }
  PRNN_HD bool has_controls(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return at.has_controls(shape, g, s, b);
  }
  PRNN_HD const float* input(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    return phase == 1 ? between(g, b) : Base::h_input(at, g, s, b);
  }
  PRNN_HD void begin(std::int64_t g, std::int64_t b, std::int64_t unit, Io io) const {
    Base::hand_on_first(at, g, b, unit, io);
  }
  // [r h, r, z] of a row, written by the first phase and read by the second.
  PRNN_HD float* between(std::int64_t g, std::int64_t b) const {
    return at.phase_scratch + shape.padded_row(b, g, kPhaseScratch);
  }

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<(kPhase == 0 ? kOpen : 1), F>& a_h, Io io) const {
    const std::int64_t t = shape.time_at(g, s, b), state = shape.state_at(b, g) + unit;
    T* y = at.y + shape.sequence_at(b, t, g, 1) + unit;
    Vec<1, F> prev{io.load(Base::h_before(at.y, at.state_0.h, g, s, b) + unit)};
    if (s >= shape.length(b, g)) {
      if (s == 0) at.state_n.store(0, state, prev[0], io);
      if (kPhase == 1) io.store(y, F(0.0f));
      return;
    }
    at.controls.replace(prev, shape, g, s, b, unit, io);
    float* kept = between(g, b) + unit;
    if constexpr (kPhase == 0) {
      const auto a_x = Base::values(
          Base::template fetch_a_x<kOpen>(at, Base::row_of(g, s, b), g, s, b, unit, 0, io), io);
      const auto out = cell.open(a_x, a_h, prev[0]);
      io.store(kept, io.stored(at.controls.masked(out.published, shape, g, b, unit, io)));
      Base::store_values(kept + shape.hidden, out.kept, io);
    } else {
      const auto a_x = Base::values(
          Base::template fetch_a_x<1>(at, Base::row_of(g, s, b), g, s, b, unit, kOpen, io), io);
      Forward<C, F> out = cell.close(a_x[0], a_h[0], prev[0],
                                     Base::template load_values<kOpen>(kept + shape.hidden, io));
      at.controls.zone_out(out.next, prev, shape, g, t, b, unit, io);
      const F h = io.stored(out.next[0]);
      io.store(y, h);
      Base::hand_on(at, g, s, b, unit, h, io);
      if (s + 1 == shape.length(b, g)) at.state_n.store(0, state, h, io);
      if (at.saved != nullptr)
        Base::keep_values(at.saved + shape.sequence_at(b, t, g, saved_values<C>) + unit,
                          out.reserve, at.saves_non_temporal, io);
    }
  }
};

template <TwoPhaseCell C, class Io, class T>
struct BackwardPass<C, Io, T> : PassBase<C, Io, T> {
  using Base = PassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  static constexpr int kOpen = C::kOpenGates;
  BackwardArrays<T> at;

  PRNN_HD static constexpr int products(int) { return 1; }
  PRNN_HD std::int64_t depth(int phase) const { return (phase == 0 ? kOpen : 1) * shape.hidden; }
  PRNN_HD std::int64_t steps() const { return shape.time + 1; }
  PRNN_HD T weight(std::int64_t g, int phase, std::int64_t unit, int, std::int64_t k) const {
    return Base::w(at.w_hh, g, unit, phase * kOpen, k);
  }
  PRNN_HD WeightColumns<T> weight_columns(std::int64_t g, int phase) const {
    return Base::columns_of(at.w_hh, g, phase * kOpen);
  }
  PRNN_HD T bias(std::int64_t, int, std::int64_t, int) const { return T{}; }
  // Phase 0 multiplies ∂a_r, ∂a_z of the step processed before; phase 1 ∂a_n of this one.
  PRNN_HD bool multiplies(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    const std::int64_t step = Base::forward_step(s) + (phase == 0 ? 1 : 0);
    return step >= 0 && step < shape.length(b, g);
  }
  PRNN_HD bool has_controls(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return at.has_controls(shape, g, Base::forward_step(s), b);
  }
  PRNN_HD const float* input(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    if (phase == 0) return Base::da_input(at, g, s, b);
    return Base::da_input(at, g, s + 1, b) + kOpen * shape.hidden;
  }
  PRNN_HD void begin(std::int64_t, std::int64_t, std::int64_t, Io) const {}

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<1, F>& product, Io io) const {
    if (kPhase == 1 && s == shape.time) return;
    float* const carry = Base::carried_at(at.carried, g, b, unit, 0, 1);
    Vec<1, F> d;
    if constexpr (kPhase == 0)
      d = Base::gathered(at, g, s, b, unit, product[0], multiplies(g, 0, s, b), io);
    else
      d[0] = io.load(carry);
    if (s == shape.time) return at.dstate_0.store(0, shape.state_at(b, g) + unit, d[0], io);

    const std::int64_t step = Base::forward_step(s), row = Base::row_of(g, step, b);
    if (step >= shape.length(b, g)) {
      io.store(carry, d[0]);
      if (kPhase == 0) Base::publish_da(at, g, s, b, row, unit, 0, Vec<C::kGates, F>{}, io);
      return;
    }
    Vec<1, F> prev{io.load(Base::h_before(at.y, at.state_0[0], g, step, b) + unit)};
    at.controls.replace(prev, shape, g, step, b, unit, io);
    const auto reserve = Base::template load_values<C::kReserve>(
        at.saved + Base::in_sequence(row, saved_values<C>) + unit, io);
    if constexpr (kPhase == 0) {
      d[0] = d[0] + io.load(at.dy + Base::in_sequence(row, 1) + unit);
      Vec<1, F> kept{};
      at.controls.zone_out_grad(d, kept, shape, g, shape.time_at(g, step, b), b, unit, io);
      const auto out = cell.open_grad(d[0], prev[0], reserve);
      Base::publish_da(at, g, s, b, row, unit, 1, Vec<2, F>{out.da_z, out.da_n}, io);
      io.store(carry, at.controls.zoneout == nullptr ? out.dh : out.dh + kept[0]);
    } else {
      const F through = at.controls.masked(product[0], shape, g, b, unit, io);
      const auto out = cell.close_grad(through, d[0], prev[0], reserve);
      Base::publish_da(at, g, s, b, row, unit, 0, Vec<1, F>{out.da_r}, io);
      io.store(carry, out.dh);
    }
  }
};

}  // namespace prnn
