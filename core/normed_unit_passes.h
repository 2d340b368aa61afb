// The passes over a cell with layer norm inside of its step, unit by unit, as passes of one
// product: for engines that keep in registers what a unit carries, and in which several who each
// have some units of a row add up what is of all of them (cuda/row_norms.cuh). The arithmetic is
// that of normed_passes.h and normed_backward.h, which take a row as a whole. Of a pass of this
// kind, such an engine asks a step in parts, for each unit,
//
//   early   before the product: what of the step is known by then
//   open    given the product
//   gates   what follows from it
//   close   what advance() gives of other passes
//
// and before each but the first, in this order, to add up the norms of stage 0, 1 and 2: each_norm
// calls f.moments(...) for each mean and variance there is to find, f.gradients(...) for each pair
// of means that a gradient takes. Of stages 1 and 2, meanwhile() is what a unit can do while the
// team adds up.
#pragma once
#include "core/normed_backward.h"

namespace prnn {

template <NormedCell C, class Io, class T>
struct NormedUnitForwardPass : ForwardPass<C, Io, T> {
  using Base = ForwardPass<C, Io, T>;
  using SequenceRows = typename Base::SequenceRows;
  using Index = Shape::Index;
  using F = typename Io::F;
  using Base::at, Base::cell, Base::shape, Base::kGates;
  using typename Base::OfGates, typename Base::OfInner;

  static constexpr int kPhases = 1, kProducts = kGates, kPublished = 1;
  static constexpr bool kStartsPublished = true, kUnitsContiguous = true;
  static constexpr int kNorms = 2 * kGates + 1;  // of a_x, of what has the product, inner
  using Carry = State<C, F>;
  using Published = Vec<1, F>;
  template <class V>
  struct Of {
    Vec<kGates, V> a_x;
  };
  using Fetched = Of<typename Io::Fetched>;
  using Inputs = Of<F>;
  struct Saved {
    Gates<C, F> gates;
    State<C, F> next;
  };
  // What a unit has of a step.
  struct Within {
    Gates<C, F> raw_h, raw_x;
    typename OfGates::Scale scale_h, scale_x;
    Vec<1, F> raw_inner;
    typename OfInner::Scale scale_inner;
    typename C::template Opened<F> opened;
    State<C, F> prev;
  };

  PRNN_HD Index depth(int) const { return shape.hidden; }
  PRNN_HD static Index published_at(const Shape& shape, Index g, Index s, Index b) {
    return shape.sequence_at(b, shape.time_at(g, s, b), g, kPublished);
  }
  PRNN_HD SequenceRows rows(Index g, Index s, Index b) const {
    return {Base::row_of(g, s, b), Base::row_of(g, s + 1, b)};
  }
  PRNN_HD Fetched fetch(Index g, Index s, Index b, Index unit, Io io) const {
    return fetch(rows(g, s, b), g, s, b, unit, io);
  }
  PRNN_HD Fetched fetch(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                        Io io) const {
    return {Base::template fetch_a_x<kGates>(at, rows.here, g, s, b, unit, 0, io)};
  }
  PRNN_HD static Inputs inputs(const Fetched& in, Io io) {
    return {PassBase<C, Io, T>::values(in.a_x, io)};
  }
  // Of engines that keep it from the first step on.
  PRNN_HD Carry carried(Index g, Index, Index b, Index unit, Io io) const {
    Carry carry;
    for (int n = 0; n < C::kStates; ++n)
      carry[n] = at.state_0.load(n, shape.state_at(b, g) + unit, io);
    return carry;
  }

