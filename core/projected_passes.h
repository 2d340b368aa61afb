// The passes over a cell that projects (LSTMP), whose step is two products in series, of other
// units each. Forward: the cell's units from h, then h from what they give, m. Backward: all of the
// gradient of h from the published ∂a_h, then ∂m from that, and what the cell makes of it.
#pragma once
#include "core/passes.h"

namespace prnn {

template <ProjectedCell C, class Io, class T>
struct ForwardPass<C, Io, T> : PassBase<C, Io, T> {
  using Base = PassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  static_assert(C::kStates == 2);  // h, and c of the cell's units
  ForwardArrays<T> at;

  PRNN_HD static constexpr int products(int phase) { return phase == 0 ? C::kGates : 1; }
  PRNN_HD std::int64_t units(int phase) const { return phase == 0 ? shape.hidden : shape.output(); }
  PRNN_HD std::int64_t depth(int phase) const { return units(1 - phase); }
  PRNN_HD std::int64_t steps() const { return shape.time; }
  PRNN_HD T weight(std::int64_t g, int phase, std::int64_t unit, int product,
                   std::int64_t k) const {
    const auto [first, stride] = weight_rows(g, phase);
    return first[k * stride + product * units(phase) + unit];
  }
  PRNN_HD WeightRows<T> weight_rows(std::int64_t g, int phase) const {
    const std::int64_t stride = products(phase) * units(phase);
    return {(phase == 0 ? at.w_hh : at.w_hr) + g * depth(phase) * stride, stride};
  }
  PRNN_HD T bias(std::int64_t g, int phase, std::int64_t unit, int product) const {
    return phase == 0 ? at.b_hh[(g * C::kGates + product) * shape.hidden + unit] : T{};
  }
  PRNN_HD bool multiplies(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    return s < shape.length(b, g);
  }
  PRNN_HD bool has_controls(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return at.has_controls(shape, g, s, b);
  }
  PRNN_HD const float* input(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    return phase == 1 ? made(g, b) : Base::h_input(at, g, s, b);
  }
  PRNN_HD void begin(std::int64_t g, std::int64_t b, std::int64_t unit, Io io) const {
    Base::hand_on_first(at, g, b, unit, io);
  }

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<(kPhase == 0 ? C::kGates : 1), F>& product, Io io) const {
    if constexpr (kPhase == 0)
      advance(g, s, b, unit, product, io);
    else
      project(g, s, b, unit, product[0], io);
  }

 private:
  // The cell's units, whose h is m.
  PRNN_HD void advance(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                       const Gates<C, F>& a_h, Io io) const {
    const std::int64_t state = shape.state_at(b, g) + unit;
    float* carry = at.carried + shape.padded_row(b, g, 1) + unit;
    Vec<2, F> prev{F(0.0f), s == 0 ? at.state_0.load(1, state, io) : io.load(carry)};
    if (s >= shape.length(b, g)) {
      if (s == 0) at.state_n.store(1, state, prev[1], io);
      return;
    }
    if (at.controls.resets_at(shape, g, s, b)) prev[1] = io.load(at.controls.reset_to[1] + state);
    const auto a_x = Base::values(
        Base::template fetch_a_x<C::kGates>(at, Base::row_of(g, s, b), g, s, b, unit, 0, io), io);
    const auto out = step_of(cell, Base::per_unit(at.per_unit, g, unit, io), a_x, a_h, prev);
    io.store(made(g, b) + unit, io.stored(out.next[0]));
    io.store(carry, out.next[1]);
    if (s + 1 == shape.length(b, g)) at.state_n.store(1, state, out.next[1], io);
    if (at.saved == nullptr) return;
    const int first = at.saves_reserve ? C::kReserve : 0;  // of the states
    T* saved = at.saved + shape.sequence_at(b, shape.time_at(g, s, b), g, first + 1) + unit;
    if (at.saves_reserve) Base::keep_values(saved, out.reserve, at.saves_non_temporal, io);
    Base::keep_values(saved + first * shape.hidden, Vec<1, F>{out.next[1]}, at.saves_non_temporal,
                      io);
  }
  PRNN_HD void project(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit, F h,
                       Io io) const {
    const Shape of_h = shape.of_output();
    const std::int64_t state = of_h.state_at(b, g) + unit, length = shape.length(b, g);
    T* y = at.y + of_h.sequence_at(b, of_h.time_at(g, s, b), g, 1) + unit;
    if (s >= length) {
      if (s == 0) at.state_n.store(0, state, at.state_0.load(0, state, io), io);
      return io.store(y, F(0.0f));
    }
    if constexpr (requires { cell.of_h(h); }) h = cell.of_h(h);
    h = io.stored(h);
    io.store(y, h);
    Base::hand_on(at, g, s, b, unit, h, io);
    if (s + 1 == length) at.state_n.store(0, state, h, io);
  }
  // What the units of a row have made, m.
  PRNN_HD float* made(std::int64_t g, std::int64_t b) const {
    return at.phase_scratch + shape.padded_row(b, g, 1);
  }
};

template <ProjectedCell C, class Io, class T>
struct BackwardPass<C, Io, T> : PassBase<C, Io, T> {
  using Base = PassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  static constexpr int kSaved = saved_values<C>;
  BackwardArrays<T> at;

