// What the passes over a cell share: reading the states around a step, what one fetches ahead, and
// the step of those that give its parts (core/passes.h).
#pragma once
#include <type_traits>

#include "core/arrays.h"

namespace prnn {

// A cell, a shape, and the ways of a pass to its arrays.
template <class C, class Io, class T, class S = Shape>
struct PassBase {
  using F = typename Io::F;
  using Value = T;
  using Index = typename S::Index;
  static constexpr int kPhases = C::kPhases;
  static constexpr int kSources = 1;  // groups whose published values a group multiplies
  C cell;
  S shape;
  // Rows of arrays by time: of a step, and of the one that the loop takes after it.
  struct SequenceRows {
    Index here, next;
  };

  // Units that a phase makes.
  PRNN_HD Index units(int) const { return shape.hidden; }
  // Element (unit from, gate, unit to) of w_hh.
  PRNN_HD T w(const T* w_hh, std::int64_t g, std::int64_t from, int gate, std::int64_t to) const {
    return w_hh[(g * shape.hidden + from) * C::kGates * shape.hidden + gate * shape.hidden + to];
  }
  // h before the step, were there no resets: from y, or from the initial state.
  PRNN_HD const T* h_before(const T* y, const T* h_0, Index g, Index step, Index b) const {
    return step == 0 ? h_0 + shape.state_at(b, g)
                     : y + shape.sequence_at(b, shape.time_at(g, step - 1, b), g, 1);
  }
  // What steps multiply, double-buffered: see ForwardArrays::multiplied.
  PRNN_HD float* slot(float* multiplied, Index g, Index s, Index b, int values) const {
    return multiplied + (s & 1) * shape.padded_floats(values) + shape.padded_row(b, g, values);
  }
  // Where one of a unit's N values lies that pass from step to step.
  PRNN_HD float* carried_at(float* carried, Index g, Index b, Index unit, int n, int values) const {
    return carried + shape.padded_row(b, g, values) + n * shape.hidden + unit;
  }
  template <int N, class V>
  PRNN_HD Vec<N, F> load_values(const V* p, Io io) const {
    Vec<N, F> values;
    if constexpr (N > 0)
      for (int n = 0; n < N; ++n) values[n] = io.load(p + n * shape.hidden);
    return values;
  }
  // The same ahead of their use; then as numbers.
  template <int N, class V>
  PRNN_HD Vec<N, typename Io::Fetched> fetch_values(const V* p, Io io) const {
    Vec<N, typename Io::Fetched> values;
    if constexpr (N > 0)
      for (int n = 0; n < N; ++n) values[n] = io.fetch(p + n * shape.hidden);
    return values;
  }
  // A unit's own numbers, the same in all steps: they are near, and need not be fetched ahead.
  PRNN_HD PerUnit<C, F> per_unit(const T* of_groups, Index g, Index unit, Io io) const {
    constexpr int kCount = kPerUnitOf<C>;
    if constexpr (kCount == 0) {
      return {};
    } else {
      if (of_groups == nullptr) return {};  // a cell that may have some, and has none
      return load_values<kCount>(of_groups + g * kCount * shape.hidden + unit, io);
    }
  }
  template <int N>
  PRNN_HD static Vec<N, F> values(const Vec<N, typename Io::Fetched>& fetched, Io io) {
    Vec<N, F> values;
    if constexpr (N > 0)
      for (int n = 0; n < N; ++n) values[n] = io.value(fetched[n]);
    return values;
  }
  // The row of a forward step in arrays by time; where a row begins in one of n values per unit.
  PRNN_HD Index row_of(Index g, Index step, Index b) const {
    return shape.row_at(b, shape.time_at(g, step, b), g);
  }
  PRNN_HD Index in_sequence(Index row, int n) const { return row * n * shape.hidden; }
  // Of what step s, of that row, takes of a_x, N gates from `first` on.
  template <int N>
  PRNN_HD Vec<N, typename Io::Fetched> fetch_a_x(const ForwardArrays<T>& at, Index row, Index g,
                                                 Index s, Index b, Index unit, int first,
                                                 Io io) const {
    unit += first * shape.hidden;
    if constexpr (requires { Io::kProjectsInput; })
      if (at.chunk_steps != 0)
        return fetch_values<N>(at.projected_at(shape, g, s, b, C::kGates) + unit, io);
    return fetch_values<N>(at.a_x + in_sequence(row, C::kGates) + unit, io);
  }
  template <int N, class V>
  PRNN_HD void store_values(V* p, const Vec<N, F>& values, Io io) const {
    if constexpr (N > 0)
      for (int n = 0; n < N; ++n) io.store(p + n * shape.hidden, values[n]);
  }
  // The same of what no step of this pass reads.
  template <int N, class V>
  PRNN_HD void keep_values(V* p, const Vec<N, F>& values, bool is_far, Io io) const {
    if constexpr (N > 0 && requires { io.store_non_temporal(p, F(0.0f)); })
      if (is_far) {
        for (int n = 0; n < N; ++n) io.store_non_temporal(p + n * shape.hidden, values[n]);
        return;
      }
    store_values(p, values, io);
  }

