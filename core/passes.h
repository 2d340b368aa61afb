// A pass is the recurrence in one direction, forward or backward. Both are the same loop,
//
//   published values of the last step  ->  product with a fixed matrix  ->  step  ->  publish
//
// and differ in what they multiply: forward, kGates products per unit of one published value (h);
// backward, one product per unit of kGates published values (∂a_h). An engine asks of a pass:
//
//   kPhases                          products in series within a step
//   units(p)                         that the phase makes
//   products(p)                      rows of the phase's matrix per unit
//   depth(p)                         columns: how many published values a product runs over
//   weight(g, p, unit, product, k)   the matrix, and bias(...), what the product starts from
//   weight_rows(g, p)                the same as it lies in memory, of passes that find there unit
//                                    beside unit,
//   weight_columns(g, p)             and of those that find k beside k
//   steps()                          steps of the loop
//   multiplies(g, p, s, b)           false where row b has no product in step s: it would be zero
//                                    (nothing has been published yet) or is not needed (the row has
//                                    ended)
//   input(g, p, s, b)                else the values it runs over
//   has_controls(g, s, b)            whether lengths or resets make a step that counts another than
//                                    it would be without them
//   step<p>(g, s, b, unit, product)  takes the products of a unit, publishes its values
//
// A pass over a cell of one phase gives the parts of step() too, for engines that keep in
// registers what a unit carries from step to step, read ahead, or publish in their own way:
//
//   rows       where a step, and the one that the loop takes after it, lie in arrays by time, for
//              engines that go from row to row; fetch, save, publish are told
//   fetch      what a step reads that no earlier step of the loop has written, as it lies: nothing
//              is computed from it yet, so that nothing waits for it
//   inputs     that as numbers
//   carried    what the unit carries, from memory; for s = 0, the initial values
//   advance    the step itself: takes products, carry and fetched values, gives published ones and
//              what is to be saved; reads and writes nothing but what lengths, resets, masks,
//              zoneout and a unit's own numbers need
//   publish    writes the former where input() finds them
//   exchanged  what the next step multiplies of them
//   save       writes what no step of this pass reads
//   keep       writes the carry where carried() finds it; after the last step, the results
//
// And for engines that leave out the steps in which nothing happens, for all rows have ended:
//
//   first_step, end_step   of the steps there are for rows of at most so many
//   skip                   in place of all the above, writes the zeros of a step that is left out
//
// Io tells how to read and write units: one at a time or a vector of them (cpu/simd.h); Io::Fetched
// is what a fetched one is until it is used. T is the type of the arrays, S that of the shape.
#pragma once
#include <type_traits>

#include "core/pass_base.h"

namespace prnn {

template <class C, class Io, class T = float, class S = Shape>
struct ForwardPass : PassBase<C, Io, T, S> {
  using Base = PassBase<C, Io, T, S>;
  using SequenceRows = typename Base::SequenceRows;
  using Index = typename S::Index;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  ForwardArrays<T> at;

  // Of a plain call none, which the compiler then sees.
  PRNN_HD decltype(auto) controls() const { return controls_of<S>(at.controls); }

