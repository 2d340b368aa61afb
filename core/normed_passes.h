// The passes over a cell with layer norm inside of its step. The first phase makes products, unit
// by unit, as other cells have them; the second, which multiplies nothing, takes a row's step as a
// whole, for means and variances are of all of its units. Their sums are taken vector by vector,
// in one order, by whoever takes the row: no bit depends on how work is divided.
//
// What a row is divided into, there, is nothing: the phase's "units" are places in a round, which
// threads divide among them, and a row is taken at the place of its number.
#pragma once
#include "core/passes.h"
#include "core/row_norm.h"

namespace prnn {

// What both passes over such a cell share.
template <class C, class Io, class T>
struct NormedPassBase : PassBase<C, Io, T> {
  using Base = PassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape;
  static constexpr int kGates = C::kGates;

  PRNN_HD std::int64_t units(int phase) const {
    return phase == 0 ? shape.hidden : kRowsOfRound * Io::kUnits;
  }

 protected:
  template <class Visit>
  PRNN_HD void each(Visit&& f) const {
    RowNorm<1, Io>::each(shape.hidden, f);
  }
  // Whether row b is taken at this place of the round.
  PRNN_HD bool is_at(std::int64_t unit, std::int64_t b) const {
    return unit / Io::kUnits == b % kRowsOfRound;
  }
  PRNN_HD RowNorm<kGates, Io> of_gates() const { return {shape.hidden, cell.norm.per_gate}; }
  PRNN_HD RowNorm<1, Io> of_inner() const { return {shape.hidden, false}; }
  PRNN_HD bool normalises_inner() const { return C::kInner && cell.norm.inner != InnerNorm::kNone; }
  // The n-th of a row's values.
  PRNN_HD float* scratch(float* of_all, std::int64_t g, std::int64_t b, int n) const {
    return of_all + shape.padded_row(b, g, norm_scratch(kGates)) + n * shape.hidden;
  }
  PRNN_HD Vec<kGates, F> scaled(const PerUnit<C, F>& own, const float* centred, std::int64_t unit,
                                const Vec<kGates, float>& inverse, Io io) const {
    Vec<kGates, F> out;
    for (int n = 0; n < kGates; ++n)
      out[n] = own[n] * (io.load(centred + n * shape.hidden + unit) * inverse[n]) + own[kGates + n];
    return out;
  }
  PRNN_HD F seen(const PerUnit<C, F>& own, F centred, float inverse) const {
    if constexpr (C::kInner)
      return own[2 * kGates] * (centred * inverse) + own[2 * kGates + 1];
    else
      return centred;
  }
};

template <NormedCell C, class Io, class T>
struct ForwardPass<C, Io, T> : NormedPassBase<C, Io, T> {
  using Base = NormedPassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape, Base::each, Base::kGates;
  ForwardArrays<T> at;

  PRNN_HD static constexpr int products(int phase) { return phase == 0 ? kGates : 1; }
  PRNN_HD std::int64_t depth(int phase) const { return phase == 0 ? shape.hidden : 0; }
  PRNN_HD std::int64_t steps() const { return shape.time; }
  PRNN_HD T weight(std::int64_t g, int, std::int64_t unit, int product, std::int64_t k) const {
    return Base::w(at.w_hh, g, k, product, unit);
  }
  PRNN_HD WeightRows<T> weight_rows(std::int64_t g, int) const {
    const std::int64_t stride = kGates * shape.hidden;
    return {at.w_hh + g * shape.hidden * stride, stride};
  }
  // It is added to what has been normalised, a unit's shift.
  PRNN_HD T bias(std::int64_t, int, std::int64_t, int) const { return T{}; }
  PRNN_HD bool multiplies(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    return phase == 0 && s < shape.length(b, g);
  }
  PRNN_HD bool has_controls(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return at.has_controls(shape, g, s, b);
  }
  PRNN_HD const float* input(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    if constexpr (std::is_same_v<T, float>)
      if (at.multiplied == nullptr)
        return at.controls.replaced(Base::h_before(at.y, at.state_0[0], g, s, b), shape, g, s, b);
    return Base::slot(at.multiplied, g, s, b, 1);
  }
  PRNN_HD void begin(std::int64_t g, std::int64_t b, std::int64_t unit, Io io) const {
    hand_on(g, -1, b, unit, io.load(at.state_0[0] + shape.state_at(b, g) + unit), io);
  }

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<(kPhase == 0 ? kGates : 1), F>& product, Io io) const {
    if constexpr (kPhase == 0)
      Base::store_values(values(g, b) + unit, product, io);
    else if (Base::is_at(unit, b))
      take_row(g, s, b);
  }

