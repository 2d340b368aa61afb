// Cells with bounds inside of their steps, prnn_jax.Clip: those of core/cells.h that take any
// activations, with others of these.
#pragma once
#include <limits>

#include "core/cells.h"

namespace prnn {

// Where there is none, infinite; or no number, which nothing compares to: an infinite value, too,
// and its gradient, pass as if there were no bounds.
struct Bounds {
  float low = std::numeric_limits<float>::quiet_NaN();
  float high = std::numeric_limits<float>::quiet_NaN();

  template <class F>
  PRNN_HD F operator()(F v) const {
    return clipped(v, low, high);
  }
  // d = ∂L/∂y of the bounded y; nothing passes where it is on a bound. NaN does.
  template <class F>
  PRNN_HD F grad(F d, F y) const {
    const F within = select(y >= F(high), F(0.0f), select(y <= F(low), F(0.0f), d));
    return select(y == y, within, y);
  }
};

// As they come from the caller.
struct Clip {
  bool is_there = false;
  // Of what gates and the candidate make of pre-activations from -k to k: they grow with those, or
  // fall.
  Bounds gate, candidate;
  Bounds state;       // of an LSTM's c
  Bounds gradient;    // of ∂a
  Bounds projection;  // of the h of a cell that projects
};

struct BoundedActivation {
  AnyActivation f;
  Bounds bounds, gradient;

  template <class F>
  PRNN_HD F operator()(F a) const {
    return bounds(f(a));
  }
  template <class F>
  PRNN_HD F grad(F d, F y) const {
    return gradient(bounds.grad(f.grad(d, y), y));
  }
};

struct ClippedActivations {
  BoundedActivation gate, candidate;
  AnyActivation output;
  Bounds state;

  PRNN_HD ClippedActivations(const ChosenActivations& f, const Clip& clip)
      : gate{f.gate, clip.gate, clip.gradient},
        candidate{f.candidate, clip.candidate, clip.gradient},
        output(f.output),
        state(clip.state) {}

  template <class F>
  PRNN_HD F kept(F c) const {
    return state(c);
  }
  template <class F>
  PRNN_HD F kept_grad(F d, F c) const {
    return state.grad(d, c);
  }
};

using ClippedRnn = Rnn<BoundedActivation>;
using ClippedLstm = GeneralLstmOf<ClippedActivations>;
// With a projection, whose result is bounded.
struct ClippedProjectedLstm : Projected<ClippedLstm> {
  Bounds of_h;
};
using ClippedGru = GruOf<ClippedActivations>;
using ClippedGruResetBefore = GruResetBeforeOf<ClippedActivations>;
static_assert(Cell<ClippedRnn> && Cell<ClippedLstm> && Cell<ClippedGru> &&
              TwoPhaseCell<ClippedGruResetBefore> && ProjectedCell<ClippedProjectedLstm>);

template <>
inline constexpr bool kHasFewUsers<ClippedRnn> = true;
template <>
inline constexpr bool kHasFewUsers<ClippedLstm> = true;
template <>
inline constexpr bool kHasFewUsers<ClippedProjectedLstm> = true;
template <>
inline constexpr bool kHasFewUsers<ClippedGru> = true;
template <>
inline constexpr bool kHasFewUsers<ClippedGruResetBefore> = true;

}  // namespace prnn