  PRNN_HD static constexpr int products(int) { return C::kGates; }
  PRNN_HD Index depth(int) const { return shape.hidden; }
  PRNN_HD Index steps() const { return shape.time; }
  PRNN_HD T weight(Index g, int, Index unit, int product, Index k) const {
    return Base::w(at.w_hh, g, k, product, unit);
  }
  PRNN_HD WeightRows<T> weight_rows(Index g, int) const {
    return {at.w_hh + g * C::kGates * shape.hidden * shape.hidden, C::kGates * shape.hidden};
  }
  PRNN_HD T bias(Index g, int, Index unit, int product) const {
    return at.b_hh[(g * C::kGates + product) * shape.hidden + unit];
  }
  PRNN_HD bool multiplies(Index g, int, Index s, Index b) const { return s < shape.length(b, g); }
  PRNN_HD bool has_controls(Index g, Index s, Index b) const {
    return at.has_controls(shape, g, s, b);
  }
  PRNN_HD const float* input(Index g, int, Index s, Index b) const {
    if constexpr (std::is_same_v<T, float>)
      if (at.multiplied == nullptr)
        return at.controls.replaced(Base::h_before(at.y, at.state_0.h, g, s, b), shape, g, s, b);
    return Base::slot(at.multiplied, g, s, b, 1);
  }
  // What the first step multiplies, where input() has it in a place of its own.
  PRNN_HD void begin(Index g, Index b, Index unit, Io io) const {
    const F h = at.state_0.load(0, shape.state_at(b, g) + unit, io);
    io.store(Base::slot(at.multiplied, g, 0, b, 1) + unit, exchanged(g, -1, b, unit, {h}, io)[0]);
  }
  template <int kPhase>
  PRNN_HD void step(Index g, Index s, Index b, Index unit, const Vec<C::kGates, F>& a_h,
                    Io io) const {
    step_by_parts(*this, g, s, b, unit, a_h, io);
  }

  static constexpr int kProducts = C::kGates, kPublished = 1;
  static constexpr bool kStartsPublished = true;  // the first step multiplies the initial h
  static constexpr bool kUnitsContiguous = true;  // in the matrix as it lies in memory; else k
  using Carry = State<C, F>;
  template <class V>
  struct Of {
    Vec<C::kGates, V> a_x;
  };
  using Fetched = Of<typename Io::Fetched>;
  using Inputs = Of<F>;
  struct Saved {
    Forward<C, F> out;
    F made;  // h before zoneout
  };

  // Where row b of what step s publishes begins, in an array of the given shape.
  PRNN_HD static Index published_at(const S& shape, Index g, Index s, Index b) {
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
    return {Base::template fetch_a_x<C::kGates>(at, rows.here, g, s, b, unit, 0, io)};
  }
  PRNN_HD static Inputs inputs(const Fetched& in, Io io) { return {Base::values(in.a_x, io)}; }
  PRNN_HD Carry carried(Index g, Index s, Index b, Index unit, Io io) const {
    const Index state = shape.state_at(b, g) + unit;
    const bool is_over = s > shape.length(b, g);  // and keep() has stored its h
    Carry carry;
    carry[0] = io.load(is_over ? at.state_n.h + state
                               : Base::h_before(at.y, at.state_0.h, g, s, b) + unit);
    for (int n = 1; n < C::kStates; ++n)
      carry[n] = s == 0 ? at.state_0.load(n, state, io) : io.load(between_steps(g, b, unit, n));
    return carry;
  }
  PRNN_HD Vec<1, F> advance(Index g, Index s, Index b, Index unit, const Vec<C::kGates, F>& a_h,
                            const Inputs& in, Carry& carry, Saved& saved, Io io) const {
    if (has_ended(g, s, b)) {
      saved = {};
      return {F(0.0f)};
    }
    controls().replace(carry, shape, g, s, b, unit, io);
    const auto own = Base::per_unit(at.per_unit, g, unit, io);
    Forward<C, F>& out = saved.out;
    out = step_of(cell, own, in.a_x, a_h, carry);
    saved.made = out.next[0];
    controls().zone_out(out.next, carry, shape, g, shape.time_at(g, s, b), b, unit, io);
    carry = out.next;
    carry[0] = io.stored(carry[0]);  // other units and later calls see h as it is in y
    return {carry[0]};
  }
  PRNN_HD void save(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                    const Saved& saved, Io io) const {
    if (at.saved == nullptr || has_ended(g, s, b)) return;
    if constexpr (C::kKeepsMade)
      if (controls().zoneout != nullptr)
        Base::keep_values(at.saved + Base::in_sequence(rows.here, 1) + unit, Vec<1, F>{saved.made},
                          at.saves_non_temporal, io);
    if constexpr (saved_values<C> > 0) save_step(rows.here, unit, saved.out, io);
  }
  PRNN_HD void publish(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                       const Vec<1, F>& h, Io io) const {
    io.store(at.y + Base::in_sequence(rows.here, kPublished) + unit, h[0]);
    if (at.multiplied != nullptr)
      io.store(Base::slot(at.multiplied, g, s + 1, b, 1) + unit,
               exchanged(g, s, b, unit, h, io)[0]);
  }
  PRNN_HD Vec<1, F> exchanged(Index g, Index s, Index b, Index unit, const Vec<1, F>& h,
                              Io io) const {
    if (!controls().change_product_input()) return h;
    return {io.stored(controls().product_input(h[0], shape, g, s + 1, b, unit, io))};
  }
  PRNN_HD void keep(Index g, Index s, Index b, Index unit, const Carry& carry, Io io) const {
    const Index state = shape.state_at(b, g) + unit;
    const bool ends = s + 1 >= shape.length(b, g);
    if (ends) at.state_n.store(0, state, carry[0], io);
    for (int n = 1; n < C::kStates; ++n) {
      if (ends) at.state_n.store(n, state, carry[n], io);
      if (at.carried != nullptr) io.store(between_steps(g, b, unit, n), carry[n]);
    }
  }
  PRNN_HD Index first_step(Index) const { return 0; }
  PRNN_HD Index end_step(Index longest) const { return longest; }
  PRNN_HD void skip(Index g, Index s, Index b, Index unit, Io io) const {
    io.store(at.y + published_at(shape, g, s, b) + unit, F(0.0f));
  }

