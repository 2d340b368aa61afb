// The arrays of a native call, forward and backward, and the numbers of its cell. T is the type of
// the arrays.
#pragma once
#include "core/cell_table.h"
#include "core/controls.h"
#include "core/shape.h"

namespace prnn {

// The states of a call, or their gradients, [batch, groups, H] each: h in the type of the arrays,
// as it lies in y; the others, which no product reads, as floats, as they pass from step to step.
// A call that begins with what another has left goes on as if they were one.
template <class T, class Float>
struct States {
  T* h;
  Float* others[kMaxStates - 1];

  template <class Io>
  PRNN_HD typename Io::F load(int n, std::int64_t at, Io io) const {
    return n == 0 ? io.load(h + at) : io.load(others[n - 1] + at);
  }
  template <class Io>
  PRNN_HD void store(int n, std::int64_t at, typename Io::F value, Io io) const {
    n == 0 ? io.store(h + at, value) : io.store(others[n - 1] + at, value);
  }
};
template <class T>
using GivenStates = States<const T, const float>;
template <class T>
using MadeStates = States<T, float>;

template <class T = float>
struct ForwardArrays {
  const T *a_x, *w_hh, *b_hh;  // sequence [G·H]; [groups, H, G·H]; [groups, G·H]
  const T* per_unit;           // [groups, U·H], of cells that have such numbers
  const T* w_hr;               // [groups, H, P], of cells that project
  GivenStates<T> state_0;
  T* y;  // sequence [H]
  MadeStates<T> state_n;
  T* saved;            // sequence [kept values·H]; null: keep nothing
  bool saves_reserve;  // else only the states
  Controls<T> controls;
  // Of the engine's own, whose rows begin at Shape::padded_row.
  float* phase_scratch;  // [batch, groups, n] that the second phase reads, two-phase cells only
  // [2, batch, groups, H], double-buffered: what a step multiplies. For engines that read it from
  // memory; null where that is y, or what y is reset to, as it lies there.
  float* multiplied;
  // [batch, groups, (S-1)·H]: the states that are not published, which pass from step to step in
  // float. Null for engines that keep them in registers.
  float* carried;
  // Not 0: the call projects x itself, in chunks of so many steps, a power of 2, in float, and it
  // lies as [batch, chunk_steps, groups, G·H], step s at s mod chunk_steps. For engines whose Io
  // says kProjectsInput.
  std::int64_t chunk_steps;
  const float* projected_a_x;
  // Whether what is kept goes past the caches to memory. For engines whose Io has
  // store_non_temporal.
  bool saves_non_temporal;

  // Whether lengths or resets make step s, which counts, another than it would be without them.
  PRNN_HD bool has_controls(const Shape& shape, std::int64_t g, std::int64_t s,
                            std::int64_t b) const {
    return shape.lengths_change(g, s, b) || controls.resets_at(shape, g, s, b);
  }
  PRNN_HD const float* projected_at(const Shape& shape, std::int64_t g, std::int64_t s,
                                    std::int64_t b, int gates) const {
    const std::int64_t step = b * chunk_steps + (s & (chunk_steps - 1));
    return projected_a_x + (step * shape.groups + g) * gates * shape.hidden;
  }
};

template <class T = float>
struct BackwardArrays {
  const T *dy, *w_hh, *y, *saved;  // as in ForwardArrays
  const T *per_unit, *w_hr;        // likewise
  const T* state_0[kMaxStates];    // all as the saved ones, whose place they take
  GivenStates<T> dstate_n;
  T *da_x, *da_h;    // sequences [G·H]; one array where kSameGradient
  T* dh;             // sequence [P], of cells that project: all of the gradient of h
  float* dper_unit;  // [batch, groups, U·H], of cells with layer norm: of each row's steps
  MadeStates<T> dstate_0;
  Controls<T> controls;
  float* dreset_to[kMaxStates];  // [batch, groups, H] each; null where there are no resets
  float* multiplied;             // [2, batch, groups, G·H], as in ForwardArrays; null: da_h
  float* carried;                // [batch, groups, S·H], as in ForwardArrays
  float* phase_scratch;          // as there

