// The recurrent cells: pure functions of values, the same for host and device, for one unit (F is
// float) or many (F is a SIMD vector). Every engine uses these and no other gate math.
//
// A cell has
//   kGates    products per unit and step: columns of w_hh are [gate, unit]
//   kStates   values carried per unit; the first is h, which the other units read
//   kReserve  values kept for step_grad(), besides the states themselves
//   kPhases   products in series within a step: 2 only where a gate multiplies something that
//             another gate has made (GRU with the reset before the product)
//   kSameGradient  true where ∂a_x and ∂a_h are the same numbers, so that one array holds both
//   kKeepsMade     true where step_grad() reads the h that step() has made, and zoneout leaves a
//                  mixture in y: a call with zoneout keeps that h, and nothing else, as the reserve
//   kProjects      true where h is a product of what the units give: one more matrix. A cell
//                  without says nothing.
//   kPerUnit       numbers of its own that a unit multiplies element by element: step() and
//                  step_grad() take them first. A cell without any says nothing.
//
// and may give its step in two parts, for engines that take many units' first parts before their
// second ones: each waits less for its own results than a whole step would.
//   activate  from products, what takes their place
//   finish    from that, a_x and the state before, the step's result
#pragma once
#include <concepts>
#include <type_traits>

#include "core/activations.h"

namespace prnn {

template <class C>
inline constexpr int kPerUnitOf = 0;
template <class C>
  requires requires { C::kPerUnit; }
inline constexpr int kPerUnitOf<C> = C::kPerUnit;

template <class C>
inline constexpr bool kProjectsOf = requires { requires C::kProjects; };

template <class C, class F>
using PerUnit = Vec<kPerUnitOf<C>, F>;
template <class C, class F>
using State = Vec<C::kStates, F>;
template <class C, class F>
using Gates = Vec<C::kGates, F>;

template <class C, class F>
struct Forward {
  State<C, F> next;
  Vec<C::kReserve, F> reserve;
};

// `prev` leaves out the path through w_hh: the engine adds it.
template <class C, class F>
struct Backward {
  State<C, F> prev;
  Gates<C, F> da_x, da_h;
};

// Elman network with PRNN's residual through time (Diamos et al. 2016):
//   h' = f(a_x + a_h + skip h)
template <class Activation>
struct Rnn {
  static constexpr int kGates = 1, kStates = 1, kReserve = 0, kPhases = 1;
  static constexpr bool kSameGradient = true, kKeepsMade = true;
  Activation f;
  float skip;

  template <class F>
  PRNN_HD Forward<Rnn, F> step(Vec<1, F> a_x, Vec<1, F> a_h, Vec<1, F> prev) const {
    return {{f(a_x[0] + a_h[0] + residual(prev[0]))}, {}};
  }
  template <class F>
  PRNN_HD Backward<Rnn, F> step_grad(Vec<1, F> d, Vec<1, F>, Vec<1, F> now, Vec<0, F>) const {
    const Vec<1, F> da{f.grad(d[0], now[0])};
    return {{residual(da[0])}, da, da};
  }
  template <class F>
  PRNN_HD static Vec<1, F> recompute_state(Vec<1, F>, Vec<1, F> now, Vec<0, F>) {
    return now;
  }

 private:
  // Nothing of an infinite h, where there is no residual.
  template <class F>
  PRNN_HD F residual(F v) const {
    return skip == 0.0f ? F(0.0f) : F(skip) * v;
  }
};

// LSTM without peepholes (Hochreiter & Schmidhuber 1997, Gers et al. 2000), gate order i, f, g, o:
//   c' = σ(a_f) c + σ(a_i) tanh(a_g)    h' = σ(a_o) tanh(c')    a = a_x + a_h
struct Lstm {
  static constexpr int kGates = 4, kStates = 2, kReserve = 4, kPhases = 1;  // reserve: i, f, g, o
  static constexpr bool kSameGradient = true, kKeepsMade = false;