  // ---- what passes of two phases share
  // w_hh of a group, from the columns of a gate on, as it lies in memory.
  PRNN_HD WeightRows<T> rows_of(const T* w_hh, Index g, int gate) const {
    const Index stride = C::kGates * shape.hidden;
    return {w_hh + g * shape.hidden * stride + gate * shape.hidden, stride};
  }
  PRNN_HD WeightColumns<T> columns_of(const T* w_hh, Index g, int gate) const {
    const auto [first, stride] = rows_of(w_hh, g, gate);
    return {first, stride};
  }
  // What step s multiplies of h, and a place of its own for that, where there is one.
  PRNN_HD const float* h_input(const ForwardArrays<T>& at, Index g, Index s, Index b) const {
    const S of_h = shape.of_output();
    if constexpr (std::is_same_v<T, float>)
      if (at.multiplied == nullptr) {
        const T* const before = s == 0
                                    ? at.state_0.h + of_h.state_at(b, g)
                                    : at.y + of_h.sequence_at(b, of_h.time_at(g, s - 1, b), g, 1);
        return at.controls.replaced(before, of_h, g, s, b);
      }
    return h_place(at, g, s, b);
  }
  PRNN_HD float* h_place(const ForwardArrays<T>& at, Index g, Index s, Index b) const {
    const S of_h = shape.of_output();
    return at.multiplied + (s & 1) * of_h.padded_floats(1) + of_h.padded_row(b, g, 1);
  }
  // Puts there what the step after s multiplies, of the h after s; -1: before the first.
  PRNN_HD void hand_on(const ForwardArrays<T>& at, Index g, Index s, Index b, Index unit, F h,
                       Io io) const {
    if (at.multiplied == nullptr) return;
    const F next = at.controls.product_input(h, shape.of_output(), g, s + 1, b, unit, io);
    io.store(h_place(at, g, s + 1, b) + unit, io.stored(next));
  }
  PRNN_HD void hand_on_first(const ForwardArrays<T>& at, Index g, Index b, Index unit,
                             Io io) const {
    const Index state = shape.of_output().state_at(b, g) + unit;
    hand_on(at, g, -1, b, unit, at.state_0.load(0, state, io), io);
  }
  // The step of the forward pass that a backward pass takes as its s-th.
  PRNN_HD Index forward_step(Index s) const { return shape.time - 1 - s; }
  // Backward, what the product of step s multiplies: gradients of gates, of the step before.
  PRNN_HD const float* da_input(const BackwardArrays<T>& at, Index g, Index s, Index b) const {
    if constexpr (std::is_same_v<T, float>)
      if (at.multiplied == nullptr)
        return at.da_h + in_sequence(row_of(g, forward_step(s) + 1, b), C::kGates);
    return slot(at.multiplied, g, s, b, C::kGates);
  }
  // The gradient of the states after the step that is the s-th, but for dy; after the last, of the
  // initial states. All that the steps taken before it give.
  PRNN_HD State<C, F> gathered(const BackwardArrays<T>& at, Index g, Index s, Index b, Index unit,
                               F product, bool multiplies, Io io) const {
    const Index state = shape.state_at(b, g) + unit;
    State<C, F> d;
    for (int n = 0; n < C::kStates; ++n)
      d[n] = s == 0 ? at.dstate_n.load(n, state, io)
                    : io.load(carried_at(at.carried, g, b, unit, n, C::kStates));
    if (multiplies)  // else the mask may be no number
      d[0] = d[0] + at.controls.masked(product, shape, g, b, unit, io);
    if (s == 0) at.no_resets_yet(shape, g, b, unit, io);
    at.hand_to_reset(shape, g, forward_step(s) + 1, b, unit, d, io);
    return d;
  }
  // Gradients of the gates from `gate` on, of the s-th step, which is a row of sequences.
  template <int N>
  PRNN_HD void publish_da(const BackwardArrays<T>& at, Index g, Index s, Index b, Index row,
                          Index unit, int gate, const Vec<N, F>& da, Io io) const {
    const Index from = gate * shape.hidden + unit;
    store_values(at.da_h + in_sequence(row, C::kGates) + from, da, io);
    if (at.multiplied == nullptr) return;
    Vec<N, F> stored;
    for (int n = 0; n < N; ++n) stored[n] = io.stored(da[n]);
    store_values(slot(at.multiplied, g, s + 1, b, C::kGates) + from, stored, io);
  }
};

// The step of a pass that gives its parts.
template <class Pass, class F, class Io>
PRNN_HD void step_by_parts(const Pass& pass, std::int64_t g, std::int64_t s, std::int64_t b,
                           std::int64_t unit, const Vec<Pass::kProducts, F>& products, Io io) {
  auto carry = pass.carried(g, s, b, unit, io);
  const auto rows = pass.rows(g, s, b);
  const auto inputs = pass.inputs(pass.fetch(rows, g, s, b, unit, io), io);
  typename Pass::Saved saved;
  const auto published = pass.advance(g, s, b, unit, products, inputs, carry, saved, io);
  pass.save(rows, g, s, b, unit, saved, io);
  pass.publish(rows, g, s, b, unit, published, io);
  pass.keep(g, s, b, unit, carry, io);
}

}  // namespace prnn
