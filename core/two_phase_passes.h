// The passes over a cell whose step is two products in series (GRU, reset before the product).
// Forward: the gates r and z from h, then n from r h. Backward: ∂(r h) from ∂a_n, then what that
// and the published ∂a_r, ∂a_z give for the step before.
#pragma once
#include "core/passes.h"

namespace prnn {

template <TwoPhaseCell C, class Io>
struct ForwardPass<C, Io, float> : PassBase<C, Io, float> {
  using Base = PassBase<C, Io, float>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  static constexpr int kOpen = C::kOpenGates, kBetween = 1 + kOpen;
  ForwardArrays<> at;

  PRNN_HD static constexpr int products(int phase) { return phase == 0 ? kOpen : 1; }
  PRNN_HD std::int64_t depth(int) const { return shape.hidden; }
  PRNN_HD std::int64_t steps() const { return shape.time; }
  PRNN_HD float weight(std::int64_t g, int phase, std::int64_t unit, int product,
                       std::int64_t k) const {
    return Base::w(at.w_hh, g, k, phase * kOpen + product, unit);
  }
  PRNN_HD float bias(std::int64_t g, int phase, std::int64_t unit, int product) const {
    return at.b_hh[(g * C::kGates + phase * kOpen + product) * shape.hidden + unit];
  }
  PRNN_HD const float* input(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    return phase == 0 ? Base::h_before(at.y, at.state_0[0], g, s, b) : between(g, b);
  }
  // [r h, r, z] of a row, written by the first phase and read by the second.
  PRNN_HD float* between(std::int64_t g, std::int64_t b) const {
    return at.between + kBetween * shape.state_at(b, g);
  }

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<(kPhase == 0 ? kOpen : 1), F>& a_h, Io io) const {
    const std::int64_t t = shape.time_at(g, s);
    const F h = io.load(input(g, 0, s, b) + unit);
    const float* a_x = at.a_x + shape.sequence_at(b, t, g, C::kGates) + unit;
    float* kept = between(g, b) + unit;
    if constexpr (kPhase == 0) {
      const auto out = cell.open(Base::template load_values<kOpen>(a_x, io), a_h, h);
      io.store(kept, out.published);
      Base::store_values(kept + shape.hidden, out.kept, io);
    } else {
      const Forward<C, F> out =
          cell.close(io.load(a_x + kOpen * shape.hidden), a_h[0], h,
                     Base::template load_values<kOpen>(kept + shape.hidden, io));
      io.store(at.y + shape.sequence_at(b, t, g, 1) + unit, out.next[0]);
      if (s == shape.time - 1) io.store(at.state_n[0] + shape.state_at(b, g) + unit, out.next[0]);
      if (at.saved != nullptr)
        Base::store_values(at.saved + shape.sequence_at(b, t, g, saved_values<C>) + unit,
                           out.reserve, io);
    }
  }
};

template <TwoPhaseCell C, class Io>
struct BackwardPass<C, Io, float> : PassBase<C, Io, float> {
  using Base = PassBase<C, Io, float>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  static constexpr int kOpen = C::kOpenGates;
  BackwardArrays<> at;

  PRNN_HD static constexpr int products(int) { return 1; }
  PRNN_HD std::int64_t depth(int phase) const { return (phase == 0 ? kOpen : 1) * shape.hidden; }
  PRNN_HD std::int64_t steps() const { return shape.time + 1; }
  PRNN_HD float weight(std::int64_t g, int phase, std::int64_t unit, int, std::int64_t k) const {
    return Base::w(at.w_hh, g, unit, phase * kOpen, k);
  }
  PRNN_HD float bias(std::int64_t, int, std::int64_t, int) const { return 0.0f; }
  // Phase 0 multiplies ∂a_r, ∂a_z of the time processed before; phase 1 ∂a_n of this one.
  PRNN_HD const float* input(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    if (phase == 0)
      return s == 0
                 ? nullptr
                 : at.da_h + shape.sequence_at(b, shape.time_at(g, shape.time - s), g, C::kGates);
    if (s == shape.time) return nullptr;
    return at.da_h + kOpen * shape.hidden +
           shape.sequence_at(b, shape.time_at(g, shape.time - 1 - s), g, C::kGates);
  }

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<1, F>& product, Io io) const {
    if (kPhase == 1 && s == shape.time) return;
    const std::int64_t state = shape.state_at(b, g) + unit;
    float* carry = at.dstate_0[0] + state;
    F d = io.load(kPhase == 0 && s == 0 ? at.dstate_n[0] + state : carry);
    if constexpr (kPhase == 0) d = d + product[0];
    if (s == shape.time) return io.store(carry, d);

    const std::int64_t step = shape.time - 1 - s;  // of the forward pass
    const std::int64_t t = shape.time_at(g, step);
    const F h = io.load(Base::h_before(at.y, at.state_0[0], g, step, b) + unit);
    const auto reserve = Base::template load_values<C::kReserve>(
        at.saved + shape.sequence_at(b, t, g, saved_values<C>) + unit, io);
    float* da = at.da_h + shape.sequence_at(b, t, g, C::kGates) + unit;
    if constexpr (kPhase == 0) {
      d = d + io.load(at.dy + shape.sequence_at(b, t, g, 1) + unit);
      const auto out = cell.open_grad(d, h, reserve);
      io.store(da + shape.hidden, out.da_z);
      io.store(da + 2 * shape.hidden, out.da_n);
      io.store(carry, out.dh);
    } else {
      const auto out = cell.close_grad(product[0], d, h, reserve);
      io.store(da, out.da_r);
      io.store(carry, out.dh);
    }
  }
};

}  // namespace prnn
