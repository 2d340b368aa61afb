// The passes over a cell whose step is two products in series (GRU, reset before the product), as
// passes of one product and of twice as many steps: each phase is a step, a half step of the call,
// which multiplies what the half step before it has published. Each has all rows of the matrix, and
// makes use of those of its phase: for engines that keep the matrix where multiplying takes less
// than telling each other (cuda/engine.cuh).
//
//   forward, of h and r h in turn     r, z from w_hr and w_hz; n from w_hn
//   backward, of gradients in turn    ∂(r h) from ∂a_n; then, from ∂a_r and ∂a_z, what goes on to
//                                     the step before. What a phase has not is zero
//
// `shape` is as the engine counts, with twice the time.
#pragma once
#include "core/two_phase_passes.h"

namespace prnn {

inline Shape in_half_steps(Shape shape) {
  shape.time *= 2;
  return shape;
}

template <TwoPhaseCell C, class Io, class T>
struct HalfStepForwardPass : PassBase<C, Io, T> {
  using Base = PassBase<C, Io, T>;
  using SequenceRows = typename Base::SequenceRows;
  using Index = Shape::Index;
  using F = typename Io::F;
  using Base::cell;
  Shape shape;
  ForwardArrays<T> at;

  static constexpr int kPhases = 1, kProducts = C::kGates, kPublished = 1;
  static constexpr int kOpen = C::kOpenGates;
  static constexpr bool kStartsPublished = true;
  static constexpr bool kUnitsContiguous = true;
  using Carry = Vec<2, F>;  // h, and between the phases z
  template <class V>
  struct Of {
    Vec<kOpen, V> a_x;  // of the phase: one in the second
  };
  using Fetched = Of<typename Io::Fetched>;
  using Inputs = Of<F>;
  using Saved = Vec<kOpen, F>;  // of the phase: r and z, or n

  // Of the arrays.
  PRNN_HD const Shape& of_call() const { return Base::shape; }

  PRNN_HD Index depth(int) const { return shape.hidden; }
  PRNN_HD Index steps() const { return shape.time; }
  PRNN_HD T weight(Index g, int, Index unit, int product, Index k) const {
    return Base::w(at.w_hh, g, k, product, unit);
  }
  PRNN_HD WeightRows<T> weight_rows(Index g, int) const { return Base::rows_of(at.w_hh, g, 0); }
  PRNN_HD T bias(Index g, int, Index unit, int product) const {
    return at.b_hh[(g * C::kGates + product) * shape.hidden + unit];
  }
  PRNN_HD static Index published_at(const Shape& shape, Index g, Index s, Index b) {
    return shape.sequence_at(b, shape.time_at(g, s, b), g, kPublished);
  }
  PRNN_HD SequenceRows rows(Index g, Index s, Index b) const {
    return {Base::row_of(g, step_of(s), b), Base::row_of(g, step_of(s + 1), b)};
  }
  PRNN_HD Fetched fetch(Index g, Index s, Index b, Index unit, Io io) const {
    return fetch(rows(g, s, b), g, s, b, unit, io);
  }
  PRNN_HD Fetched fetch(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                        Io io) const {
    if (opens(s))
      return {Base::template fetch_a_x<kOpen>(at, rows.here, g, step_of(s), b, unit, 0, io)};
    Fetched in{};
    in.a_x[0] = Base::template fetch_a_x<1>(at, rows.here, g, step_of(s), b, unit, kOpen, io)[0];
    return in;
  }
  PRNN_HD static Inputs inputs(const Fetched& in, Io io) { return {Base::values(in.a_x, io)}; }
  // Of engines that keep it from the first step on.
  PRNN_HD Carry carried(Index g, Index, Index b, Index unit, Io io) const {
    Carry carry{};
    carry[0] = at.state_0.load(0, shape.state_at(b, g) + unit, io);
    return carry;
  }
  PRNN_HD Vec<1, F> advance(Index g, Index s, Index b, Index unit, const Vec<kProducts, F>& a_h,
                            const Inputs& in, Carry& carry, Saved& saved, Io io) const {
    const Shape& call = of_call();
    const Index step = step_of(s);
    saved = {};
    if (step >= call.length(b, g)) return {F(0.0f)};
    Vec<1, F> prev{carry[0]};
    if (opens(s)) {
      at.controls.replace(prev, call, g, step, b, unit, io);
      carry[0] = prev[0];
      Vec<kOpen, F> of_phase;
      for (int n = 0; n < kOpen; ++n) of_phase[n] = a_h[n];
      const auto out = cell.open(in.a_x, of_phase, prev[0]);
      saved = out.kept;
      carry[1] = out.kept[1];
      return {out.published};
    }
    // Of r there is no need any more: it is saved.
    Forward<C, F> out = cell.close(in.a_x[0], a_h[kOpen], prev[0], {F(0.0f), carry[1]});
    at.controls.zone_out(out.next, prev, call, g, call.time_at(g, step, b), b, unit, io);
    saved[0] = out.reserve[2];
    carry[0] = io.stored(out.next[0]);  // other units and later calls see h as it is in y
    return {carry[0]};
  }
  PRNN_HD void save(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                    const Saved& saved, Io io) const {
    if (at.saved == nullptr || step_of(s) >= of_call().length(b, g)) return;
    T* const to = at.saved + Base::in_sequence(rows.here, saved_values<C>) + unit;
    if (opens(s)) return Base::store_values(to, saved, io);
    io.store(to + kOpen * shape.hidden, saved[0]);
  }
  PRNN_HD void publish(const SequenceRows& rows, Index, Index s, Index, Index unit,
                       const Vec<1, F>& value, Io io) const {
    if (!opens(s)) io.store(at.y + Base::in_sequence(rows.here, 1) + unit, value[0]);
  }
  // Of r h, what the mask leaves; of h, what the next step starts from.
  PRNN_HD Vec<1, F> exchanged(Index g, Index s, Index b, Index unit, const Vec<1, F>& value,
                              Io io) const {
    const Shape& call = of_call();
    if (s >= 0 && opens(s)) return {io.stored(at.controls.masked(value[0], call, g, b, unit, io))};
    if (!at.controls.change_product_input()) return value;
    const Index next = s < 0 ? 0 : step_of(s) + 1;
    return {io.stored(at.controls.product_input(value[0], call, g, next, b, unit, io))};
  }
  PRNN_HD void keep(Index g, Index, Index b, Index unit, const Carry& carry, Io io) const {
    at.state_n.store(0, shape.state_at(b, g) + unit, carry[0], io);
  }
  PRNN_HD Index first_step(Index) const { return 0; }
  PRNN_HD Index end_step(Index longest) const {
    return longest < of_call().time ? 2 * longest : shape.time;
  }
  PRNN_HD void skip(Index g, Index s, Index b, Index unit, Io io) const {
    publish(rows(g, s, b), g, s, b, unit, {F(0.0f)}, io);
  }

