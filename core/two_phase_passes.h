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
    const std::int64_t stride = C::kGates * shape.hidden;
    return {at.w_hh + g * shape.hidden * stride + phase * kOpen * shape.hidden, stride};
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
    if (phase == 1) return between(g, b);
    if constexpr (std::is_same_v<T, float>)
      if (at.multiplied == nullptr)
        return at.controls.replaced(Base::h_before(at.y, at.state_0[0], g, s, b), shape, g, s, b);
    return Base::slot(at.multiplied, g, s, b, 1);
  }
  PRNN_HD void begin(std::int64_t g, std::int64_t b, std::int64_t unit, Io io) const {
    hand_on(g, -1, b, unit, io.load(at.state_0[0] + shape.state_at(b, g) + unit), io);
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
    Vec<1, F> prev{io.load(Base::h_before(at.y, at.state_0[0], g, s, b) + unit)};
    if (s >= shape.length(b, g)) {
      if (s == 0) io.store(at.state_n[0] + state, prev[0]);
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
      hand_on(g, s, b, unit, h, io);
      if (s + 1 == shape.length(b, g)) io.store(at.state_n[0] + state, h);
      if (at.saved != nullptr)
        Base::keep_values(at.saved + shape.sequence_at(b, t, g, saved_values<C>) + unit,
                          out.reserve, at.saves_non_temporal, io);
    }
  }

 private:
  PRNN_HD void hand_on(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit, F h,
                       Io io) const {
    if (at.multiplied != nullptr)
      io.store(Base::slot(at.multiplied, g, s + 1, b, 1) + unit,
               io.stored(at.controls.product_input(h, shape, g, s + 1, b, unit, io)));
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
    const std::int64_t stride = C::kGates * shape.hidden;
    return {at.w_hh + g * shape.hidden * stride + phase * kOpen * shape.hidden, stride};
  }
  PRNN_HD T bias(std::int64_t, int, std::int64_t, int) const { return T{}; }
  // Phase 0 multiplies ∂a_r, ∂a_z of the step processed before; phase 1 ∂a_n of this one.
  PRNN_HD bool multiplies(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    const std::int64_t step = shape.time - 1 - s + (phase == 0 ? 1 : 0);
    return step >= 0 && step < shape.length(b, g);
  }
  PRNN_HD bool has_controls(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return at.has_controls(shape, g, shape.time - 1 - s, b);  // by the step of the forward pass
  }
  PRNN_HD const float* input(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    const std::int64_t from = (phase == 0 ? 0 : kOpen) * shape.hidden;
    if constexpr (std::is_same_v<T, float>)
      if (at.multiplied == nullptr) {
        const std::int64_t step = shape.time - 1 - s + (phase == 0 ? 1 : 0);
        return at.da_h + from + shape.sequence_at(b, shape.time_at(g, step, b), g, C::kGates);
      }
    return Base::slot(at.multiplied, g, phase == 0 ? s : s + 1, b, C::kGates) + from;
  }
  PRNN_HD void begin(std::int64_t, std::int64_t, std::int64_t, Io) const {}

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<1, F>& product, Io io) const {
    if (kPhase == 1 && s == shape.time) return;
    const std::int64_t state = shape.state_at(b, g) + unit;
    float* carry = carried_at(g, b, unit);
    Vec<1, F> d{kPhase == 0 && s == 0 ? io.load(at.dstate_n[0] + state) : io.load(carry)};
    const F through = at.controls.masked(product[0], shape, g, b, unit, io);
    if constexpr (kPhase == 0) {
      if (multiplies(g, 0, s, b)) d[0] = d[0] + through;  // else the mask may be no number
      if (s == 0) at.no_resets_yet(shape, g, b, unit, io);
      at.hand_to_reset(shape, g, shape.time - s, b, unit, d, io);
    }
    if (s == shape.time) return io.store(at.dstate_0[0] + state, d[0]);

    const std::int64_t step = shape.time - 1 - s;  // of the forward pass
    const std::int64_t t = shape.time_at(g, step, b);
    if (step >= shape.length(b, g)) {
      io.store(carry, d[0]);
      if (kPhase == 0) publish(g, s, b, t, unit, 0, Vec<C::kGates, F>{}, io);
      return;
    }
    Vec<1, F> prev{io.load(Base::h_before(at.y, at.state_0[0], g, step, b) + unit)};
    at.controls.replace(prev, shape, g, step, b, unit, io);
    const auto reserve = Base::template load_values<C::kReserve>(
        at.saved + shape.sequence_at(b, t, g, saved_values<C>) + unit, io);
    if constexpr (kPhase == 0) {
      const std::int64_t y_at = shape.sequence_at(b, t, g, 1) + unit;
      d[0] = d[0] + io.load(at.dy + y_at);
      Vec<1, F> kept{};
      at.controls.zone_out_grad(d, kept, shape, g, t, b, unit, io);
      const auto out = cell.open_grad(d[0], prev[0], reserve);
      publish(g, s, b, t, unit, 1, Vec<2, F>{out.da_z, out.da_n}, io);
      io.store(carry, at.controls.zoneout == nullptr ? out.dh : out.dh + kept[0]);
    } else {
      const auto out = cell.close_grad(through, d[0], prev[0], reserve);
      publish(g, s, b, t, unit, 0, Vec<1, F>{out.da_r}, io);
      io.store(carry, out.dh);
    }
  }

 private:
  PRNN_HD float* carried_at(std::int64_t g, std::int64_t b, std::int64_t unit) const {
    return Base::carried_at(at.carried, g, b, unit, 0, 1);
  }
  // Gradients of the gates from `gate` on.
  template <int N>
  PRNN_HD void publish(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t t,
                       std::int64_t unit, int gate, const Vec<N, F>& da, Io io) const {
    const std::int64_t from = gate * shape.hidden + unit;
    Base::store_values(at.da_h + shape.sequence_at(b, t, g, C::kGates) + from, da, io);
    if (at.multiplied == nullptr) return;
    Vec<N, F> stored;
    for (int n = 0; n < N; ++n) stored[n] = io.stored(da[n]);
    Base::store_values(Base::slot(at.multiplied, g, s + 1, b, C::kGates) + from, stored, io);
  }
};

}  // namespace prnn
