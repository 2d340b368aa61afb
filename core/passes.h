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
// Io tells how to read and write units: one at a time or a vector of them (cpu/simd.h).
#pragma once
#include "core/cells.h"
#include "core/shape.h"

namespace prnn {

inline constexpr int kMaxStates = 2;

struct ForwardArrays {
  const float *a_x, *w_hh, *b_hh;    // sequence [G·H]; [groups, H, G·H]; [groups, G·H]
  const float* state_0[kMaxStates];  // [batch, groups, H] each
  float* y;                          // sequence [H]
  float* state_n[kMaxStates];        // also the store of the states that are not published
  float* saved;                      // sequence [saved_values<C>·H]; null: keep nothing
  float* between;                    // [batch, groups, 3·H], two-phase cells only
};

struct BackwardArrays {
  const float *dy, *w_hh, *y, *saved;  // as in ForwardArrays
  const float *state_0[kMaxStates], *dstate_n[kMaxStates];
  float *da_x, *da_h;           // sequences [G·H]; one array where kSameGradient
  float* dstate_0[kMaxStates];  // also the store of the gradient carried between steps
};

// Kept for the backward pass, per unit and step: the reserve, then the states that are not y.
template <class C>
inline constexpr int saved_values = C::kReserve + C::kStates - 1;

// What the two passes share: a cell, a shape, and reading the states around a step.
template <class C, class Io>
struct PassBase {
  using F = typename Io::F;
  static constexpr int kPhases = C::kPhases;
  C cell;
  Shape shape;

  // Element (unit from, gate, unit to) of w_hh.
  PRNN_HD float w(const float* w_hh, std::int64_t g, std::int64_t from, int gate,
                  std::int64_t to) const {
    return w_hh[(g * shape.hidden + from) * C::kGates * shape.hidden + gate * shape.hidden + to];
  }
  // h before the step at time_at(g, step): from y, or from the initial state.
  PRNN_HD const float* h_before(const float* y, const float* h_0, std::int64_t g, std::int64_t step,
                                std::int64_t b) const {
    return step == 0 ? h_0 + shape.state_at(b, g)
                     : y + shape.sequence_at(b, shape.time_at(g, step - 1), g, 1);
  }
  template <int N>
  PRNN_HD Vec<N, F> load_values(const float* p, Io io) const {
    Vec<N, F> values;
    if constexpr (N > 0)
      for (int n = 0; n < N; ++n) values[n] = io.load(p + n * shape.hidden);
    return values;
  }
  template <int N>
  PRNN_HD void store_values(float* p, const Vec<N, F>& values, Io io) const {
    if constexpr (N > 0)
      for (int n = 0; n < N; ++n) io.store(p + n * shape.hidden, values[n]);
  }
};

template <class C, class Io>
struct ForwardPass : PassBase<C, Io> {
  using Base = PassBase<C, Io>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  ForwardArrays at;

  PRNN_HD static constexpr int products(int) { return C::kGates; }
  PRNN_HD std::int64_t depth(int) const { return shape.hidden; }
  PRNN_HD std::int64_t steps() const { return shape.time; }
  PRNN_HD float weight(std::int64_t g, int, std::int64_t unit, int product, std::int64_t k) const {
    return Base::w(at.w_hh, g, k, product, unit);
  }
  PRNN_HD float bias(std::int64_t g, int, std::int64_t unit, int product) const {
    return at.b_hh[(g * C::kGates + product) * shape.hidden + unit];
  }
  PRNN_HD const float* input(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    return Base::h_before(at.y, at.state_0[0], g, s, b);
  }

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<C::kGates, F>& a_h, Io io) const {
    const std::int64_t t = shape.time_at(g, s), state = shape.state_at(b, g) + unit;
    const auto a_x = Base::template load_values<C::kGates>(
        at.a_x + shape.sequence_at(b, t, g, C::kGates) + unit, io);
    State<C, F> prev;
    prev[0] = io.load(input(g, 0, s, b) + unit);
    for (int n = 1; n < C::kStates; ++n)
      prev[n] = io.load((s == 0 ? at.state_0[n] : at.state_n[n]) + state);
    const Forward<C, F> out = cell.step(a_x, a_h, prev);
    io.store(at.y + shape.sequence_at(b, t, g, 1) + unit, out.next[0]);
    if (s == shape.time - 1) io.store(at.state_n[0] + state, out.next[0]);
    for (int n = 1; n < C::kStates; ++n) io.store(at.state_n[n] + state, out.next[n]);
    if constexpr (saved_values<C> > 0) {
      if (at.saved != nullptr) {
        float* saved = at.saved + shape.sequence_at(b, t, g, saved_values<C>) + unit;
        Base::store_values(saved, out.reserve, io);
        for (int n = 1; n < C::kStates; ++n)
          io.store(saved + (C::kReserve + n - 1) * shape.hidden, out.next[n]);
      }
    }
  }
};