  PRNN_HD void early(Index, Index, Index, Index, const Inputs& in, Within& w, Io) const {
    w.raw_x = in.a_x;
  }
  PRNN_HD void open(Index g, Index s, Index b, Index unit, const Vec<kProducts, F>& a_h,
                    const Carry& carry, Within& w, Io io) const {
    if (has_ended(g, s, b)) return;
    w.prev = carry;
    at.controls.replace(w.prev, shape, g, s, b, unit, io);
    w.raw_h = a_h;
    if (!Base::normalises_x())
      for (int n = 0; n < kGates; ++n) w.raw_h[n] = w.raw_h[n] + w.raw_x[n];
  }
  PRNN_HD void gates(Index g, Index s, Index b, Index unit, Within& w, Io io) const {
    if (has_ended(g, s, b)) return;
    const auto own = Base::per_unit(at.per_unit, g, unit, io);
    const auto a_h = Base::seen_h(own, w.scale_h(w.raw_h));
    const auto a_x =
        Base::normalises_x() ? Base::seen_x(own, w.scale_x(w.raw_x)) : OfGates::zeros();
    w.opened = cell.open(a_x, a_h, w.prev);
    w.raw_inner[0] = w.opened.inner;
  }
  PRNN_HD Published close(Index g, Index s, Index b, Index unit, const Within& w, Carry& carry,
                          Saved& saved, Io io) const {
    saved = {};
    if (has_ended(g, s, b)) return {F(0.0f)};
    F seen = w.opened.inner;
    if (Base::normalises_inner())
      seen = Base::seen(Base::per_unit(at.per_unit, g, unit, io), w.scale_inner(w.raw_inner)[0]);
    carry = cell.close(w.opened, seen, w.prev);
    at.controls.zone_out(carry, w.prev, shape, g, shape.time_at(g, s, b), b, unit, io);
    carry[0] = io.stored(carry[0]);  // other units and later calls see h as it is in y
    saved = {w.opened.gates, carry};
    return {carry[0]};
  }
  template <int kStage, class Sum>
  PRNN_HD void each_norm(Within& w, Sum&& f) const {
    if constexpr (kStage == 0)
      if (Base::normalises_x()) f.moments(0, cell.norm.per_gate, w.raw_x, w.scale_x);
    if constexpr (kStage == 1) f.moments(kGates, cell.norm.per_gate, w.raw_h, w.scale_h);
    if constexpr (kStage == 2)
      if (Base::normalises_inner()) f.moments(2 * kGates, false, w.raw_inner, w.scale_inner);
  }
  // The raw values are kept.
  template <int kStage>
  PRNN_HD void meanwhile(Index g, Index s, Index b, Index unit, const Within& w, Io io) const {
    if (kStage != 1 || at.saved == nullptr || !at.saves_reserve || has_ended(g, s, b)) return;
    T* const saved = at.saved + Base::in_sequence(Base::row_of(g, s, b), Base::kept()) + unit;
    Base::store_values(saved + kGates * shape.hidden, w.raw_h, io);
    if (Base::normalises_x()) Base::store_values(saved + 2 * kGates * shape.hidden, w.raw_x, io);
  }

  PRNN_HD void save(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                    const Saved& made, Io io) const {
    if (at.saved == nullptr || has_ended(g, s, b)) return;
    const int first = at.saves_reserve ? Base::reserve() : 0;  // of the states
    T* const saved = at.saved + Base::in_sequence(rows.here, first + C::kStates - 1) + unit;
    if (at.saves_reserve) Base::store_values(saved, made.gates, io);
    for (int n = 1; n < C::kStates; ++n)
      io.store(saved + (first + n - 1) * shape.hidden, made.next[n]);
  }
  PRNN_HD void publish(const SequenceRows& rows, Index, Index, Index, Index unit,
                       const Published& h, Io io) const {
    io.store(at.y + Base::in_sequence(rows.here, 1) + unit, h[0]);
  }
  PRNN_HD Published exchanged(Index g, Index s, Index b, Index unit, const Published& h,
                              Io io) const {
    if (!at.controls.change_product_input()) return h;
    return {io.stored(at.controls.product_input(h[0], shape, g, s + 1, b, unit, io))};
  }
  PRNN_HD void keep(Index g, Index, Index b, Index unit, const Carry& carry, Io io) const {
    for (int n = 0; n < C::kStates; ++n)
      at.state_n.store(n, shape.state_at(b, g) + unit, carry[n], io);
  }
  PRNN_HD Index first_step(Index) const { return 0; }
  PRNN_HD Index end_step(Index longest) const { return longest; }
  PRNN_HD void skip(Index g, Index s, Index b, Index unit, Io io) const {
    publish(rows(g, s, b), g, s, b, unit, {F(0.0f)}, io);
  }