  PRNN_HD static constexpr int products(int) { return 1; }
  PRNN_HD std::int64_t units(int phase) const { return phase == 0 ? shape.output() : shape.hidden; }
  PRNN_HD std::int64_t depth(int phase) const {
    return phase == 0 ? C::kGates * shape.hidden : shape.output();
  }
  PRNN_HD std::int64_t steps() const { return shape.time + 1; }
  PRNN_HD T weight(std::int64_t g, int phase, std::int64_t unit, int, std::int64_t k) const {
    const auto [first, stride] = weight_columns(g, phase);
    return first[unit * stride + k];
  }
  PRNN_HD WeightColumns<T> weight_columns(std::int64_t g, int phase) const {
    return {(phase == 0 ? at.w_hh : at.w_hr) + g * units(phase) * depth(phase), depth(phase)};
  }
  PRNN_HD T bias(std::int64_t, int, std::int64_t, int) const { return T{}; }
  // Phase 0 multiplies ∂a_h of the step processed before; phase 1 ∂h of this one.
  PRNN_HD bool multiplies(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    const std::int64_t step = Base::forward_step(s) + (phase == 0 ? 1 : 0);
    return step >= 0 && step < shape.length(b, g);
  }
  PRNN_HD bool has_controls(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return at.has_controls(shape, g, Base::forward_step(s), b);
  }
  PRNN_HD const float* input(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    return phase == 1 ? whole(g, b) : Base::da_input(at, g, s, b);
  }
  PRNN_HD void begin(std::int64_t, std::int64_t, std::int64_t, Io) const {}

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<1, F>& product, Io io) const {
    if constexpr (kPhase == 0)
      gather(g, s, b, unit, product[0], io);
    else
      advance(g, s, b, unit, product[0], io);
  }

 private:
  // All of the gradient of h after a step.
  PRNN_HD void gather(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit, F product,
                      Io io) const {
    const Shape of_h = shape.of_output();
    float* carry = at.carried + shape.padded_floats(1) + of_h.padded_row(b, g, 1) + unit;
    Vec<1, F> d = taken<0>(of_h, g, s, b, unit, carry, io);
    if (multiplies(g, 0, s, b))  // else the mask may be no number
      d[0] = d[0] + at.controls.masked(product, of_h, g, b, unit, io);
    hand_to_reset<0>(of_h, g, s, b, unit, d, io);
    if (s == shape.time) return at.dstate_0.store(0, of_h.state_at(b, g) + unit, d[0], io);
    const std::int64_t step = Base::forward_step(s);
    const std::int64_t here = of_h.sequence_at(b, of_h.time_at(g, step, b), g, 1) + unit;
    const bool counts = step < shape.length(b, g);
    F all = counts ? d[0] + io.load(at.dy + here) : F(0.0f);
    if constexpr (requires { cell.of_h.grad(all, all); })
      if (counts) all = cell.of_h.grad(all, io.load(at.y + here));
    io.store(carry, counts ? F(0.0f) : d[0]);
    io.store(at.dh + here, all);
    io.store(whole(g, b) + unit, io.stored(all));
  }
  // The cell's gradient, m being its h.
  PRNN_HD void advance(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit, F dm,
                       Io io) const {
    float* carry = at.carried + shape.padded_row(b, g, 1) + unit;
    Vec<1, F> d = taken<1>(shape, g, s, b, unit, carry, io);
    hand_to_reset<1>(shape, g, s, b, unit, d, io);
    const std::int64_t state = shape.state_at(b, g) + unit;
    if (s == shape.time) return at.dstate_0.store(1, state, d[0], io);
    const std::int64_t step = Base::forward_step(s), row = Base::row_of(g, step, b);
    if (step >= shape.length(b, g)) {
      io.store(carry, d[0]);
      return Base::publish_da(at, g, s, b, row, unit, 0, Gates<C, F>{}, io);
    }
    const T* saved = at.saved + Base::in_sequence(row, kSaved) + unit;
    const auto reserve = Base::template load_values<C::kReserve>(saved, io);
    const std::int64_t c_at = C::kReserve * shape.hidden;
    const Vec<2, F> now{F(0.0f), io.load(saved + c_at)};
    Vec<2, F> prev{F(0.0f), F(0.0f)};
    if (at.controls.resets_at(shape, g, step, b))
      prev[1] = io.load(at.controls.reset_to[1] + state);
    else if (step == 0)
      prev[1] = io.load(at.state_0[1] + state);
    else
      prev[1] = io.load(at.saved + unit + c_at +
                        shape.sequence_at(b, shape.time_at(g, step - 1, b), g, kSaved));
    const auto own = Base::per_unit(at.per_unit, g, unit, io);
    const auto out = grad_of(cell, own, Vec<2, F>{dm, d[0]}, prev, now, reserve);
    Base::publish_da(at, g, s, b, row, unit, 0, out.da_h, io);
    io.store(carry, out.prev[1]);
  }

  // The gradient of the n-th state that step s begins with, of arrays of the given shape.
  template <int kState>
  PRNN_HD Vec<1, F> taken(const Shape& of, std::int64_t g, std::int64_t s, std::int64_t b,
                          std::int64_t unit, const float* carry, Io io) const {
    const std::int64_t state = of.state_at(b, g) + unit;
    if (s > 0) return {io.load(carry)};
    if (at.controls.resets != nullptr) io.store(at.dreset_to[kState] + state, F(0.0f));
    return {at.dstate_n.load(kState, state, io)};
  }
  template <int kState>
  PRNN_HD void hand_to_reset(const Shape& of, std::int64_t g, std::int64_t s, std::int64_t b,
                             std::int64_t unit, Vec<1, F>& d, Io io) const {
    if (!at.controls.resets_at(of, g, Base::forward_step(s) + 1, b)) return;
    float* sum = at.dreset_to[kState] + of.state_at(b, g) + unit;
    io.store(sum, io.load(sum) + d[0]);
    d[0] = F(0.0f);
  }
  // Where all of a row's gradient of h lies.
  PRNN_HD float* whole(std::int64_t g, std::int64_t b) const {
    return at.phase_scratch + shape.of_output().padded_row(b, g, 1);
  }
};

}  // namespace prnn