 private:
  // Of a row: products, of which the step makes the gates; what it makes inside, centred, and as
  // it was.
  PRNN_HD float* values(std::int64_t g, std::int64_t b) const {
    return Base::scratch(at.phase_scratch, g, b, 0);
  }

  PRNN_HD void take_row(std::int64_t g, std::int64_t s, std::int64_t b) const {
    if (s >= shape.length(b, g)) return end_row(g, s, b);
    const std::int64_t row = Base::row_of(g, s, b);
    float* const products = values(g, b);
    float* const inner = products + kGates * shape.hidden;
    float* const made = inner + shape.hidden;
    const bool of_sum = cell.norm.of_sum, of_inner = Base::normalises_inner();
    T* const saved = at.saved == nullptr || !at.saves_reserve
                         ? nullptr
                         : at.saved + Base::in_sequence(row, saved_values<C>);
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      auto raw = Base::template load_values<kGates>(products + unit, io);
      if (of_sum) {
        const auto a_x = this->a_x(row, g, s, b, unit, io);
        for (int n = 0; n < kGates; ++n) raw[n] = raw[n] + a_x[n];
        Base::store_values(products + unit, raw, io);
      }
      if (saved != nullptr)
        Base::keep_values(saved + kGates * shape.hidden + unit, raw, at.saves_non_temporal, io);
    });
    const auto inverse = Base::of_gates().centre(products, cell.norm.epsilon);
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const auto own = Base::per_unit(at.per_unit, g, unit, io);
      const auto a_h = Base::scaled(own, products, unit, inverse, io);
      const auto prev = before(g, s, b, unit, io);
      const auto a_x = of_sum ? Vec<kGates, F>{} : this->a_x(row, g, s, b, unit, io);
      const auto opened = cell.open(a_x, a_h, prev);
      if (!of_inner) return finish(g, s, b, row, unit, opened, opened.inner, prev, io);
      Base::store_values(products + unit, opened.gates, io);
      io.store(inner + unit, opened.inner);
      io.store(made + unit, opened.inner);
    });
    if (!of_inner) return;
    const float of_c = Base::of_inner().centre(inner, cell.norm.epsilon)[0];
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const auto own = Base::per_unit(at.per_unit, g, unit, io);
      const typename C::template Opened<F> opened{
          Base::template load_values<kGates>(products + unit, io), io.load(made + unit)};
      const F seen = Base::seen(own, io.load(inner + unit), of_c);
      finish(g, s, b, row, unit, opened, seen, before(g, s, b, unit, io), io);
    });
  }
  PRNN_HD void finish(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t row,
                      std::int64_t unit, const typename C::template Opened<F>& opened, F seen,
                      const State<C, F>& prev, Io io) const {
    State<C, F> next = cell.close(opened, seen, prev);
    at.controls.zone_out(next, prev, shape, g, shape.time_at(g, s, b), b, unit, io);
    next[0] = io.stored(next[0]);
    io.store(at.y + Base::in_sequence(row, 1) + unit, next[0]);
    hand_on(g, s, b, unit, next[0], io);
    const std::int64_t state = shape.state_at(b, g) + unit;
    for (int n = 1; n < C::kStates; ++n) io.store(carried(g, b, unit, n), next[n]);
    if (s + 1 == shape.length(b, g))
      for (int n = 0; n < C::kStates; ++n) io.store(at.state_n[n] + state, next[n]);
    if (at.saved == nullptr) return;
    const int first = at.saves_reserve ? C::kReserve : 0;  // of the states
    T* const saved = at.saved + Base::in_sequence(row, first + C::kStates - 1) + unit;
    if (at.saves_reserve) Base::keep_values(saved, opened.gates, at.saves_non_temporal, io);
    if constexpr (C::kStates > 1)
      Base::keep_values(saved + first * shape.hidden, Vec<1, F>{next[1]}, at.saves_non_temporal,
                        io);
  }
  PRNN_HD void end_row(std::int64_t g, std::int64_t s, std::int64_t b) const {
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const std::int64_t state = shape.state_at(b, g) + unit;
      if (s == 0)
        for (int n = 0; n < C::kStates; ++n)
          io.store(at.state_n[n] + state, io.load(at.state_0[n] + state));
      io.store(at.y + Base::in_sequence(Base::row_of(g, s, b), 1) + unit, F(0.0f));
    });
  }
  PRNN_HD Vec<kGates, F> a_x(std::int64_t row, std::int64_t g, std::int64_t s, std::int64_t b,
                             std::int64_t unit, Io io) const {
    return Base::values(Base::template fetch_a_x<kGates>(at, row, g, s, b, unit, 0, io), io);
  }
  // The states that the step starts from.
  PRNN_HD State<C, F> before(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                             Io io) const {
    State<C, F> prev;
    prev[0] = io.load(Base::h_before(at.y, at.state_0[0], g, s, b) + unit);
    for (int n = 1; n < C::kStates; ++n)
      prev[n] = s == 0 ? io.load(at.state_0[n] + shape.state_at(b, g) + unit)
                       : io.load(carried(g, b, unit, n));
    at.controls.replace(prev, shape, g, s, b, unit, io);
    return prev;
  }
  PRNN_HD float* carried(std::int64_t g, std::int64_t b, std::int64_t unit, int n) const {
    return Base::carried_at(at.carried, g, b, unit, n - 1, C::kStates - 1);
  }
  PRNN_HD void hand_on(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit, F h,
                       Io io) const {
    if (at.multiplied != nullptr)
      io.store(Base::slot(at.multiplied, g, s + 1, b, 1) + unit,
               io.stored(at.controls.product_input(h, shape, g, s + 1, b, unit, io)));
  }
};

