// A pass is the recurrence in one direction, forward or backward. Both are the same loop,
//
//   published values of the last step  ->  product with a fixed matrix  ->  step  ->  publish
//
// and differ in what they multiply: forward, kGates products per unit of one published value (h);
// backward, one product per unit of kGates published values (∂a_h). An engine asks of a pass:
//
//   kPhases                          products in series within a step
//   products(p)                      rows of the phase's matrix per unit
//   depth(p)                         columns: how many published values a product runs over
//   weight(g, p, unit, product, k)   the matrix, and bias(...), what the product starts from
//   steps()                          steps of the loop
//   input(g, p, s, b)                the published values of row b; null where they are all zero
//   step<p>(g, s, b, unit, product)  takes the products of a unit, publishes its values
//
// A pass over a cell of one phase gives the parts of step() too, for engines that keep in
// registers what a unit carries from step to step, read ahead, or publish in their own way:
//
//   fetch      what a step reads that no earlier step of the loop has written
//   carried    what the unit carries, from memory; for s = 0, the initial values
//   advance    the step itself: takes products, carry and fetched values, gives published ones
//   publish    writes those where input() finds them
//   keep       writes the carry where carried() finds it; after the last step, the results
//
// Io tells how to read and write units: one at a time or a vector of them (cpu/simd.h). T is the
// type of the arrays.
#pragma once
#include "core/cells.h"
#include "core/shape.h"

namespace prnn {

inline constexpr int kMaxStates = 2;

template <class T = float>
struct ForwardArrays {
  const T *a_x, *w_hh, *b_hh;    // sequence [G·H]; [groups, H, G·H]; [groups, G·H]
  const T* state_0[kMaxStates];  // [batch, groups, H] each
  T* y;                          // sequence [H]
  T* state_n[kMaxStates];        // also the store of the states that are not published
  T* saved;                      // sequence [saved_values<C>·H]; null: keep nothing
  T* between;                    // [batch, groups, 3·H], two-phase cells only
};

template <class T = float>
struct BackwardArrays {
  const T *dy, *w_hh, *y, *saved;  // as in ForwardArrays
  const T *state_0[kMaxStates], *dstate_n[kMaxStates];
  T *da_x, *da_h;           // sequences [G·H]; one array where kSameGradient
  T* dstate_0[kMaxStates];  // also the store of the gradient carried between steps
};

// Kept for the backward pass, per unit and step: the reserve, then the states that are not y.
template <class C>
inline constexpr int saved_values = C::kReserve + C::kStates - 1;

// A cell's numbers at run time.
struct CellNumbers {
  int gates, states, saved;
  bool same_gradient;
};
inline CellNumbers numbers(const CellSpec& cell) {
  return visit(cell, [](auto c) {
    using C = decltype(c);
    return CellNumbers{C::kGates, C::kStates, saved_values<C>, C::kSameGradient};
  });
}

// What the two passes share: a cell, a shape, and reading the states around a step.
template <class C, class Io, class T>
struct PassBase {
  using F = typename Io::F;
  using Value = T;
  static constexpr int kPhases = C::kPhases;
  C cell;
  Shape shape;