 private:
  PRNN_HD static bool opens(Index s) { return (s & 1) == 0; }
  PRNN_HD static Index step_of(Index s) { return s >> 1; }
};

// One half step more than there are: the last only multiplies, for the gradient of the initial h.
template <TwoPhaseCell C, class Io, class T>
struct HalfStepBackwardPass : PassBase<C, Io, T> {
  using Base = PassBase<C, Io, T>;
  using SequenceRows = typename Base::SequenceRows;
  using Index = Shape::Index;
  using F = typename Io::F;
  using Base::cell;
  Shape shape;
  BackwardArrays<T> at;

  static constexpr int kPhases = 1, kProducts = 1, kPublished = C::kGates;
  static constexpr bool kStartsPublished = false;
  static constexpr bool kUnitsContiguous = false;
  using Carry = Vec<2, F>;  // the gradient of h, and between the phases ∂a_z
  template <class V>
  struct Of {
    Vec<1, V> dy, prev;
    Vec<C::kReserve, V> reserve;
  };
  using Fetched = Of<typename Io::Fetched>;
  using Inputs = Of<F>;
  struct Saved {};
  using Published = Vec<kPublished, F>;  // ∂a_r, ∂a_z, ∂a_n, each of its phase

  // Of the arrays.
  PRNN_HD const Shape& of_call() const { return Base::shape; }

