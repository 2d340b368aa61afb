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
//   bends(g, s, b)                   whether lengths or resets make a step that counts another than
//                                    it would be without them
//   step<p>(g, s, b, unit, product)  takes the products of a unit, publishes its values
//
// A pass over a cell of one phase gives the parts of step() too, for engines that keep in
// registers what a unit carries from step to step, read ahead, or publish in their own way:
//
//   fetch      what a step reads that no earlier step of the loop has written, as it lies: nothing
//              is computed from it yet, so that nothing waits for it
//   inputs     that as numbers
//   carried    what the unit carries, from memory; for s = 0, the initial values
//   advance    the step itself: takes products, carry and fetched values, gives published ones
//   publish    writes those where input() finds them
//   exchanged  what the next step multiplies of them
//   keep       writes the carry where carried() finds it; after the last step, the results
//
// And for engines that leave out the steps in which nothing happens, for all rows have ended:
//
//   first_step, end_step   of the steps there are for rows of at most so many
//   skip                   in place of all the above, writes the zeros of a step that is left out
//
// Io tells how to read and write units: one at a time or a vector of them (cpu/simd.h); Io::Fetched
// is what a fetched one is until it is used. T is the type of the arrays.
#pragma once
#include <type_traits>

#include "core/pass_base.h"

namespace prnn {

// The step of a pass that gives its parts.
template <class Pass, class F, class Io>
PRNN_HD void step_by_parts(const Pass& pass, std::int64_t g, std::int64_t s, std::int64_t b,
                           std::int64_t unit, const Vec<Pass::kProducts, F>& products, Io io) {
  auto carry = pass.carried(g, s, b, unit, io);
  const auto inputs = pass.inputs(pass.fetch(g, s, b, unit, io), io);
  const auto published = pass.advance(g, s, b, unit, products, inputs, carry, io);
  pass.publish(g, s, b, unit, published, io);
  pass.keep(g, s, b, unit, carry, io);
}

template <class C, class Io, class T = float>
struct ForwardPass : PassBase<C, Io, T> {
  using Base = PassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  ForwardArrays<T> at;