 private:
  PRNN_HD bool has_ended(Index g, Index s, Index b) const { return s >= shape.length(b, g); }
};

// One step more than there are times: the last only multiplies, for the gradient of the initial h.
template <NormedCell C, class Io, class T>
struct NormedUnitBackwardPass : BackwardPass<C, Io, T> {
  using Base = BackwardPass<C, Io, T>;
  using SequenceRows = typename Base::SequenceRows;
  using Index = Shape::Index;
  using F = typename Io::F;
  using Base::at, Base::cell, Base::shape, Base::kGates;
  using typename Base::OfGates, typename Base::OfInner;

  static constexpr int kPhases = 1, kProducts = 1, kPublished = kGates;
  static constexpr bool kStartsPublished = false, kUnitsContiguous = false;
  // Moments of h, of a_x, of the inner value; then means for the gradients of the last and of both.
  static constexpr int kNorms = 4 * kGates + 2, kOfGradients = 2 * kGates + 1;
  using Carry = State<C, F>;
  using Published = Gates<C, F>;
  using Saved = Gates<C, F>;  // ∂a_x
  template <class V>
  struct Of {
    Vec<1, V> dy;
    State<C, V> prev;  // as they were before replacement
    Gates<C, V> gates, raw_h, raw_x;
  };
  using Fetched = Of<typename Io::Fetched>;
  using Inputs = Of<F>;
  struct Within {
    Gates<C, F> gates, raw_h, raw_x;
    typename OfGates::Scale scale_h, scale_x;
    Vec<1, F> raw_inner;
    typename OfInner::Scale scale_inner;
    State<C, F> prev, d, kept;  // d: of what the cell has made; kept: what goes on past it
    F dseen;
    Vec<1, F> dinner;
    typename OfInner::Gradient grad_inner;
    Gates<C, F> da_h, da_x;          // of what the cell takes
    Gates<C, F> scaled_h, scaled_x;  // of what has been normalised
    typename OfGates::Gradient grad_h, grad_x;
  };

  PRNN_HD Index depth(int) const { return kPublished * shape.hidden; }
  PRNN_HD static Index published_at(const Shape& shape, Index g, Index s, Index b) {
    return shape.sequence_at(b, shape.time_at(g, shape.time - 1 - s, b), g, kPublished);
  }
  PRNN_HD SequenceRows rows(Index g, Index s, Index b) const {
    const Index step = Base::forward_step(s);
    return {Base::row_of(g, step, b), Base::row_of(g, step - 1, b)};
  }
  PRNN_HD Fetched fetch(Index g, Index s, Index b, Index unit, Io io) const {
    return fetch(rows(g, s, b), g, s, b, unit, io);
  }
  PRNN_HD Fetched fetch(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                        Io io) const {
    Fetched in{};
    if (s == shape.time) return in;
    const Index state = shape.state_at(b, g) + unit, hidden = shape.hidden;
    const bool is_first = s + 1 == shape.time;  // of the forward pass, which began with states
    const T* const saved = at.saved + Base::in_sequence(rows.here, Base::kept()) + unit;
    in.dy[0] = io.fetch(at.dy + Base::in_sequence(rows.here, 1) + unit);
    in.gates = Base::template fetch_values<kGates>(saved, io);
    in.raw_h = Base::template fetch_values<kGates>(saved + kGates * hidden, io);
    if (Base::normalises_x())
      in.raw_x = Base::template fetch_values<kGates>(saved + 2 * kGates * hidden, io);
    in.prev[0] =
        io.fetch(is_first ? at.state_0[0] + state : at.y + Base::in_sequence(rows.next, 1) + unit);
    for (int n = 1; n < C::kStates; ++n)
      in.prev[n] = io.fetch(is_first ? at.state_0[n] + state
                                     : at.saved + Base::in_sequence(rows.next, Base::kept()) +
                                           (Base::reserve() + n - 1) * hidden + unit);
    return in;
  }
  PRNN_HD static Inputs inputs(const Fetched& in, Io io) {
    return {Base::values(in.dy, io), Base::values(in.prev, io), Base::values(in.gates, io),
            Base::values(in.raw_h, io), Base::values(in.raw_x, io)};
  }
  // Of engines that keep it from the first step on.
  PRNN_HD Carry carried(Index g, Index, Index b, Index unit, Io io) const {
    at.no_resets_yet(shape, g, b, unit, io);
    for (int n = 0; n < C::kPerUnit; ++n) io.store(Base::own_sum(g, b, unit, n), F(0.0f));
    Carry d;
    for (int n = 0; n < C::kStates; ++n)
      d[n] = at.dstate_n.load(n, shape.state_at(b, g) + unit, io);
    return d;
  }