  PRNN_HD Index depth(int) const { return kPublished * shape.hidden; }
  PRNN_HD Index steps() const { return shape.time + 1; }
  PRNN_HD T weight(Index g, int, Index unit, int, Index k) const {
    return Base::w(at.w_hh, g, unit, 0, k);  // the transpose: k runs over [gate, unit]
  }
  PRNN_HD WeightColumns<T> weight_columns(Index g, int) const {
    return Base::columns_of(at.w_hh, g, 0);
  }
  PRNN_HD T bias(Index, int, Index, int) const { return T{}; }
  PRNN_HD static Index published_at(const Shape& shape, Index g, Index s, Index b) {
    return shape.sequence_at(b, shape.time_at(g, s, b), g, kPublished);
  }
  PRNN_HD SequenceRows rows(Index g, Index s, Index b) const {
    const Index step = step_of(s);
    return {Base::row_of(g, step, b), Base::row_of(g, step - 1, b)};
  }
  PRNN_HD Fetched fetch(Index g, Index s, Index b, Index unit, Io io) const {
    return fetch(rows(g, s, b), g, s, b, unit, io);
  }
  PRNN_HD Fetched fetch(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                        Io io) const {
    Fetched in{};
    if (s == shape.time) return in;
    const T* const before = step_of(s) == 0 ? at.state_0[0] + shape.state_at(b, g)
                                            : at.y + Base::in_sequence(rows.next, 1);
    in.prev[0] = io.fetch(before + unit);
    in.reserve = Base::template fetch_values<C::kReserve>(
        at.saved + Base::in_sequence(rows.here, saved_values<C>) + unit, io);
    if (opens(s)) in.dy[0] = io.fetch(at.dy + Base::in_sequence(rows.here, 1) + unit);
    return in;
  }
  PRNN_HD static Inputs inputs(const Fetched& in, Io io) {
    return {Base::values(in.dy, io), Base::values(in.prev, io), Base::values(in.reserve, io)};
  }
  PRNN_HD Carry carried(Index g, Index, Index b, Index unit, Io io) const {
    at.no_resets_yet(shape, g, b, unit, io);
    return {at.dstate_n.load(0, shape.state_at(b, g) + unit, io), F(0.0f)};
  }
  PRNN_HD Published advance(Index g, Index s, Index b, Index unit, const Vec<1, F>& product,
                            const Inputs& in, Carry& carry, Saved&, Io io) const {
    const Shape& call = of_call();
    const Index step = step_of(s), length = call.length(b, g);
    Published out{};
    Vec<1, F> d{carry[0]}, prev = in.prev;
    if (opens(s)) {
      if (step + 1 < length)  // else the mask may be no number
        d[0] = d[0] + at.controls.masked(product[0], call, g, b, unit, io);
      at.hand_to_reset(call, g, step + 1, b, unit, d, io);
      carry[0] = d[0];
    }
    if (step < 0 || step >= length) return out;
    at.controls.replace(prev, call, g, step, b, unit, io);
    if (opens(s)) {
      d[0] = d[0] + in.dy[0];
      Vec<1, F> kept{};
      at.controls.zone_out_grad(d, kept, call, g, call.time_at(g, step, b), b, unit, io);
      const auto grad = cell.open_grad(d[0], prev[0], in.reserve);
      carry = {at.controls.zoneout == nullptr ? grad.dh : grad.dh + kept[0], grad.da_z};
      out[2] = grad.da_n;
    } else {
      const F through = at.controls.masked(product[0], call, g, b, unit, io);
      const auto grad = cell.close_grad(through, d[0], prev[0], in.reserve);
      carry[0] = grad.dh;
      out[0] = grad.da_r;
      out[1] = carry[1];
    }
    return out;
  }
  PRNN_HD void save(const SequenceRows&, Index, Index, Index, Index, const Saved&, Io) const {}
  PRNN_HD void publish(const SequenceRows& rows, Index, Index s, Index, Index unit,
                       const Published& values, Io io) const {
    if (s == shape.time) return;
    T* const to = at.da_h + Base::in_sequence(rows.here, C::kGates) + unit;
    if (opens(s)) return io.store(to + 2 * shape.hidden, values[2]);
    for (int n = 0; n < 2; ++n) io.store(to + n * shape.hidden, values[n]);
  }
  PRNN_HD Published exchanged(Index, Index, Index, Index, const Published& values, Io) const {
    return values;
  }
  PRNN_HD void keep(Index g, Index, Index b, Index unit, const Carry& carry, Io io) const {
    at.dstate_0.store(0, shape.state_at(b, g) + unit, carry[0], io);
  }
  PRNN_HD Index first_step(Index longest) const {
    return longest < of_call().time ? shape.time - 2 * longest : 0;
  }
  PRNN_HD Index end_step(Index) const { return steps(); }
  PRNN_HD void skip(Index g, Index s, Index b, Index unit, Io io) const {
    publish(rows(g, s, b), g, s, b, unit, {}, io);
  }

 private:
  PRNN_HD static bool opens(Index s) { return (s & 1) == 0; }
  // The forward step; -1 in the last.
  PRNN_HD Index step_of(Index s) const { return Base::forward_step(s >> 1); }
};

}  // namespace prnn
