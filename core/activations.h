// What cells put their pre-activations through: f(a), and grad(d, y), ∂L/∂a from d = ∂L/∂y and the
// output y = f(a), for one number or many (F is float or a SIMD vector).
#pragma once
#include "core/portability.h"
#include "core/scalar_math.h"

namespace prnn {

template <class F>
PRNN_HD F sigmoid_grad(F s) {  // from the output s = σ(a)
  return s * (1.0f - s);
}
template <class F>
PRNN_HD F tanh_grad(F t) {  // from the output t = tanh(a)
  return 1.0f - t * t;
}

struct Sigmoid {
  template <class F>
  PRNN_HD F operator()(F a) const {
    return sigmoid(a);
  }
  template <class F>
  PRNN_HD F grad(F d, F y) const {
    return d * sigmoid_grad(y);
  }
};

struct Tanh {
  template <class F>
  PRNN_HD F operator()(F a) const {
    return tanh(a);
  }
  template <class F>
  PRNN_HD F grad(F d, F y) const {
    return d * tanh_grad(y);
  }
};

// min(max(v, low), high). NaN passes through.
template <class F>
PRNN_HD F clipped(F v, float low, float high) {
  v = select(v < F(low), F(low), v);
  return select(v > F(high), F(high), v);
}
// Of a gradient nothing passes where it is shut, whatever the gradient is.
template <class F>
PRNN_HD F where_between(F y, float low, float high, F d) {
  return select(y > F(low), select(y < F(high), d, F(0.0f)), F(0.0f));
}

// min(max(a, 0), cap); with cap = ∞ the plain ReLU.
struct ClippedRelu {
  float cap;
  template <class F>
  PRNN_HD F operator()(F a) const {
    return clipped(a, 0.0f, cap);
  }
  template <class F>
  PRNN_HD F grad(F d, F y) const {
    return where_between(y, 0.0f, cap, d);
  }
};

// Either, by a value at run time: for engines to which one more branch per step is cheaper than a
// second instance.
struct TanhOrRelu {
  bool is_tanh;
  float cap;
  template <class F>
  PRNN_HD F operator()(F a) const {
    return is_tanh ? Tanh{}(a) : ClippedRelu{cap}(a);
  }
  template <class F>
  PRNN_HD F grad(F d, F y) const {
    return is_tanh ? Tanh{}.grad(d, y) : ClippedRelu{cap}.grad(d, y);
  }
};

// With α and β:
//   kSigmoid    σ(a)                        kElu       a, below zero α (e^a - 1)
//   kTanh       α tanh(β a)                 kSoftsign  a / (1 + |a|)
//   kClipped    α a + β, from low to high   kSoftplus  log(1 + e^a)
//   kLeakyRelu  a, below zero α a
// A bit each: nvcc makes no table of jumps of tests of bits, through which cuda/lint.py could not
// follow a kernel's loop.
enum class ActivationKind : unsigned {
  kSigmoid = 1,
  kTanh = 2,
  kClipped = 4,
  kLeakyRelu = 8,
  kElu = 16,
  kSoftsign = 32,
  kSoftplus = 64
};

// Any of them, likewise.
struct AnyActivation {
  ActivationKind kind;
  float alpha, beta, low, high;

  template <class F>
  PRNN_HD F operator()(F a) const {
    if (is(ActivationKind::kSigmoid)) return sigmoid(a);
    if (is(ActivationKind::kTanh)) return tanh(a * F(beta)) * F(alpha);
    if (is(ActivationKind::kClipped)) return clipped(a * F(alpha) + F(beta), low, high);
    if (is(ActivationKind::kLeakyRelu)) return select(a < F(0.0f), a * F(alpha), a);
    if (is(ActivationKind::kElu)) {  // e^a - 1 = 2 t / (1 - t) with t = tanh(a / 2)
      const F t = tanh(select(a < F(0.0f), a, F(0.0f)) * F(0.5f));
      return select(a < F(0.0f), (t + t) / (1.0f - t) * F(alpha), a);
    }
    if (is(ActivationKind::kSoftsign)) return a / (magnitude(a) + F(1.0f));
    return -log_sigmoid(-a);  // kSoftplus: the handlers refuse every other value
  }
  template <class F>
  PRNN_HD F grad(F d, F y) const {
    if (is(ActivationKind::kSigmoid)) return d * sigmoid_grad(y);
    if (is(ActivationKind::kTanh))  // high is α as y is stored, so that at the end this is 0
      return d * tanh_grad(y / F(high)) * F(alpha * beta);
    if (is(ActivationKind::kClipped)) return where_between(y, low, high, d * F(alpha));
    if (is(ActivationKind::kLeakyRelu)) return select(y < F(0.0f), d * F(alpha), d);
    if (is(ActivationKind::kElu)) return select(y < F(0.0f), d * (y + F(alpha)), d);
    if (is(ActivationKind::kSoftsign)) {
      const F rest = 1.0f - magnitude(y);
      return d * rest * rest;
    }
    return d * (1.0f - exp(-y));
  }

 private:
  PRNN_HD bool is(ActivationKind other) const {
    return (static_cast<unsigned>(kind) & static_cast<unsigned>(other)) != 0;
  }
  template <class F>
  PRNN_HD static F magnitude(F v) {
    return select(v < F(0.0f), -v, v);
  }
};
inline constexpr AnyActivation kSigmoid{ActivationKind::kSigmoid, 1, 0, 0, 1};
inline constexpr AnyActivation kTanh{ActivationKind::kTanh, 1, 1, -1, 1};

// Those of a gated cell: of its gates, of the value that enters the state, and of the state where
// it leaves.
struct UsualActivations {
  Sigmoid gate;
  Tanh candidate, output;
};
struct ChosenActivations {
  AnyActivation gate = kSigmoid, candidate = kTanh, output = kTanh;

  // What an LSTM keeps of the c that it has made: all of it (core/clipped_cells.h).
  template <class F>
  PRNN_HD static F kept(F c) {
    return c;
  }
  template <class F>
  PRNN_HD static F kept_grad(F d, F) {
    return d;
  }
};

}  // namespace prnn