  PRNN_HD static constexpr int products(int) { return C::kGates; }
  PRNN_HD std::int64_t depth(int) const { return shape.hidden; }
  PRNN_HD std::int64_t steps() const { return shape.time; }
  PRNN_HD T weight(std::int64_t g, int, std::int64_t unit, int product, std::int64_t k) const {
    return Base::w(at.w_hh, g, k, product, unit);
  }
  PRNN_HD WeightRows<T> weight_rows(std::int64_t g, int) const {
    return {at.w_hh + g * C::kGates * shape.hidden * shape.hidden, C::kGates * shape.hidden};
  }
  PRNN_HD T bias(std::int64_t g, int, std::int64_t unit, int product) const {
    return at.b_hh[(g * C::kGates + product) * shape.hidden + unit];
  }
  PRNN_HD bool multiplies(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    return s < shape.length(b, g);
  }
  PRNN_HD bool bends(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return at.bends(shape, g, s, b);
  }
  PRNN_HD const float* input(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    if constexpr (std::is_same_v<T, float>)
      if (at.multiplied == nullptr)
        return at.controls.replaced(Base::h_before(at.y, at.state_0[0], g, s, b), shape, g, s, b);
    return Base::turn(at.multiplied, g, s, b, 1);
  }
  // What the first step multiplies, where input() has it in a place of its own.
  PRNN_HD void begin(std::int64_t g, std::int64_t b, std::int64_t unit, Io io) const {
    const F h = io.load(at.state_0[0] + shape.state_at(b, g) + unit);
    io.store(Base::turn(at.multiplied, g, 0, b, 1) + unit, exchanged(g, -1, b, unit, {h}, io)[0]);
  }
  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<C::kGates, F>& a_h, Io io) const {
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

  // Where row b of what step s publishes begins, in an array of the given shape.
  PRNN_HD static std::int64_t published_at(const Shape& shape, std::int64_t g, std::int64_t s,
                                           std::int64_t b) {
    return shape.sequence_at(b, shape.time_at(g, s, b), g, kPublished);
  }
  PRNN_HD Fetched fetch(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                        Io io) const {
    return {Base::template fetch_a_x<C::kGates>(at, g, s, b, unit, 0, io)};
  }
  PRNN_HD static Inputs inputs(const Fetched& in, Io io) { return {Base::values(in.a_x, io)}; }
  PRNN_HD Carry carried(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                        Io io) const {
    const std::int64_t state = shape.state_at(b, g) + unit;
    const bool has_ended = s > shape.length(b, g);  // and keep() has stored its h
    Carry carry;
    carry[0] = io.load(has_ended ? at.state_n[0] + state
                                 : Base::h_before(at.y, at.state_0[0], g, s, b) + unit);
    for (int n = 1; n < C::kStates; ++n)
      carry[n] = s == 0 ? io.load(at.state_0[n] + state) : io.load(between_steps(g, b, unit, n));
    return carry;
  }
  PRNN_HD Vec<1, F> advance(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                            const Vec<C::kGates, F>& a_h, const Inputs& in, Carry& carry,
                            Io io) const {
    if (s >= shape.length(b, g)) return {F(0.0f)};
    at.controls.replace(carry, shape, g, s, b, unit, io);
    const auto own = Base::per_unit(at.per_unit, g, unit, io);
    Forward<C, F> out = step_of(cell, own, in.a_x, a_h, carry);
    const std::int64_t t = shape.time_at(g, s, b);
    if constexpr (C::kKeepsMade)
      if (at.keeps_made())
        Base::keep_values(at.saved + shape.sequence_at(b, t, g, 1) + unit, out.next, at.saves_far,
                          io);
    at.controls.zone_out(out.next, carry, shape, g, t, b, unit, io);
    if (saved_values<C> > 0 && at.saved != nullptr) save(g, t, b, unit, out, io);
    carry = out.next;
    carry[0] = io.stored(carry[0]);  // other units and later calls see h as it is in y
    return {carry[0]};
  }
  PRNN_HD void publish(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                       const Vec<1, F>& h, Io io) const {
    io.store(at.y + published_at(shape, g, s, b) + unit, h[0]);
    if (at.multiplied != nullptr)
      io.store(Base::turn(at.multiplied, g, s + 1, b, 1) + unit,
               exchanged(g, s, b, unit, h, io)[0]);
  }
  PRNN_HD Vec<1, F> exchanged(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                              const Vec<1, F>& h, Io io) const {
    if (!at.controls.change_product_input()) return h;
    return {io.stored(at.controls.product_input(h[0], shape, g, s + 1, b, unit, io))};
  }
  PRNN_HD void keep(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Carry& carry, Io io) const {
    const std::int64_t state = shape.state_at(b, g) + unit;
    const bool ends = s + 1 >= shape.length(b, g);
    if (ends) io.store(at.state_n[0] + state, carry[0]);
    for (int n = 1; n < C::kStates; ++n) {
      if (ends) io.store(at.state_n[n] + state, carry[n]);
      if (at.carry != nullptr) io.store(between_steps(g, b, unit, n), carry[n]);
    }
  }
  PRNN_HD std::int64_t first_step(std::int64_t) const { return 0; }
  PRNN_HD std::int64_t end_step(std::int64_t longest) const { return longest; }
  PRNN_HD void skip(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    Io io) const {
    io.store(at.y + published_at(shape, g, s, b) + unit, F(0.0f));
  }

 private:
  // Where the n-th state is that passes from step to step.
  PRNN_HD float* between_steps(std::int64_t g, std::int64_t b, std::int64_t unit, int n) const {
    return Base::carried_at(at.carry, g, b, unit, n - 1, C::kStates - 1);
  }
  PRNN_HD void save(std::int64_t g, std::int64_t t, std::int64_t b, std::int64_t unit,
                    const Forward<C, F>& out, Io io) const {
    const int first = at.saves_reserve ? C::kReserve : 0;  // of the states
    T* saved = at.saved + shape.sequence_at(b, t, g, first + C::kStates - 1) + unit;
    if (at.saves_reserve) Base::keep_values(saved, out.reserve, at.saves_far, io);
    if constexpr (C::kStates > 1) {
      Vec<C::kStates - 1, F> states;  // that are not y
      for (int n = 1; n < C::kStates; ++n) states[n - 1] = out.next[n];
      Base::keep_values(saved + first * shape.hidden, states, at.saves_far, io);
    }
  }
};

// One step more than there are times: the last only multiplies, for the gradient of the initial h.
template <class C, class Io, class T = float>
struct BackwardPass : PassBase<C, Io, T> {
  using Base = PassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  BackwardArrays<T> at;