  template <class F>
  PRNN_HD Forward<Lstm, F> step(Vec<4, F> a_x, Vec<4, F> a_h, Vec<2, F> prev) const {
    return finish(activate(a_x, a_h), a_x, prev);
  }
  template <class F>
  PRNN_HD static Vec<4, F> activate(Vec<4, F> a_x, Vec<4, F> a_h) {
    return {sigmoid(a_x[0] + a_h[0]), sigmoid(a_x[1] + a_h[1]), tanh(a_x[2] + a_h[2]),
            sigmoid(a_x[3] + a_h[3])};
  }
  template <class F>
  PRNN_HD static Forward<Lstm, F> finish(Vec<4, F> gates, Vec<4, F>, Vec<2, F> prev) {
    const F i = gates[0], f = gates[1], g = gates[2], o = gates[3];
    const F c = f * prev[1] + i * g;
    return {{o * tanh(c), c}, gates};
  }
  // tanh(c') is computed again: that is cheaper than a sixth value per unit and step in memory.
  template <class F>
  PRNN_HD Backward<Lstm, F> step_grad(Vec<2, F> d, Vec<2, F> prev, Vec<2, F> now,
                                      Vec<4, F> reserve) const {
    const F i = reserve[0], f = reserve[1], g = reserve[2], o = reserve[3];
    const F tanh_c = tanh(now[1]);
    const F dc = d[1] + d[0] * o * tanh_grad(tanh_c);
    const Vec<4, F> da{dc * g * sigmoid_grad(i), dc * prev[1] * sigmoid_grad(f),
                       dc * i * tanh_grad(g), d[0] * tanh_c * sigmoid_grad(o)};
    return {{F(0.0f), dc * f}, da, da};
  }
  template <class F>
  PRNN_HD static Vec<2, F> recompute_state(Vec<2, F> prev, Vec<2, F> now, Vec<4, F> reserve) {
    return {now[0], reserve[1] * prev[1] + reserve[0] * reserve[2]};
  }
};

// The same with activations of the caller's choice, φ for tanh(a_g) and ψ for tanh(c'), and with
// peepholes (Gers & Schmidhuber 2000), if it has some: each gate sees c of its unit, scaled by the
// unit's own numbers p, i and f the c before, o the c after.
//   i, f = σ(a_i + p_i c), σ(a_f + p_f c)    c' = f c + i φ(a_g)    o = σ(a_o + p_o c')
template <class Activations>
struct GeneralLstmOf {
  static constexpr int kGates = 4, kStates = 2, kReserve = 4, kPhases = 1;  // reserve: i, f, g, o
  static constexpr int kPerUnit = 3;                                        // of i, f, o
  static constexpr bool kSameGradient = true, kKeepsMade = false;
  Activations f;
  bool has_peepholes;

  template <class F>
  PRNN_HD Forward<GeneralLstmOf, F> step(Vec<3, F> p, Vec<4, F> a_x, Vec<4, F> a_h,
                                         Vec<2, F> prev) const {
    const F i = f.gate(a_x[0] + a_h[0] + seen(p[0], prev[1]));
    const F forget = f.gate(a_x[1] + a_h[1] + seen(p[1], prev[1]));
    const F g = f.candidate(a_x[2] + a_h[2]);
    const F c = f.kept(forget * prev[1] + i * g);
    const F o = f.gate(a_x[3] + a_h[3] + seen(p[2], c));
    return {{o * f.output(c), c}, {i, forget, g, o}};
  }
  template <class F>
  PRNN_HD Backward<GeneralLstmOf, F> step_grad(Vec<3, F> p, Vec<2, F> d, Vec<2, F> prev,
                                               Vec<2, F> now, Vec<4, F> reserve) const {
    const F i = reserve[0], forget = reserve[1], g = reserve[2], o = reserve[3];
    const F out = f.output(now[1]);
    const F da_o = f.gate.grad(d[0] * out, o);
    const F dc = f.kept_grad(d[1] + f.output.grad(d[0] * o, out) + seen(p[2], da_o), now[1]);
    const Vec<4, F> da{f.gate.grad(dc * g, i), f.gate.grad(dc * prev[1], forget),
                       f.candidate.grad(dc * i, g), da_o};
    return {{F(0.0f), dc * forget + seen(p[0], da[0]) + seen(p[1], da[1])}, da, da};
  }
  template <class F>
  PRNN_HD Vec<2, F> recompute_state(Vec<2, F> prev, Vec<2, F> now, Vec<4, F> reserve) const {
    const Vec<2, F> made = Lstm::recompute_state(prev, now, reserve);
    return {made[0], f.kept(made[1])};
  }