  // Before the first step: nothing has gone to reset_to.
  template <class Io>
  PRNN_HD void no_resets_yet(const Shape& shape, std::int64_t g, std::int64_t b, std::int64_t unit,
                             Io io) const {
    using F = typename Io::F;
    if (controls.resets == nullptr) return;
    for (float* sum : dreset_to)
      if (sum != nullptr) io.store(sum + shape.state_at(b, g) + unit, F(0.0f));
  }
  // The same of the gradient of the forward pass's `step` and of the state after it; at the last,
  // there are sums to begin. -1: before the first.
  PRNN_HD bool has_controls(const Shape& shape, std::int64_t g, std::int64_t step,
                            std::int64_t b) const {
    if (shape.lengths_change(g, step, b)) return true;
    if (controls.resets == nullptr) return false;
    return step + 1 == shape.time || controls.resets_at(shape, g, step + 1, b) ||
           (step >= 0 && controls.resets_at(shape, g, step, b));
  }
  // d is the gradient of what the forward pass's `step` started from. If that had been replaced, it
  // goes there and ends.
  template <class State, class Io>
  PRNN_HD void hand_to_reset(const Shape& shape, std::int64_t g, std::int64_t step, std::int64_t b,
                             std::int64_t unit, State& d, Io io) const {
    using F = typename Io::F;
    if (!controls.resets_at(shape, g, step, b)) return;
    for (int n = 0; n < d.size(); ++n) {
      float* sum = dreset_to[n] + shape.state_at(b, g) + unit;
      io.store(sum, io.load(sum) + d[n]);
      d[n] = F(0.0f);
    }
  }
};

// What a call of no steps does, in place of a pass: copy(n, to, from) for each state, and
// clear(n, to) for each sum over resets, which are floats.
template <class Copy>
void copy_states(const MadeStates<void>& to, const GivenStates<void>& from, int states,
                 Copy&& copy) {
  copy(0, to.h, from.h);
  for (int n = 1; n < states; ++n) copy(n, to.others[n - 1], from.others[n - 1]);
}
template <class Copy, class Clear>
void hand_on_states(const ForwardArrays<void>& at, int states, Copy&& copy, Clear&&) {
  copy_states(at.state_n, at.state_0, states, copy);
}
template <class Copy, class Clear>
void hand_on_states(const BackwardArrays<void>& at, int states, Copy&& copy, Clear&& clear) {
  copy_states(at.dstate_0, at.dstate_n, states, copy);
  for (int n = 0; n < states; ++n)
    if (at.dreset_to[n] != nullptr) clear(n, at.dreset_to[n]);
}

// A matrix with the weights of one k in each row: of all units, product by product.
template <class T>
struct WeightRows {
  const T* first;
  std::int64_t stride;  // from row to row
};
// One with the weights of one unit in each, k by k.
template <class T>
struct WeightColumns {
  const T* first;
  std::int64_t stride;  // from unit to unit
};

// Kept for the backward pass, per unit and step: the reserve, then the states that are not y. And
// with zoneout, the h that was made, of a cell that has kKeepsMade.
template <class C>
inline constexpr int saved_values = C::kReserve + C::kStates - 1;

// A cell's numbers at run time.
struct CellNumbers {
  int gates, states, saved, per_unit;
  bool same_gradient, keeps_made, projects, normalises;

  int kept(bool has_zoneout) const { return saved + (has_zoneout && keeps_made ? 1 : 0); }
};
inline CellNumbers numbers(const CellSpec& cell) {
  CellNumbers out = visit(cell, [](auto c) {
    using C = decltype(c);
    return CellNumbers{C::kGates,        C::kStates,    saved_values<C>, kPerUnitOf<C>,
                       C::kSameGradient, C::kKeepsMade, kProjectsOf<C>,  NormedCell<C>};
  });
  const bool is_general =
      cell.kind == CellKind::kGeneralLstm || cell.kind == CellKind::kGeneralProjectedLstm;
  if (is_general && !cell.has_peepholes) out.per_unit = 0;
  if (out.normalises && !cell.norm.of_sum) out.saved += out.gates;  // a_x
  return out;
}

}  // namespace prnn