// One step more than there are times: the last only multiplies, for the gradient of the initial h.
template <class C, class Io>
struct BackwardPass : PassBase<C, Io> {
  using Base = PassBase<C, Io>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  BackwardArrays at;

  PRNN_HD static constexpr int products(int) { return 1; }
  PRNN_HD std::int64_t depth(int) const { return C::kGates * shape.hidden; }
  PRNN_HD std::int64_t steps() const { return shape.time + 1; }
  PRNN_HD float weight(std::int64_t g, int, std::int64_t unit, int, std::int64_t k) const {
    return Base::w(at.w_hh, g, unit, 0, k);  // the transpose: k runs over [gate, unit]
  }
  PRNN_HD float bias(std::int64_t, int, std::int64_t, int) const { return 0.0f; }
  PRNN_HD const float* input(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    if (s == 0) return nullptr;
    return at.da_h + shape.sequence_at(b, shape.time_at(g, shape.time - s), g, C::kGates);
  }

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<1, F>& dh, Io io) const {
    const std::int64_t state = shape.state_at(b, g) + unit;
    State<C, F> d;
    for (int n = 0; n < C::kStates; ++n)
      d[n] = io.load((s == 0 ? at.dstate_n[n] : at.dstate_0[n]) + state);
    d[0] = d[0] + dh[0];
    if (s == shape.time) {
      io.store(at.dstate_0[0] + state, d[0]);
      return;
    }
    const std::int64_t step = shape.time - 1 - s;  // of the forward pass
    const std::int64_t t = shape.time_at(g, step), y_at = shape.sequence_at(b, t, g, 1) + unit;
    d[0] = d[0] + io.load(at.dy + y_at);

    Vec<C::kReserve, F> reserve;
    State<C, F> prev, now;
    prev[0] = io.load(Base::h_before(at.y, at.state_0[0], g, step, b) + unit);
    now[0] = io.load(at.y + y_at);
    if constexpr (saved_values<C> > 0) {
      constexpr int kSaved = saved_values<C>;
      const float* saved = at.saved + shape.sequence_at(b, t, g, kSaved) + unit;
      reserve = Base::template load_values<C::kReserve>(saved, io);
      for (int n = 1; n < C::kStates; ++n) {
        const std::int64_t value = (C::kReserve + n - 1) * shape.hidden;
        now[n] = io.load(saved + value);
        prev[n] = step == 0 ? io.load(at.state_0[n] + state)
                            : io.load(at.saved + unit + value +
                                      shape.sequence_at(b, shape.time_at(g, step - 1), g, kSaved));
      }
    }
    const Backward<C, F> out = cell.step_grad(d, prev, now, reserve);
    for (int n = 0; n < C::kStates; ++n) io.store(at.dstate_0[n] + state, out.prev[n]);
    const std::int64_t da = shape.sequence_at(b, t, g, C::kGates) + unit;
    Base::store_values(at.da_h + da, out.da_h, io);
    if constexpr (!C::kSameGradient) Base::store_values(at.da_x + da, out.da_x, io);
  }
};

}  // namespace prnn