template <NormedCell C, class Io, class T>
struct BackwardPass<C, Io, T> : NormedPassBase<C, Io, T> {
  using Base = NormedPassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape, Base::each, Base::kGates;
  static constexpr int kSaved = saved_values<C>;
  BackwardArrays<T> at;

  PRNN_HD static constexpr int products(int) { return 1; }
  PRNN_HD std::int64_t depth(int phase) const { return phase == 0 ? kGates * shape.hidden : 0; }
  PRNN_HD std::int64_t steps() const { return shape.time + 1; }
  PRNN_HD T weight(std::int64_t g, int, std::int64_t unit, int, std::int64_t k) const {
    return Base::w(at.w_hh, g, unit, 0, k);
  }
  PRNN_HD WeightColumns<T> weight_columns(std::int64_t g, int) const {
    const std::int64_t stride = kGates * shape.hidden;
    return {at.w_hh + g * shape.hidden * stride, stride};
  }
  PRNN_HD T bias(std::int64_t, int, std::int64_t, int) const { return T{}; }
  PRNN_HD bool multiplies(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    return phase == 0 && shape.time - s < shape.length(b, g);
  }
  PRNN_HD bool has_controls(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return at.has_controls(shape, g, forward_step(s), b);
  }
  PRNN_HD const float* input(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    if constexpr (std::is_same_v<T, float>)
      if (at.multiplied == nullptr)
        return at.da_h + Base::in_sequence(Base::row_of(g, forward_step(s) + 1, b), kGates);
    return Base::slot(at.multiplied, g, s, b, kGates);
  }
  PRNN_HD void begin(std::int64_t, std::int64_t, std::int64_t, Io) const {}

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<1, F>& product, Io io) const {
    if constexpr (kPhase == 0)
      io.store(Base::scratch(at.phase_scratch, g, b, 2 * kGates) + unit, product[0]);
    else if (Base::is_at(unit, b))
      take_row(g, s, b);
  }

 private:
  struct Gradients {
    State<C, F> d, kept;  // of what the cell has made; what goes on past it
  };

  // Of the forward pass, whose steps this pass takes from the last to the first.
  PRNN_HD std::int64_t forward_step(std::int64_t s) const { return shape.time - 1 - s; }

  PRNN_HD void take_row(std::int64_t g, std::int64_t s, std::int64_t b) const {
    const std::int64_t step = forward_step(s);
    gather(g, s, b);
    if (step < 0 || step >= shape.length(b, g)) return;
    const std::int64_t row = Base::row_of(g, step, b), hidden = shape.hidden;
    float* const dvalues = Base::scratch(at.phase_scratch, g, b, 0);
    float* const centred = dvalues + kGates * hidden;
    float* const dinner = centred + kGates * hidden;  // a place that gather() has read
    float* const inner = dinner + hidden;
    const T* const saved = at.saved + Base::in_sequence(row, kSaved);
    const float epsilon = cell.norm.epsilon;
    const bool of_inner = Base::normalises_inner();
    const auto gates = [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      return Base::template load_values<kGates>(saved + unit, io);
    };

    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const auto raw = Base::template load_values<kGates>(saved + kGates * hidden + unit, io);
      Base::store_values(centred + unit, raw, io);
      io.store(inner + unit, cell.inner(gates(unit, io), before(g, step, b, unit, io)));
    });
    const auto norm = Base::of_gates();
    const auto inverse = norm.centre(centred, epsilon);
    float of_c = 1.0f;
    typename RowNorm<1, Io>::Moments of_dinner{};
    const auto seen = [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const F value = io.load(inner + unit);
      return of_inner ? Base::seen(Base::per_unit(at.per_unit, g, unit, io), value, of_c) : value;
    };
    if (of_inner) of_c = Base::of_inner().centre(inner, epsilon)[0];
    if constexpr (C::kInner) {
      each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
        const F dseen =
            cell.open_grad(gradients(g, step, b, row, unit, io).d, gates(unit, io), seen(unit, io));
        io.store(at.dh + Base::in_sequence(row, 1) + unit, dseen);
        const F gain = Base::per_unit(at.per_unit, g, unit, io)[2 * kGates];
        io.store(dinner + unit, of_inner ? gain * dseen : dseen);
      });
      if (of_inner) of_dinner = Base::of_inner().moments(dinner, inner, {of_c});
    }
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const auto own = Base::per_unit(at.per_unit, g, unit, io);
      const auto [d, kept] = gradients(g, step, b, row, unit, io);
      F of_made = C::kInner ? io.load(dinner + unit) : F(0.0f);
      if (of_inner)
        of_made = RowNorm<1, Io>::grad(of_dinner, 0, of_made, io.load(inner + unit), of_c);
      const auto out = cell.close_grad(d, of_made, seen(unit, io), gates(unit, io),
                                       Base::scaled(own, centred, unit, inverse, io),
                                       before(g, step, b, unit, io));
      Base::store_values(at.da_x + Base::in_sequence(row, kGates) + unit, out.da_x, io);
      for (int n = 0; n < kGates; ++n) io.store(dvalues + n * hidden + unit, own[n] * out.da_h[n]);
      for (int n = 0; n < C::kStates; ++n)
        io.store(carried(g, b, unit, n),
                 at.controls.zoneout == nullptr ? out.prev[n] : out.prev[n] + kept[n]);
    });
    const auto of_gates = norm.moments(dvalues, centred, inverse);
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      Gates<C, F> da;
      for (int n = 0; n < kGates; ++n) {
        const std::int64_t value = n * hidden + unit;
        da[n] =
            norm.grad(of_gates, n, io.load(dvalues + value), io.load(centred + value), inverse[n]);
      }
      publish(g, s, b, row, unit, da, io);
    });
  }
  // The gradients of the states after the step, but for dy; of a step that does not count, or
  // before the first, all there is to do.
  PRNN_HD void gather(std::int64_t g, std::int64_t s, std::int64_t b) const {
    const std::int64_t step = forward_step(s);
    const float* const product = Base::scratch(at.phase_scratch, g, b, 2 * kGates);
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const std::int64_t state = shape.state_at(b, g) + unit;
      State<C, F> d;
      for (int n = 0; n < C::kStates; ++n)
        d[n] = s == 0 ? io.load(at.dstate_n[n] + state) : io.load(carried(g, b, unit, n));
      if (multiplies(g, 0, s, b))  // else the mask may be no number
        d[0] = d[0] + at.controls.masked(io.load(product + unit), shape, g, b, unit, io);
      if (s == 0) at.no_resets_yet(shape, g, b, unit, io);
      at.hand_to_reset(shape, g, step + 1, b, unit, d, io);
      for (int n = 0; n < C::kStates; ++n)
        if (step < 0)
          io.store(at.dstate_0[n] + state, d[n]);
        else
          io.store(carried(g, b, unit, n), d[n]);
      if (step < 0 || step < shape.length(b, g)) return;
      const std::int64_t row = Base::row_of(g, step, b);
      Base::store_values(at.da_x + Base::in_sequence(row, kGates) + unit, Gates<C, F>{}, io);
      publish(g, s, b, row, unit, Gates<C, F>{}, io);
      if constexpr (C::kInner) io.store(at.dh + Base::in_sequence(row, 1) + unit, F(0.0f));
    });
  }
  PRNN_HD Gradients gradients(std::int64_t g, std::int64_t step, std::int64_t b, std::int64_t row,
                              std::int64_t unit, Io io) const {
    Gradients out{};
    for (int n = 0; n < C::kStates; ++n) out.d[n] = io.load(carried(g, b, unit, n));
    out.d[0] = out.d[0] + io.load(at.dy + Base::in_sequence(row, 1) + unit);
    at.controls.zone_out_grad(out.d, out.kept, shape, g, shape.time_at(g, step, b), b, unit, io);
    return out;
  }
  // The states that the forward pass's step started from.
  PRNN_HD State<C, F> before(std::int64_t g, std::int64_t step, std::int64_t b, std::int64_t unit,
                             Io io) const {
    State<C, F> prev;
    prev[0] = io.load(Base::h_before(at.y, at.state_0[0], g, step, b) + unit);
    if constexpr (C::kStates > 1) {
      const std::int64_t state = shape.state_at(b, g) + unit;
      prev[1] = step == 0
                    ? io.load(at.state_0[1] + state)
                    : io.load(at.saved + Base::in_sequence(Base::row_of(g, step - 1, b), kSaved) +
                              C::kReserve * shape.hidden + unit);
    }
    at.controls.replace(prev, shape, g, step, b, unit, io);
    return prev;
  }
  PRNN_HD float* carried(std::int64_t g, std::int64_t b, std::int64_t unit, int n) const {
    return Base::carried_at(at.carried, g, b, unit, n, C::kStates);
  }
  PRNN_HD void publish(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t row,
                       std::int64_t unit, const Gates<C, F>& da, Io io) const {
    Base::store_values(at.da_h + Base::in_sequence(row, kGates) + unit, da, io);
    if (at.multiplied == nullptr) return;
    Gates<C, F> stored;
    for (int n = 0; n < kGates; ++n) stored[n] = io.stored(da[n]);
    Base::store_values(Base::slot(at.multiplied, g, s + 1, b, kGates) + unit, stored, io);
  }
};

}  // namespace prnn
