// The backward pass over a cell with layer norm inside of its step. As the forward pass's, its
// second phase takes whole rows. What it adds up over a row's steps, the gradients of the units'
// own numbers, is added where the row lies, step after step.
#pragma once
#include "core/normed_passes.h"

namespace prnn {

template <NormedCell C, class Io, class T>
struct BackwardPass<C, Io, T> : NormedPassBase<C, Io, T> {
  using Base = NormedPassBase<C, Io, T>;
  using F = typename Io::F;
  using Base::cell, Base::shape, Base::each, Base::kGates;
  using typename Base::OfGates, typename Base::OfInner;
  BackwardArrays<T> at;

  PRNN_HD static constexpr int products(int) { return 1; }
  PRNN_HD std::int64_t depth(int phase) const { return phase == 0 ? kGates * shape.hidden : 0; }
  PRNN_HD std::int64_t steps() const { return shape.time + 1; }
  PRNN_HD T weight(std::int64_t g, int, std::int64_t unit, int, std::int64_t k) const {
    return Base::w(at.w_hh, g, unit, 0, k);
  }
  PRNN_HD WeightColumns<T> weight_columns(std::int64_t g, int) const {
    return Base::columns_of(at.w_hh, g, 0);
  }
  PRNN_HD T bias(std::int64_t, int, std::int64_t, int) const { return T{}; }
  PRNN_HD bool multiplies(std::int64_t g, int phase, std::int64_t s, std::int64_t b) const {
    return phase == 0 && shape.time - s < shape.length(b, g);
  }
  PRNN_HD bool has_controls(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return at.has_controls(shape, g, Base::forward_step(s), b);
  }
  PRNN_HD const float* input(std::int64_t g, int, std::int64_t s, std::int64_t b) const {
    return Base::da_input(at, g, s, b);
  }
  PRNN_HD void begin(std::int64_t, std::int64_t, std::int64_t, Io) const {}

  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit,
                    const Vec<1, F>& product, Io io) const {
    if constexpr (kPhase == 0)
      io.store(Base::scratch(at.phase_scratch, g, b, 0) + unit, product[0]);
    else if (Base::is_at(unit, b))
      take_row(g, s, b);
  }

 protected:
  // Of the gradient of a unit's n-th number, what the row has given so far.
  PRNN_HD float* own_sum(std::int64_t g, std::int64_t b, std::int64_t unit, int n) const {
    return at.dper_unit + C::kPerUnit * shape.state_at(b, g) + n * shape.hidden + unit;
  }
  PRNN_HD void add_own(std::int64_t g, std::int64_t b, std::int64_t unit, int n, F more,
                       Io io) const {
    float* const sum = own_sum(g, b, unit, n);
    io.store(sum, io.load(sum) + more);
  }

 private:
  struct Gradients {
    State<C, F> d, kept;  // of what the cell has made; what goes on past it
  };