  // Element (unit from, gate, unit to) of w_hh.
  PRNN_HD T w(const T* w_hh, std::int64_t g, std::int64_t from, int gate, std::int64_t to) const {
    return w_hh[(g * shape.hidden + from) * C::kGates * shape.hidden + gate * shape.hidden + to];
  }
  // h before the step at time_at(g, step): from y, or from the initial state.
  PRNN_HD const T* h_before(const T* y, const T* h_0, std::int64_t g, std::int64_t step,
                            std::int64_t b) const {
    return step == 0 ? h_0 + shape.state_at(b, g)
                     : y + shape.sequence_at(b, shape.time_at(g, step - 1), g, 1);
  }
  template <int N>
  PRNN_HD Vec<N, F> load_values(const T* p, Io io) const {
    Vec<N, F> values;
    if constexpr (N > 0)
      for (int n = 0; n < N; ++n) values[n] = io.load(p + n * shape.hidden);
    return values;
  }
  template <int N>
  PRNN_HD void store_values(T* p, const Vec<N, F>& values, Io io) const {
    if constexpr (N > 0)
      for (int n = 0; n < N; ++n) io.store(p + n * shape.hidden, values[n]);
  }
};

// The step of a pass that gives its parts.
template <class Pass, class F, class Io>
PRNN_HD void step_by_parts(const Pass& pass, std::int64_t g, std::int64_t s, std::int64_t b,
                           std::int64_t unit, const Vec<Pass::kProducts, F>& products, Io io) {
  auto carry = pass.carried(g, s, b, unit, io);
  const auto published =
      pass.advance(g, s, b, unit, products, pass.fetch(g, s, b, unit, io), carry, io);
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
  PRNN_HD T bias(std::int64_t g, int, std::int64_t unit, int product) const {
    return at.b_hh[(g * C::kGates + product) * shape.hidden + unit];
  }
  PRNN_HD const T* input(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    return Base::h_before(at.y, at.state_0[0], g, s, b);
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
  struct Inputs {
    Gates<C, F> a_x;
  };

  // Where row b of what step s publishes begins, in an array of the given shape.
  PRNN_HD static std::int64_t published_at(const Shape& shape, std::int64_t g, std::int64_t s,
                                           std::int64_t b) {
    return shape.sequence_at(b, shape.time_at(g, s), g, kPublished);
  }
  PRNN_HD Inputs fetch(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                       Io io) const {
    const T* a_x = at.a_x + shape.sequence_at(b, shape.time_at(g, s), g, C::kGates) + unit;
    return {Base::template load_values<C::kGates>(a_x, io)};
  }
  PRNN_HD Carry carried(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                        Io io) const {
    const std::int64_t state = shape.state_at(b, g) + unit;
    Carry carry;
    carry[0] = io.load(input(g, 0, s, b) + unit);
    for (int n = 1; n < C::kStates; ++n)
      carry[n] = io.load((s == 0 ? at.state_0[n] : at.state_n[n]) + state);
    return carry;
  }
  PRNN_HD Vec<1, F> advance(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                            const Vec<C::kGates, F>& a_h, const Inputs& in, Carry& carry,
                            Io io) const {
    const Forward<C, F> out = cell.step(in.a_x, a_h, carry);
    if constexpr (saved_values<C> > 0) {
      if (at.saved != nullptr) {
        const std::int64_t t = shape.time_at(g, s);
        T* saved = at.saved + shape.sequence_at(b, t, g, saved_values<C>) + unit;
        Base::store_values(saved, out.reserve, io);
        for (int n = 1; n < C::kStates; ++n)
          io.store(saved + (C::kReserve + n - 1) * shape.hidden, out.next[n]);
      }
    }
    carry = out.next;
    carry[0] = io.stored(carry[0]);  // other units and later calls see h as it is in y
    return {carry[0]};
  }
  PRNN_HD void publish(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                       const Vec<1, F>& h, Io io) const {
    io.store(at.y + published_at(shape, g, s, b) + unit, h[0]);
  }
  PRNN_HD void keep(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Carry& carry, Io io) const {
    const std::int64_t state = shape.state_at(b, g) + unit;
    if (s == shape.time - 1) io.store(at.state_n[0] + state, carry[0]);
    for (int n = 1; n < C::kStates; ++n) io.store(at.state_n[n] + state, carry[n]);
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
  PRNN_HD T bias(std::int64_t, int, std::int64_t, int) const { return T{}; }
  PRNN_HD const T* input(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    return s == 0 ? nullptr : at.da_h + published_at(shape, g, s - 1, b);
  }
  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<1, F>& dh, Io io) const {
    step_by_parts(*this, g, s, b, unit, dh, io);
  }

  static constexpr int kProducts = 1, kPublished = C::kGates;
  static constexpr bool kStartsPublished = false;
  static constexpr bool kUnitsContiguous = false;
  using Carry = State<C, F>;  // gradients of the states
  struct Inputs {
    F dy;
    State<C, F> prev, now;
    Vec<C::kReserve, F> reserve;
  };

  // Of the forward pass, whose steps this pass takes from the last to the first.
  PRNN_HD static std::int64_t forward_step(const Shape& shape, std::int64_t s) {
    return shape.time - 1 - s;
  }
  PRNN_HD static std::int64_t published_at(const Shape& shape, std::int64_t g, std::int64_t s,
                                           std::int64_t b) {
    return shape.sequence_at(b, shape.time_at(g, forward_step(shape, s)), g, kPublished);
  }
  PRNN_HD Inputs fetch(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                       Io io) const {
    Inputs in{};
    if (s == shape.time) return in;
    const std::int64_t step = forward_step(shape, s), t = shape.time_at(g, step);
    const std::int64_t y_at = shape.sequence_at(b, t, g, 1) + unit;
    in.dy = io.load(at.dy + y_at);
    in.now[0] = io.load(at.y + y_at);
    in.prev[0] = io.load(Base::h_before(at.y, at.state_0[0], g, step, b) + unit);
    if constexpr (saved_values<C> > 0) {
      constexpr int kSaved = saved_values<C>;
      const T* saved = at.saved + shape.sequence_at(b, t, g, kSaved) + unit;
      in.reserve = Base::template load_values<C::kReserve>(saved, io);
      for (int n = 1; n < C::kStates; ++n) {
        const std::int64_t value = (C::kReserve + n - 1) * shape.hidden;
        in.now[n] = io.load(saved + value);
        in.prev[n] = step == 0
                         ? io.load(at.state_0[n] + shape.state_at(b, g) + unit)
                         : io.load(at.saved + unit + value +
                                   shape.sequence_at(b, shape.time_at(g, step - 1), g, kSaved));
      }
    }
    return in;
  }
  PRNN_HD Carry carried(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                        Io io) const {
    Carry d;
    for (int n = 0; n < C::kStates; ++n)
      d[n] = io.load((s == 0 ? at.dstate_n[n] : at.dstate_0[n]) + shape.state_at(b, g) + unit);
    return d;
  }
  PRNN_HD Gates<C, F> advance(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                              const Vec<1, F>& dh, const Inputs& in, Carry& d, Io io) const {
    d[0] = d[0] + dh[0];
    if (s == shape.time) return Gates<C, F>{};
    d[0] = d[0] + in.dy;
    const Backward<C, F> out = cell.step_grad(d, in.prev, in.now, in.reserve);
    d = out.prev;
    if constexpr (!C::kSameGradient)
      Base::store_values(at.da_x + published_at(shape, g, s, b) + unit, out.da_x, io);
    return out.da_h;
  }
  PRNN_HD void publish(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                       const Gates<C, F>& da_h, Io io) const {
    if (s == shape.time) return;
    Base::store_values(at.da_h + published_at(shape, g, s, b) + unit, da_h, io);
  }
  PRNN_HD void keep(std::int64_t g, std::int64_t, std::int64_t b, std::int64_t unit, const Carry& d,
                    Io io) const {
    for (int n = 0; n < C::kStates; ++n)
      io.store(at.dstate_0[n] + shape.state_at(b, g) + unit, d[n]);
  }
};

}  // namespace prnn