  PRNN_HD void early(Index g, Index s, Index b, Index unit, const Inputs& in, Within& w,
                     Io io) const {
    if (!counts(g, s, b)) return;
    w.gates = in.gates;
    w.raw_h = in.raw_h;
    w.raw_x = in.raw_x;
    w.prev = in.prev;
    w.d[0] = in.dy[0];
    at.controls.replace(w.prev, shape, g, Base::forward_step(s), b, unit, io);
    w.raw_inner[0] = C::inner(w.gates, w.prev);
  }
  PRNN_HD void open(Index g, Index s, Index b, Index unit, const Vec<1, F>& product, Carry& d,
                    Within& w, Io io) const {
    if (Base::multiplies(g, 0, s, b))  // else the mask may be no number
      d[0] = d[0] + at.controls.masked(product[0], shape, g, b, unit, io);
    const Index step = Base::forward_step(s);
    at.hand_to_reset(shape, g, step + 1, b, unit, d, io);
    if (!counts(g, s, b)) return;
    const F dy = w.d[0];
    w.d = d;
    w.d[0] = w.d[0] + dy;
    at.controls.zone_out_grad(w.d, w.kept, shape, g, shape.time_at(g, step, b), b, unit, io);
    if constexpr (C::kInner) {
      const auto own = Base::per_unit(at.per_unit, g, unit, io);
      w.dseen = cell.open_grad(w.d, w.gates, seen(own, w));
      w.dinner[0] = Base::normalises_inner() ? own[C::kOfInner] * w.dseen : w.dseen;
    }
  }
  PRNN_HD void gates(Index g, Index s, Index b, Index unit, Within& w, Io io) const {
    if (!counts(g, s, b)) return;
    const auto own = Base::per_unit(at.per_unit, g, unit, io);
    if (Base::normalises_inner())
      w.dinner = w.grad_inner(w.dinner, w.scale_inner.centred(w.raw_inner));
    const auto out = cell.close_grad(w.d, w.dinner[0], seen(own, w), w.gates,
                                     Base::seen_h(own, w.scale_h(w.raw_h)), w.prev);
    w.d = out.prev;
    w.da_h = out.da_h;
    w.da_x = out.da_x;
    for (int n = 0; n < kGates; ++n) {
      w.scaled_h[n] = own[n] * w.da_h[n];
      w.scaled_x[n] = own[C::kGainX + n] * w.da_x[n];
    }
  }
  PRNN_HD Published close(Index g, Index s, Index b, Index, const Within& w, Carry& d, Saved& da_x,
                          Io) const {
    da_x = {};
    if (!counts(g, s, b)) return {};
    for (int n = 0; n < C::kStates; ++n)
      d[n] = at.controls.zoneout == nullptr ? w.d[n] : w.d[n] + w.kept[n];
    const Published da_h = w.grad_h(w.scaled_h, w.scale_h.centred(w.raw_h));
    da_x = Base::normalises_x() ? w.grad_x(w.scaled_x, w.scale_x.centred(w.raw_x)) : da_h;
    return da_h;
  }
  template <int kStage, class Sum>
  PRNN_HD void each_norm(Within& w, Sum&& f) const {
    const bool per_gate = cell.norm.per_gate, of_x = Base::normalises_x();
    const bool of_inner = Base::normalises_inner();
    if constexpr (kStage == 0) {
      f.moments(0, per_gate, w.raw_h, w.scale_h);
      if (of_x) f.moments(kGates, per_gate, w.raw_x, w.scale_x);
      if (of_inner) f.moments(2 * kGates, false, w.raw_inner, w.scale_inner);
    } else if constexpr (kStage == 1) {
      if (of_inner)
        f.gradients(kOfGradients, false, w.dinner, w.raw_inner, w.scale_inner, w.grad_inner);
    } else {
      f.gradients(kOfGradients + 1, per_gate, w.scaled_h, w.raw_h, w.scale_h, w.grad_h);
      if (of_x)
        f.gradients(kOfGradients + 1 + kGates, per_gate, w.scaled_x, w.raw_x, w.scale_x, w.grad_x);
    }
  }
  // What the step gives to the gradients of the unit's own numbers.
  template <int kStage>
  PRNN_HD void meanwhile(Index g, Index s, Index b, Index unit, const Within& w, Io io) const {
    if (!counts(g, s, b)) return;
    if constexpr (kStage == 1) {
      if (!Base::normalises_inner()) return;
      if constexpr (C::kInner) {
        Base::add_own(g, b, unit, C::kOfInner, w.dseen * w.scale_inner(w.raw_inner)[0], io);
        Base::add_own(g, b, unit, C::kOfInner + 1, w.dseen, io);
      }
    } else {
      const auto of_h = w.scale_h(w.raw_h);
      for (int n = 0; n < kGates; ++n) {
        Base::add_own(g, b, unit, n, w.da_h[n] * of_h[n], io);
        Base::add_own(g, b, unit, kGates + n, w.da_h[n], io);
      }
      if (!Base::normalises_x()) return;
      const auto of_x = w.scale_x(w.raw_x);
      for (int n = 0; n < kGates; ++n)
        Base::add_own(g, b, unit, C::kGainX + n, w.da_x[n] * of_x[n], io);
      if constexpr (!C::kInner) Base::add_own(g, b, unit, C::kShiftX, w.da_x[kGates - 1], io);
    }
  }