 private:
  // No row of a plain call, whose engine takes no step more than there are.
  PRNN_HD bool has_ended(Index g, Index s, Index b) const {
    return !S::kIsPlain && s >= shape.length(b, g);
  }
  // Where the n-th state is that passes from step to step.
  PRNN_HD float* between_steps(Index g, Index b, Index unit, int n) const {
    return Base::carried_at(at.carried, g, b, unit, n - 1, C::kStates - 1);
  }
  PRNN_HD void save_step(Index row, Index unit, const Forward<C, F>& out, Io io) const {
    const int first = at.saves_reserve ? C::kReserve : 0;  // of the states
    T* saved = at.saved + Base::in_sequence(row, first + C::kStates - 1) + unit;
    if (at.saves_reserve) Base::keep_values(saved, out.reserve, at.saves_non_temporal, io);
    if constexpr (C::kStates > 1) {
      Vec<C::kStates - 1, F> states;  // that are not y
      for (int n = 1; n < C::kStates; ++n) states[n - 1] = out.next[n];
      Base::keep_values(saved + first * shape.hidden, states, at.saves_non_temporal, io);
    }
  }
};

// One step more than there are times: the last only multiplies, for the gradient of the initial h.
template <class C, class Io, class T = float, class S = Shape>
struct BackwardPass : PassBase<C, Io, T, S> {
  using Base = PassBase<C, Io, T, S>;
  using SequenceRows = typename Base::SequenceRows;
  using Index = typename S::Index;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  BackwardArrays<T> at;

  PRNN_HD decltype(auto) controls() const { return controls_of<S>(at.controls); }

  PRNN_HD static constexpr int products(int) { return 1; }
  PRNN_HD Index depth(int) const { return C::kGates * shape.hidden; }
  PRNN_HD Index steps() const { return shape.time + 1; }
  PRNN_HD T weight(Index g, int, Index unit, int, Index k) const {
    return Base::w(at.w_hh, g, unit, 0, k);  // the transpose: k runs over [gate, unit]
  }
  PRNN_HD WeightColumns<T> weight_columns(Index g, int) const {
    return {at.w_hh + g * C::kGates * shape.hidden * shape.hidden, C::kGates * shape.hidden};
  }
  PRNN_HD T bias(Index, int, Index, int) const { return T{}; }
  PRNN_HD bool multiplies(Index g, int, Index s, Index b) const {
    return shape.time - s < shape.length(b, g);
  }
  PRNN_HD bool has_controls(Index g, Index s, Index b) const {
    return at.has_controls(shape, g, forward_step(shape, s), b);
  }
  PRNN_HD const float* input(Index g, int, Index s, Index b) const {
    if constexpr (std::is_same_v<T, float>)
      if (at.multiplied == nullptr) return at.da_h + published_at(shape, g, s - 1, b);
    return Base::slot(at.multiplied, g, s, b, C::kGates);
  }
  PRNN_HD void begin(Index, Index, Index, Io) const {}
  template <int kPhase>
  PRNN_HD void step(Index g, Index s, Index b, Index unit, const Vec<1, F>& dh, Io io) const {
    step_by_parts(*this, g, s, b, unit, dh, io);
  }

