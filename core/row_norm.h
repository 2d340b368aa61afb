// Layer norm of a row's values, and its gradient, where they lie: sums over vectors of units, in
// one order.
#pragma once
#include <cstdint>

#include "core/portability.h"

namespace prnn {

// Rows whose step threads may take at the same time.
inline constexpr std::int64_t kRowsOfRound = 8;
// Values per unit that a row keeps between phases, or within the second, backward; forward it is
// as many as gates, and two.
PRNN_HD constexpr int norm_scratch(int gates) { return 2 * gates + 2; }

// Of N kinds of values, `hidden` each, one after the other; kinds with one mean, or each its own.
template <int N, class Io>
struct RowNorm {
  using F = typename Io::F;
  std::int64_t hidden;
  bool apart;

  struct Moments {
    float first[N], second[N];
  };

  // f(unit, io) for each vector of units.
  template <class Visit>
  PRNN_HD static void each(std::int64_t hidden, Visit&& f) {
    for (std::int64_t unit = 0; unit < hidden; unit += Io::kUnits)
      f(unit, Io{(int)(hidden - unit < Io::kUnits ? hidden - unit : Io::kUnits)});
  }
  // Takes their mean away where they lie, and gives 1 / σ.
  PRNN_HD Vec<N, float> centre(float* values, float epsilon) const {
    Vec<N, F> sums, squares;
    for (int n = 0; n < N; ++n) sums[n] = squares[n] = F(0.0f);
    each(hidden, [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      for (int n = 0; n < N; ++n) sums[n] = sums[n] + io.load(values + n * hidden + unit);
    });
    const Vec<N, float> mean = means(sums);
    each(hidden, [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      for (int n = 0; n < N; ++n) {
        float* const at = values + n * hidden + unit;
        F centred = io.load(at) - F(mean[n]);
        io.store(at, centred);
        if (io.lanes < Io::kUnits) centred = io.load(at);  // zero where there is no unit
        squares[n] = squares[n] + centred * centred;
      }
    });
    Vec<N, float> out = means(squares);
    for (int n = 0; n < N; ++n) out[n] = 1.0f / __builtin_sqrtf(out[n] + epsilon);
    return out;
  }
  // Of gradients of what was normalised: their mean, and that of them times the centred values, by
  // the variance.
  PRNN_HD Moments moments(const float* d, const float* centred, Vec<N, float> inverse) const {
    Vec<N, F> sums, products;
    for (int n = 0; n < N; ++n) sums[n] = products[n] = F(0.0f);
    each(hidden, [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      for (int n = 0; n < N; ++n) {
        const F of = io.load(d + n * hidden + unit);
        sums[n] = sums[n] + of;
        products[n] = products[n] + of * io.load(centred + n * hidden + unit);
      }
    });
    const Vec<N, float> first = means(sums), second = means(products);
    Moments out;
    for (int n = 0; n < N; ++n) {
      out.first[n] = first[n];
      out.second[n] = second[n] * inverse[n] * inverse[n];
    }
    return out;
  }
  // The gradient of the n-th kind's values before they were normalised.
  PRNN_HD static F grad(const Moments& of, int n, F d, F centred, float inverse) {
    return (d - F(of.first[n]) - centred * of.second[n]) * inverse;
  }

 private:
  PRNN_HD Vec<N, float> means(const Vec<N, F>& sums) const {
    Vec<N, float> out;
    float all = 0.0f;
    for (int n = 0; n < N; ++n) all += out[n] = total(sums[n]);
    for (int n = 0; n < N; ++n) out[n] = apart ? out[n] / (float)hidden : all / (float)(N * hidden);
    return out;
  }
};

}  // namespace prnn