  PRNN_HD static constexpr int products(int) { return 1; }
  PRNN_HD std::int64_t depth(int) const { return C::kGates * shape.hidden; }
  PRNN_HD std::int64_t steps() const { return shape.time + 1; }
  PRNN_HD T weight(std::int64_t g, int, std::int64_t unit, int, std::int64_t k) const {
    return Base::w(at.w_hh, g, unit, 0, k);  // the transpose: k runs over [gate, unit]
  }
  PRNN_HD WeightColumns<T> weight_columns(std::int64_t g, int) const {
    return {at.w_hh + g * C::kGates * shape.hidden * shape.hidden, C::kGates * shape.hidden};
  }
  PRNN_HD T bias(std::int64_t, int, std::int64_t, int) const { return T{}; }
  PRNN_HD bool multiplies(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    return shape.time - s < shape.length(b, g);
  }
  PRNN_HD bool bends(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return at.bends(shape, g, forward_step(shape, s), b);
  }
  PRNN_HD const float* input(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    if constexpr (std::is_same_v<T, float>)
      if (at.multiplied == nullptr) return at.da_h + published_at(shape, g, s - 1, b);
    return Base::turn(at.multiplied, g, s, b, C::kGates);
  }
  PRNN_HD void begin(std::int64_t, std::int64_t, std::int64_t, Io) const {}
  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<1, F>& dh, Io io) const {
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

  // Of the forward pass, whose steps this pass takes from the last to the first.
  PRNN_HD static std::int64_t forward_step(const Shape& shape, std::int64_t s) {
    return shape.time - 1 - s;
  }
  PRNN_HD static std::int64_t published_at(const Shape& shape, std::int64_t g, std::int64_t s,
                                           std::int64_t b) {
    return shape.sequence_at(b, shape.time_at(g, forward_step(shape, s), b), g, kPublished);
  }
  PRNN_HD Fetched fetch(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                        Io io) const {
    Fetched in{};
    if (s == shape.time) return in;
    const std::int64_t step = forward_step(shape, s), t = shape.time_at(g, step, b);
    const std::int64_t y_at = shape.sequence_at(b, t, g, 1) + unit;
    in.dy[0] = io.fetch(at.dy + y_at);
    in.now[0] =
        io.fetch((C::kKeepsMade && at.controls.zoneout != nullptr ? at.saved : at.y) + y_at);
    in.prev[0] = io.fetch(Base::h_before(at.y, at.state_0[0], g, step, b) + unit);
    if constexpr (saved_values<C> > 0) {
      constexpr int kSaved = saved_values<C>;
      const T* saved = at.saved + shape.sequence_at(b, t, g, kSaved) + unit;
      in.reserve = Base::template fetch_values<C::kReserve>(saved, io);
      for (int n = 1; n < C::kStates; ++n) {
        const std::int64_t value = (C::kReserve + n - 1) * shape.hidden;
        in.now[n] = io.fetch(saved + value);
        in.prev[n] = step == 0
                         ? io.fetch(at.state_0[n] + shape.state_at(b, g) + unit)
                         : io.fetch(at.saved + unit + value +
                                    shape.sequence_at(b, shape.time_at(g, step - 1, b), g, kSaved));
      }
    }
    return in;
  }
  PRNN_HD static Inputs inputs(const Fetched& in, Io io) {
    return {Base::values(in.dy, io), Base::values(in.prev, io), Base::values(in.now, io),
            Base::values(in.reserve, io)};
  }
  PRNN_HD Carry carried(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                        Io io) const {
    if (s == 0) at.no_resets_yet(shape, g, b, unit, io);
    Carry d;
    for (int n = 0; n < C::kStates; ++n)
      d[n] = s == 0 ? io.load(at.dstate_n[n] + shape.state_at(b, g) + unit)
                    : io.load(between_steps(g, b, unit, n));
    return d;
  }
  PRNN_HD Gates<C, F> advance(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                              const Vec<1, F>& dh, const Inputs& in, Carry& d, Io io) const {
    if (multiplies(g, 0, s, b))  // else the mask may be no number
      d[0] = d[0] + at.controls.masked(dh[0], shape, g, b, unit, io);
    at.hand_to_reset(shape, g, forward_step(shape, s) + 1, b, unit, d, io);
    Backward<C, F> out{};
    if (s == shape.time) return out.da_h;
    const std::int64_t step = forward_step(shape, s);
    if (step < shape.length(b, g)) {
      State<C, F> prev = in.prev, now = in.now, kept{};
      d[0] = d[0] + in.dy[0];
      at.controls.replace(prev, shape, g, step, b, unit, io);
      if (at.controls.zoneout != nullptr) {
        at.controls.zone_out_grad(d, kept, shape, g, shape.time_at(g, step, b), b, unit, io);
        now = cell.made(prev, now, in.reserve);
      }
      const auto own = Base::per_unit(at.per_unit, g, unit, io);
      out = grad_of(cell, own, d, prev, now, in.reserve);
      d = out.prev;
      if (at.controls.zoneout != nullptr)
        for (int n = 0; n < C::kStates; ++n) d[n] = d[n] + kept[n];
    }
    if constexpr (!C::kSameGradient)
      Base::store_values(at.da_x + published_at(shape, g, s, b) + unit, out.da_x, io);
    return out.da_h;
  }
  PRNN_HD void publish(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                       const Gates<C, F>& da_h, Io io) const {
    if (s == shape.time) return;
    Base::store_values(at.da_h + published_at(shape, g, s, b) + unit, da_h, io);
    if (at.multiplied != nullptr) {
      Gates<C, F> stored;
      for (int n = 0; n < C::kGates; ++n) stored[n] = io.stored(da_h[n]);
      Base::store_values(Base::turn(at.multiplied, g, s + 1, b, C::kGates) + unit, stored, io);
    }
  }
  PRNN_HD Gates<C, F> exchanged(std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                const Gates<C, F>& da_h, Io) const {
    return da_h;
  }
  PRNN_HD void keep(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Carry& d, Io io) const {
    for (int n = 0; n < C::kStates; ++n)
      if (s == shape.time)
        io.store(at.dstate_0[n] + shape.state_at(b, g) + unit, d[n]);
      else
        io.store(between_steps(g, b, unit, n), d[n]);
  }

  PRNN_HD std::int64_t first_step(std::int64_t longest) const { return shape.time - longest; }
  PRNN_HD std::int64_t end_step(std::int64_t) const { return steps(); }
  PRNN_HD void skip(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    Io io) const {
    const std::int64_t here = published_at(shape, g, s, b) + unit;
    Base::store_values(at.da_h + here, Gates<C, F>{}, io);
    if constexpr (!C::kSameGradient) Base::store_values(at.da_x + here, Gates<C, F>{}, io);
  }

 private:
  // Where the gradient of the n-th state is that passes from step to step.
  PRNN_HD float* between_steps(std::int64_t g, std::int64_t b, std::int64_t unit, int n) const {
    return Base::carried_at(at.carry, g, b, unit, n, C::kStates);
  }
};

}  // namespace prnn
