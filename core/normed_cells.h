// Cells with layer norm inside of their steps (Ba et al. 2016), as functions of values that have
// been normalised: what a row's units have to do with each other is in core/normed_passes.h and
// normed_backward.h, the equations in prnn_jax/_cells/normed.py. Such a cell has
//   kInner        whether a value inside of its step may be normalised, too, and
//   open          from pre-activations and states, the gates and that value
//   close         from these and the value as it is seen, the states after
//   open_grad     from the gradient of those, that of the value as it is seen
//   close_grad    and from that of the value, all others
// Its units' own numbers are the gains of its gates' products (or sums), the gates' shifts; from
// kOfInner on the gain and the shift of the inner value, or at kShiftX, without one, what is added
// to the last gate's a_x; and from kGainX on the gains of the gates' a_x. Its reserve are the
// gates, and the products (or sums) before normalisation; and a_x, where that is normalised apart.
#pragma once
#include "core/cells.h"

namespace prnn {

enum class InnerNorm { kNone, kOutput, kState };

struct Normalisation {
  bool is_there;  // else the cell has none
  bool of_sum;    // of x w_ih + h w_hh; else of h w_hh alone
  bool per_gate;  // means are of a gate's values; else of all gates' together
  InnerNorm inner;
  float epsilon;
};

// LSTM: c' = f c + i g    h' = o tanh(seen c')
struct NormedLstm {
  static constexpr int kGates = 4, kStates = 2, kReserve = 8, kPhases = 2;
  static constexpr int kOfInner = 2 * kGates, kGainX = kOfInner + 2, kPerUnit = kGainX + kGates;
  static constexpr bool kSameGradient = false, kKeepsMade = false, kInner = true;
  Normalisation norm;

  template <class F>
  struct Opened {
    Vec<4, F> gates;
    F inner;
  };
  template <class F>
  PRNN_HD static Opened<F> open(Vec<4, F> a_x, Vec<4, F> a_h, Vec<2, F> prev) {
    const Vec<4, F> gates = Lstm::activate(a_x, a_h);
    return {gates, inner(gates, prev)};
  }
  template <class F>
  PRNN_HD static F inner(Vec<4, F> gates, Vec<2, F> prev) {
    return gates[1] * prev[1] + gates[0] * gates[2];
  }
  template <class F>
  PRNN_HD Vec<2, F> close(Opened<F> made, F seen, Vec<2, F>) const {
    return {made.gates[3] * tanh(seen), norm.inner == InnerNorm::kState ? seen : made.inner};
  }
  template <class F>
  PRNN_HD F open_grad(Vec<2, F> d, Vec<4, F> gates, F seen) const {
    const F dseen = d[0] * gates[3] * tanh_grad(tanh(seen));
    return norm.inner == InnerNorm::kState ? dseen + d[1] : dseen;
  }
  template <class F>
  PRNN_HD Backward<NormedLstm, F> close_grad(Vec<2, F> d, F dinner, F seen, Vec<4, F> gates,
                                             Vec<4, F>, Vec<2, F> prev) const {
    const F i = gates[0], f = gates[1], g = gates[2], o = gates[3];
    const F dc = norm.inner == InnerNorm::kState ? dinner : dinner + d[1];
    const Vec<4, F> da{dc * g * sigmoid_grad(i), dc * prev[1] * sigmoid_grad(f),
                       dc * i * tanh_grad(g), d[0] * tanh(seen) * sigmoid_grad(o)};
    return {{F(0.0f), dc * f}, da, da};
  }
};

// GRU, the reset after the product: n = tanh(a_x,n + r a_h,n)    h' = (1 - z) n + z h
struct NormedGru {
  static constexpr int kGates = 3, kStates = 1, kReserve = 6, kPhases = 2;
  static constexpr int kShiftX = 2 * kGates, kGainX = kShiftX + 1, kPerUnit = kGainX + kGates;
  static constexpr bool kSameGradient = false, kKeepsMade = false, kInner = false;
  Normalisation norm;

  template <class F>
  struct Opened {
    Vec<3, F> gates;
    F inner;  // none
  };
  template <class F>
  PRNN_HD static Opened<F> open(Vec<3, F> a_x, Vec<3, F> a_h, Vec<1, F>) {
    const F r = sigmoid(a_x[0] + a_h[0]), z = sigmoid(a_x[1] + a_h[1]);
    return {{r, z, tanh(a_x[2] + r * a_h[2])}, F(0.0f)};
  }
  template <class F>
  PRNN_HD static F inner(Vec<3, F>, Vec<1, F>) {
    return F(0.0f);
  }
  template <class F>
  PRNN_HD static Vec<1, F> close(Opened<F> made, F, Vec<1, F> prev) {
    const F z = made.gates[1], n = made.gates[2];
    return {n + z * (prev[0] - n)};
  }
  template <class F>
  PRNN_HD static F open_grad(Vec<1, F>, Vec<3, F>, F) {
    return F(0.0f);
  }
  template <class F>
  PRNN_HD static Backward<NormedGru, F> close_grad(Vec<1, F> d, F, F, Vec<3, F> gates,
                                                   Vec<3, F> a_h, Vec<1, F> prev) {
    const F r = gates[0], z = gates[1], n = gates[2];
    const F dn = d[0] * (1.0f - z) * tanh_grad(n);
    const F dr = dn * a_h[2] * sigmoid_grad(r), dz = d[0] * (prev[0] - n) * sigmoid_grad(z);
    return {{d[0] * z}, {dr, dz, dn}, {dr, dz, dn * r}};
  }
};

template <class C>
concept NormedCell = C::kPhases == 2 && !C::kSameGradient && !C::kKeepsMade &&
                     C::kReserve == 2 * C::kGates && C::kPerUnit == C::kGainX + C::kGates &&
                     requires(C cell, Gates<C, float> a, State<C, float> s, float v) {
                       { cell.norm } -> std::convertible_to<Normalisation>;
                       { cell.close(cell.open(a, a, s), v, s) } -> std::same_as<State<C, float>>;
                       { cell.open_grad(s, a, v) } -> std::same_as<float>;
                       { cell.close_grad(s, v, v, a, a, s) } -> std::same_as<Backward<C, float>>;
                     };
static_assert(NormedCell<NormedLstm> && NormedCell<NormedGru>);

template <NormedCell C>
inline constexpr bool kHasFewUsers<C> = true;

}  // namespace prnn