  PRNN_HD void take_row(std::int64_t g, std::int64_t s, std::int64_t b) const {
    const std::int64_t step = Base::forward_step(s);
    gather(g, s, b);
    if (step < 0 || step >= shape.length(b, g)) return;
    const std::int64_t row = Base::row_of(g, step, b), hidden = shape.hidden;
    float* const dinner = Base::scratch(at.phase_scratch, g, b, 0);  // gather() has read it
    float* const inner = dinner + hidden;
    float* const dvalues = inner + hidden;
    float* const dvalues_x = dvalues + kGates * hidden;
    const T* const saved = at.saved + Base::in_sequence(row, Base::kept());
    const float epsilon = cell.norm.epsilon;
    const bool of_inner = Base::normalises_inner(), of_parts = Base::normalises_x();
    const auto gates = [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      return Base::template load_values<kGates>(saved + unit, io);
    };
    const auto raw_h = [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      return Base::template load_values<kGates>(saved + kGates * hidden + unit, io);
    };
    const auto raw_x = [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      return Base::template load_values<kGates>(saved + 2 * kGates * hidden + unit, io);
    };
    const auto made = [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      return Vec<1, F>{io.load(inner + unit)};
    };

    auto sums_h = OfGates::zeros(), sums_x = OfGates::zeros();
    auto sums = OfInner::zeros();
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      OfGates::add(sums_h, raw_h(unit, io), io);
      if (of_parts) OfGates::add(sums_x, raw_x(unit, io), io);
      if constexpr (C::kInner) {
        const F value = cell.inner(gates(unit, io), before(g, step, b, unit, io));
        io.store(inner + unit, value);
        OfInner::add(sums, {value}, io);
      }
    });
    const auto norm = Base::of_gates();
    const auto scale_h = norm.scale(sums_h, epsilon, raw_h);
    typename OfGates::Scale scale_x{};
    if (of_parts) scale_x = norm.scale(sums_x, epsilon, raw_x);
    typename OfInner::Scale scale{};
    if (of_inner) scale = Base::of_inner().scale(sums, epsilon, made);
    const auto seen = [&](const PerUnit<C, F>& own, std::int64_t unit, Io io)
                          __attribute__((always_inline)) {
                            if constexpr (!C::kInner) return F(0.0f);
                            const auto value = made(unit, io);
                            return of_inner ? Base::seen(own, scale(value)[0]) : value[0];
                          };
    typename OfInner::Sums of_dinner{};
    if constexpr (C::kInner)
      each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
        const auto own = Base::per_unit(at.per_unit, g, unit, io);
        const auto d = gradients(g, step, b, row, unit, io).d;
        const F dseen = cell.open_grad(d, gates(unit, io), seen(own, unit, io));
        if (!of_inner) return io.store(dinner + unit, dseen);
        const auto centred = scale.centred(made(unit, io));
        const Vec<1, F> dscaled{own[C::kOfInner] * dseen};
        io.store(dinner + unit, dscaled[0]);
        OfInner::add(of_dinner, dscaled, centred, io);
        add_own(g, b, unit, C::kOfInner, dseen * scale.of_centred(centred)[0], io);
        add_own(g, b, unit, C::kOfInner + 1, dseen, io);
      });
    const auto grad_inner = Base::of_inner().gradient(scale, of_dinner);
    typename OfGates::Sums of_dh{}, of_dx{};
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const auto own = Base::per_unit(at.per_unit, g, unit, io);
      const auto [d, kept] = gradients(g, step, b, row, unit, io);
      Vec<1, F> dmade{F(0.0f)};
      if constexpr (C::kInner) dmade[0] = io.load(dinner + unit);
      if (of_inner) dmade = grad_inner(dmade, scale.centred(made(unit, io)));
      const auto centred_h = scale_h.centred(raw_h(unit, io));
      const auto of_h = scale_h.of_centred(centred_h);
      const auto out = cell.close_grad(d, dmade[0], seen(own, unit, io), gates(unit, io),
                                       Base::seen_h(own, of_h), before(g, step, b, unit, io));
      Gates<C, F> dscaled;
      for (int n = 0; n < kGates; ++n) {
        dscaled[n] = own[n] * out.da_h[n];
        add_own(g, b, unit, n, out.da_h[n] * of_h[n], io);
        add_own(g, b, unit, kGates + n, out.da_h[n], io);
      }
      Base::store_values(dvalues + unit, dscaled, io);
      OfGates::add(of_dh, dscaled, centred_h, io);
      if (of_parts) {
        const auto centred_x = scale_x.centred(raw_x(unit, io));
        const auto of_x = scale_x.of_centred(centred_x);
        for (int n = 0; n < kGates; ++n) {
          dscaled[n] = own[C::kGainX + n] * out.da_x[n];
          add_own(g, b, unit, C::kGainX + n, out.da_x[n] * of_x[n], io);
        }
        if constexpr (!C::kInner) add_own(g, b, unit, C::kShiftX, out.da_x[kGates - 1], io);
        Base::store_values(dvalues_x + unit, dscaled, io);
        OfGates::add(of_dx, dscaled, centred_x, io);
      }
      for (int n = 0; n < C::kStates; ++n)
        io.store(carried(g, b, unit, n),
                 at.controls.zoneout == nullptr ? out.prev[n] : out.prev[n] + kept[n]);
    });
    const auto grad_h = norm.gradient(scale_h, of_dh), grad_x = norm.gradient(scale_x, of_dx);
    T* const da_x = at.da_x + Base::in_sequence(row, kGates);
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      auto da = grad_h(Base::template load_values<kGates>(dvalues + unit, io),
                       scale_h.centred(raw_h(unit, io)));
      Base::publish_da(at, g, s, b, row, unit, 0, da, io);
      if (of_parts)
        da = grad_x(Base::template load_values<kGates>(dvalues_x + unit, io),
                    scale_x.centred(raw_x(unit, io)));
      Base::store_values(da_x + unit, da, io);
    });
  }
  // The gradients of the states after the step, but for dy; of a step that does not count, or
  // before the first, all there is to do.
  PRNN_HD void gather(std::int64_t g, std::int64_t s, std::int64_t b) const {
    const std::int64_t step = Base::forward_step(s);
    const float* const product = Base::scratch(at.phase_scratch, g, b, 0);
    const bool multiplied = multiplies(g, 0, s, b);
    each([&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      const auto d = Base::gathered(at, g, s, b, unit, io.load(product + unit), multiplied, io);
      const std::int64_t state = shape.state_at(b, g) + unit;
      for (int n = 0; n < C::kStates; ++n)
        if (step < 0)
          at.dstate_0.store(n, state, d[n], io);
        else
          io.store(carried(g, b, unit, n), d[n]);
      if (s == 0)
        for (int n = 0; n < C::kPerUnit; ++n) io.store(own_sum(g, b, unit, n), F(0.0f));
      if (step < 0 || step < shape.length(b, g)) return;
      const std::int64_t row = Base::row_of(g, step, b);
      Base::store_values(at.da_x + Base::in_sequence(row, kGates) + unit, Gates<C, F>{}, io);
      Base::publish_da(at, g, s, b, row, unit, 0, Gates<C, F>{}, io);
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
      prev[1] = step == 0 ? io.load(at.state_0[1] + state)
                          : io.load(at.saved + unit + Base::reserve() * shape.hidden +
                                    Base::in_sequence(Base::row_of(g, step - 1, b), Base::kept()));
    }
    at.controls.replace(prev, shape, g, step, b, unit, io);
    return prev;
  }
  PRNN_HD float* carried(std::int64_t g, std::int64_t b, std::int64_t unit, int n) const {
    return Base::carried_at(at.carried, g, b, unit, n, C::kStates);
  }
};

}  // namespace prnn