  static constexpr int kProducts = 1, kPublished = C::kGates;
  static constexpr bool kStartsPublished = false;
  static constexpr bool kUnitsContiguous = false;
  using Carry = State<C, F>;  // gradients of the states
  template <class V>
  struct Of {
    Vec<1, V> dy;
    Vec<C::kStates, V> prev, now;
    Vec<C::kReserve, V> reserve;
  };
  using Fetched = Of<typename Io::Fetched>;
  using Inputs = Of<F>;
  using Saved = Gates<C, F>;  // ∂a_x

  // Of the forward pass, whose steps this pass takes from the last to the first.
  PRNN_HD static Index forward_step(const S& shape, Index s) { return shape.time - 1 - s; }
  PRNN_HD static Index published_at(const S& shape, Index g, Index s, Index b) {
    return shape.sequence_at(b, shape.time_at(g, forward_step(shape, s), b), g, kPublished);
  }
  PRNN_HD SequenceRows rows(Index g, Index s, Index b) const {
    const Index step = forward_step(shape, s);
    return {Base::row_of(g, step, b), Base::row_of(g, step - 1, b)};
  }
  PRNN_HD Fetched fetch(Index g, Index s, Index b, Index unit, Io io) const {
    return fetch(rows(g, s, b), g, s, b, unit, io);
  }
  PRNN_HD Fetched fetch(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                        Io io) const {
    return fetch(at.dy, rows, g, s, b, unit, io);
  }
  // With dy of another array.
  PRNN_HD Fetched fetch(const T* dy, const SequenceRows& rows, Index g, Index s, Index b,
                        Index unit, Io io) const {
    Fetched in{};
    if (s == shape.time) return in;
    const bool is_first = s + 1 == shape.time;  // of the forward pass, which began with states
    const Index state = shape.state_at(b, g) + unit;
    const Index here = Base::in_sequence(rows.here, 1) + unit;
    const Index before = Base::in_sequence(rows.next, 1) + unit;
    in.dy[0] = io.fetch(dy + here);
    in.now[0] = io.fetch((C::kKeepsMade && controls().zoneout != nullptr ? at.saved : at.y) + here);
    in.prev[0] = io.fetch(is_first ? at.state_0[0] + state : at.y + before);
    if constexpr (saved_values<C> > 0) {
      constexpr int kSaved = saved_values<C>;
      const T* saved = at.saved + Base::in_sequence(rows.here, kSaved) + unit;
      const T* saved_before = at.saved + Base::in_sequence(rows.next, kSaved) + unit;
      in.reserve = Base::template fetch_values<C::kReserve>(saved, io);
      for (int n = 1; n < C::kStates; ++n) {
        const Index value = (C::kReserve + n - 1) * shape.hidden;
        in.now[n] = io.fetch(saved + value);
        in.prev[n] = io.fetch(is_first ? at.state_0[n] + state : saved_before + value);
      }
    }
    return in;
  }
  PRNN_HD static Inputs inputs(const Fetched& in, Io io) {
    return {Base::values(in.dy, io), Base::values(in.prev, io), Base::values(in.now, io),
            Base::values(in.reserve, io)};
  }
  PRNN_HD Carry carried(Index g, Index s, Index b, Index unit, Io io) const {
    if (s == 0) at.no_resets_yet(shape, g, b, unit, io);
    Carry d;
    for (int n = 0; n < C::kStates; ++n)
      d[n] = s == 0 ? at.dstate_n.load(n, shape.state_at(b, g) + unit, io)
                    : io.load(between_steps(g, b, unit, n));
    return d;
  }
  PRNN_HD Gates<C, F> advance(Index g, Index s, Index b, Index unit, const Vec<1, F>& dh,
                              const Inputs& in, Carry& d, Saved& da_x, Io io) const {
    if (multiplies(g, 0, s, b))  // else the mask may be no number
      d[0] = d[0] + controls().masked(dh[0], shape, g, b, unit, io);
    if (controls().resets != nullptr)
      at.hand_to_reset(shape, g, forward_step(shape, s) + 1, b, unit, d, io);
    Backward<C, F> out{};
    da_x = out.da_x;
    if (s == shape.time) return out.da_h;
    const Index step = forward_step(shape, s);
    if (S::kIsPlain || step < shape.length(b, g)) {
      State<C, F> prev = in.prev, now = in.now, kept{};
      d[0] = d[0] + in.dy[0];
      controls().replace(prev, shape, g, step, b, unit, io);
      if (controls().zoneout != nullptr) {
        controls().zone_out_grad(d, kept, shape, g, shape.time_at(g, step, b), b, unit, io);
        now = cell.recompute_state(prev, now, in.reserve);
      }
      const auto own = Base::per_unit(at.per_unit, g, unit, io);
      out = grad_of(cell, own, d, prev, now, in.reserve);
      d = out.prev;
      if (controls().zoneout != nullptr)
        for (int n = 0; n < C::kStates; ++n) d[n] = d[n] + kept[n];
    }
    da_x = out.da_x;
    return out.da_h;
  }
  PRNN_HD void save(const SequenceRows& rows, Index, Index s, Index, Index unit, const Saved& da_x,
                    Io io) const {
    if constexpr (!C::kSameGradient)
      if (s < shape.time)
        Base::store_values(at.da_x + Base::in_sequence(rows.here, kPublished) + unit, da_x, io);
  }
  PRNN_HD void publish(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                       const Gates<C, F>& da_h, Io io) const {
    if (s == shape.time) return;
    Base::store_values(at.da_h + Base::in_sequence(rows.here, kPublished) + unit, da_h, io);
    if (at.multiplied != nullptr) {
      Gates<C, F> stored;
      for (int n = 0; n < C::kGates; ++n) stored[n] = io.stored(da_h[n]);
      Base::store_values(Base::slot(at.multiplied, g, s + 1, b, C::kGates) + unit, stored, io);
    }
  }
  PRNN_HD Gates<C, F> exchanged(Index, Index, Index, Index, const Gates<C, F>& da_h, Io) const {
    return da_h;
  }
  PRNN_HD void keep(Index g, Index s, Index b, Index unit, const Carry& d, Io io) const {
    for (int n = 0; n < C::kStates; ++n)
      if (s == shape.time)
        at.dstate_0.store(n, shape.state_at(b, g) + unit, d[n], io);
      else
        io.store(between_steps(g, b, unit, n), d[n]);
  }

  PRNN_HD Index first_step(Index longest) const { return shape.time - longest; }
  PRNN_HD Index end_step(Index) const { return steps(); }
  PRNN_HD void skip(Index g, Index s, Index b, Index unit, Io io) const {
    const Index here = published_at(shape, g, s, b) + unit;
    Base::store_values(at.da_h + here, Gates<C, F>{}, io);
    if constexpr (!C::kSameGradient) Base::store_values(at.da_x + here, Gates<C, F>{}, io);
  }

 private:
  // Where the gradient of the n-th state is that passes from step to step.
  PRNN_HD float* between_steps(Index g, Index b, Index unit, int n) const {
    return Base::carried_at(at.carried, g, b, unit, n, C::kStates);
  }
};

}  // namespace prnn