 private:
  // Nothing of an infinite c, where there are no peepholes.
  template <class F>
  PRNN_HD F seen(F p, F v) const {
    return has_peepholes ? p * v : F(0.0f);
  }
};
using GeneralLstm = GeneralLstmOf<ChosenActivations>;

// sLSTM of the xLSTM (Beck et al. 2024), gate order i, f, z, o; log σ(a_f) is l:
//   m' = max(l + m, a_i)    i = e^(a_i - m')    f = e^(l + m - m')
//   c' = f c + i tanh(a_z)    n' = f n + i    h' = σ(a_o) c' / n'
// Where n = 0 there is nothing to forget yet: m' = a_i and f = 0.
struct Slstm {
  static constexpr int kGates = 4, kStates = 4, kPhases = 1;
  static constexpr int kReserve = 5;  // i, f, z, o, and dl/da_f = σ(-a_f)
  static constexpr bool kSameGradient = true, kKeepsMade = false;

  template <class F>
  PRNN_HD Forward<Slstm, F> step(Vec<4, F> a_x, Vec<4, F> a_h, Vec<4, F> prev) const {
    const F a_i = a_x[0] + a_h[0], a_f = a_x[1] + a_h[1];
    const F z = tanh(a_x[2] + a_h[2]), o = sigmoid(a_x[3] + a_h[3]);
    const F before = log_sigmoid(a_f) + prev[3];
    const F larger = select(before > a_i, before, select(before == before, a_i, before));
    const auto forgets = prev[2] > F(0.0f);
    const F m = select(forgets, larger, a_i);
    const F i = exp(a_i - m),
            f = select(forgets, exp(select(forgets, before - m, F(0.0f))), F(0.0f));
    const F c = f * prev[1] + i * z, n = f * prev[2] + i;
    return {{o * c / n, c, n, m}, {i, f, z, o, sigmoid(-a_f)}};
  }
  // One of i and f is 1: the one that made m'. The other gets what m' has of it.
  template <class F>
  PRNN_HD Backward<Slstm, F> step_grad(Vec<4, F> d, Vec<4, F> prev, Vec<4, F> now,
                                       Vec<5, F> reserve) const {
    const F i = reserve[0], f = reserve[1], z = reserve[2], o = reserve[3];
    const F ratio = now[1] / now[2], dratio = d[0] * o;
    const F dc = d[1] + dratio / now[2], dn = d[2] - dratio * ratio / now[2];
    const F di = (dc * z + dn) * i;
    const F df = select(prev[2] > F(0.0f), (dc * prev[1] + dn * prev[2]) * f, F(0.0f));
    const auto remembers = f > i;  // m' = l + m, f = 1
    const F to_i = select(remembers, di, d[3] - df), to_l = select(remembers, d[3] - di, df);
    const Vec<4, F> da{to_i, to_l * reserve[4], dc * i * tanh_grad(z),
                       d[0] * ratio * sigmoid_grad(o)};
    return {{F(0.0f), dc * f, dn * f, to_l}, da, da};
  }
  template <class F>
  PRNN_HD static Vec<4, F> recompute_state(Vec<4, F> prev, Vec<4, F> now, Vec<5, F> reserve) {
    const F i = reserve[0], f = reserve[1], z = reserve[2];
    return {now[0], f * prev[1] + i * z, f * prev[2] + i, now[3]};
  }
};

// GRU with the reset gate after the product (as in cuDNN), gate order r, z, n:
//   n = tanh(a_x,n + σ(r) a_h,n)    h' = (1 - z) n + z h
template <class Activations>
struct GruOf {
  static constexpr int kGates = 3, kStates = 1, kReserve = 4, kPhases = 1;  // r, z, n, a_h,n
  static constexpr bool kSameGradient = false, kKeepsMade = false;
  Activations f;