  PRNN_HD void save(const SequenceRows& rows, Index, Index s, Index, Index unit, const Saved& da_x,
                    Io io) const {
    if (s < shape.time)
      Base::store_values(at.da_x + Base::in_sequence(rows.here, kPublished) + unit, da_x, io);
  }
  PRNN_HD void publish(const SequenceRows& rows, Index, Index s, Index, Index unit,
                       const Published& da_h, Io io) const {
    if (s < shape.time)
      Base::store_values(at.da_h + Base::in_sequence(rows.here, kPublished) + unit, da_h, io);
  }
  PRNN_HD Published exchanged(Index, Index, Index, Index, const Published& da_h, Io) const {
    return da_h;
  }
  PRNN_HD void keep(Index g, Index, Index b, Index unit, const Carry& d, Io io) const {
    for (int n = 0; n < C::kStates; ++n)
      at.dstate_0.store(n, shape.state_at(b, g) + unit, d[n], io);
  }
  PRNN_HD Index first_step(Index longest) const { return shape.time - longest; }
  PRNN_HD Index end_step(Index) const { return Base::steps(); }
  PRNN_HD void skip(Index g, Index s, Index b, Index unit, Io io) const {
    const auto at_step = rows(g, s, b);
    save(at_step, g, s, b, unit, {}, io);
    publish(at_step, g, s, b, unit, {}, io);
  }

 private:
  // Whether step s has one of the forward pass's that counts.
  PRNN_HD bool counts(Index g, Index s, Index b) const {
    return s < shape.time && Base::forward_step(s) < shape.length(b, g);
  }
  PRNN_HD F seen(const PerUnit<C, F>& own, const Within& w) const {
    return Base::normalises_inner() ? Base::seen(own, w.scale_inner(w.raw_inner)[0])
                                    : w.raw_inner[0];
  }
};

}  // namespace prnn