  template <class F>
  PRNN_HD Forward<GruOf, F> step(Vec<3, F> a_x, Vec<3, F> a_h, Vec<1, F> prev) const {
    return finish(activate(a_x, a_h), a_x, prev);
  }
  template <class F>
  PRNN_HD Vec<3, F> activate(Vec<3, F> a_x, Vec<3, F> a_h) const {
    return {f.gate(a_x[0] + a_h[0]), f.gate(a_x[1] + a_h[1]), a_h[2]};
  }
  template <class F>
  PRNN_HD Forward<GruOf, F> finish(Vec<3, F> gates, Vec<3, F> a_x, Vec<1, F> prev) const {
    const F r = gates[0], z = gates[1], a_hn = gates[2];
    const F n = f.candidate(a_x[2] + r * a_hn);
    return {{n + z * (prev[0] - n)}, {r, z, n, a_hn}};
  }
  template <class F>
  PRNN_HD Backward<GruOf, F> step_grad(Vec<1, F> d, Vec<1, F> prev, Vec<1, F>,
                                       Vec<4, F> reserve) const {
    const F r = reserve[0], z = reserve[1], n = reserve[2], a_hn = reserve[3];
    const F dn = f.candidate.grad(d[0] * (1.0f - z), n);
    const F dr = f.gate.grad(dn * a_hn, r), dz = f.gate.grad(d[0] * (prev[0] - n), z);
    return {{d[0] * z}, {dr, dz, dn}, {dr, dz, dn * r}};
  }
  template <class F>
  PRNN_HD static Vec<1, F> recompute_state(Vec<1, F>, Vec<1, F> now, Vec<4, F>) {
    return now;
  }
};
using Gru = GruOf<UsualActivations>;
using GeneralGru = GruOf<ChosenActivations>;

// GRU as first published (Cho et al. 2014), reset gate before the product, gate order r, z, n:
//   n = tanh(a_x,n + (r h) w_hn)    h' = (1 - z) n + z h
// Two products in series: open() makes what the second one multiplies, close() ends the step.
template <class Activations>
struct GruResetBeforeOf {
  static constexpr int kGates = 3, kStates = 1, kReserve = 3, kPhases = 2;  // r, z, n
  static constexpr int kOpenGates = 2;                                      // r, z
  static constexpr bool kSameGradient = true, kKeepsMade = false;
  Activations f;

  template <class F>
  struct Opened {
    F published;     // r h, multiplied by w_hn
    Vec<2, F> kept;  // r, z
  };
  template <class F>
  PRNN_HD Opened<F> open(Vec<2, F> a_x, Vec<2, F> a_h, F h) const {
    const F r = f.gate(a_x[0] + a_h[0]), z = f.gate(a_x[1] + a_h[1]);
    return {r * h, {r, z}};
  }
  template <class F>
  PRNN_HD Forward<GruResetBeforeOf, F> close(F a_x, F a_h, F h, Vec<2, F> kept) const {
    const F n = f.candidate(a_x + a_h), z = kept[1];
    return {{n + z * (h - n)}, {kept[0], z, n}};
  }

  // d: ∂L/∂h'. First the gradients that need no product, then, with dq = ∂L/∂(r h), the rest.
  template <class F>
  struct OpenedGrad {
    F da_z, da_n, dh;
  };
  template <class F>
  PRNN_HD OpenedGrad<F> open_grad(F d, F h, Vec<3, F> reserve) const {
    const F z = reserve[1], n = reserve[2];
    return {f.gate.grad(d * (h - n), z), f.candidate.grad(d * (1.0f - z), n), d * z};
  }
  template <class F>
  struct ClosedGrad {
    F da_r, dh;
  };
  template <class F>
  PRNN_HD ClosedGrad<F> close_grad(F dq, F dh, F h, Vec<3, F> reserve) const {
    const F r = reserve[0];
    return {f.gate.grad(dq * h, r), dh + dq * r};
  }
};
using GruResetBefore = GruResetBeforeOf<ChosenActivations>;

// A cell whose h a second product makes of what its units give, m (Sak et al. 2014, LSTMP):
//   m = the cell's own h    h' = m w_hr
// step() and step_grad() are the cell's, with m in place of h.
template <class C>
struct Projected : C {
  static constexpr int kPhases = 2;
  static constexpr bool kProjects = true;
};

// The step of a cell and its gradient, with the numbers of a unit where the cell has some.
template <class C, class F>
PRNN_HD auto step_of(const C& cell, const PerUnit<C, F>& own, const Gates<C, F>& a_x,
                     const Gates<C, F>& a_h, const State<C, F>& prev) {
  if constexpr (kPerUnitOf<C> > 0)
    return cell.step(own, a_x, a_h, prev);
  else
    return cell.step(a_x, a_h, prev);
}
template <class C, class F>
PRNN_HD auto grad_of(const C& cell, const PerUnit<C, F>& own, const State<C, F>& d,
                     const State<C, F>& prev, const State<C, F>& now,
                     const Vec<C::kReserve, F>& reserve) {
  if constexpr (kPerUnitOf<C> > 0)
    return cell.step_grad(own, d, prev, now, reserve);
  else
    return cell.step_grad(d, prev, now, reserve);
}

// Cells that few layers are of: engines compile less for them.
template <class C>
inline constexpr bool kHasFewUsers =
    std::is_same_v<C, GeneralGru> || std::is_same_v<C, Rnn<AnyActivation>>;

// What an engine asks of a cell whose step is one product. A new cell is one struct like this.
//
// recompute_state() is for zoneout, which mixes the states that step() made with those before: it
// gives the former, as far as step_grad() reads them, from what is kept, `now` being the mixture.
// They are made again and not taken out of the mixture, where rounding has lost them: a ReLU that
// is shut would be open, and of a share near 1 little is left. The h of a cell that keeps it is in
// `now`.
template <class C>
concept Cell = C::kPhases == 1 && (!C::kKeepsMade || (C::kReserve == 0 && C::kStates == 1)) &&
               requires(C cell, PerUnit<C, float> p, Gates<C, float> a, State<C, float> s,
                        Vec<C::kReserve, float> r) {
                 { step_of(cell, p, a, a, s) } -> std::same_as<Forward<C, float>>;
                 { grad_of(cell, p, s, s, s, r) } -> std::same_as<Backward<C, float>>;
                 { cell.recompute_state(s, s, r) } -> std::same_as<State<C, float>>;
               };
static_assert(Cell<Rnn<Tanh>> && Cell<Rnn<ClippedRelu>> && Cell<Rnn<TanhOrRelu>> &&
              Cell<Rnn<AnyActivation>> && Cell<Lstm> && Cell<GeneralLstm> && Cell<Slstm> &&
              Cell<Gru> && Cell<GeneralGru>);

// One that gives its step in two parts.
template <class C>
concept CellInParts = Cell<C> && requires(C cell, Gates<C, float> a, State<C, float> s) {
  { cell.activate(a, a) } -> std::same_as<Gates<C, float>>;
  { cell.finish(a, a, s) } -> std::same_as<Forward<C, float>>;
};
static_assert(CellInParts<Lstm> && CellInParts<Gru>);

// Such a cell, of products that are activated already.
template <CellInParts C>
struct Activated : C {
  template <class F>
  PRNN_HD Forward<Activated, F> step(Gates<C, F> a_x, Gates<C, F> gates, State<C, F> prev) const {
    const Forward<C, F> out = C::finish(gates, a_x, prev);
    return {out.next, out.reserve};
  }
};

// And of one whose step is two products in series.
template <class C>
concept TwoPhaseCell =
    C::kPhases == 2 && !C::kKeepsMade &&
    requires(C cell, Vec<C::kOpenGates, float> a, float v, Vec<C::kReserve, float> r) {
      { cell.open(a, a, v).published } -> std::convertible_to<float>;
      { cell.close(v, v, v, a) } -> std::same_as<Forward<C, float>>;
      { cell.open_grad(v, v, r).dh } -> std::convertible_to<float>;
      { cell.close_grad(v, v, v, r).dh } -> std::convertible_to<float>;
    };
static_assert(TwoPhaseCell<GruResetBefore>);

// One that projects.
template <class C>
concept ProjectedCell = kProjectsOf<C> && C::kPhases == 2 && C::kSameGradient && !C::kKeepsMade &&
                        requires(C cell, PerUnit<C, float> p, Gates<C, float> a, State<C, float> s,
                                 Vec<C::kReserve, float> r) {
                          step_of(cell, p, a, a, s).next;
                          grad_of(cell, p, s, s, s, r).da_h;
                        };
static_assert(ProjectedCell<Projected<Lstm>>);

}  // namespace prnn
