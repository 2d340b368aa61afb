// Layer norm of a row's values, and its gradient: sums over vectors of units, in one order.
#pragma once
#include <cstdint>

#include "core/portability.h"

namespace prnn {

// Rows whose step threads may take at the same time.
inline constexpr std::int64_t kRowsOfRound = 8;
// Values per unit that a row keeps between phases, or within the second: backward, gradients of
// products and of a_x, and two more. Forward it takes fewer.
PRNN_HD constexpr int norm_scratch(int gates) { return 2 * gates + 2; }

// Of a vector of one unit.
PRNN_HD float total(float v) { return v; }

// Of N kinds of values, of so many units each; kinds with one mean, or each its own.
template <int N, class Io>
struct RowNorm {
  using F = typename Io::F;
  using Values = Vec<N, F>;  // of a vector of units
  std::int64_t hidden;
  bool apart;

  struct Scale {
    Vec<N, float> mean, variance, inverse;  // with epsilon; 1 / σ

    PRNN_HD Values centred(const Values& raw) const {
      Values out;
      for (int n = 0; n < N; ++n) out[n] = raw[n] - F(mean[n]);
      return out;
    }
    PRNN_HD Values of_centred(const Values& centred) const {
      Values out;
      for (int n = 0; n < N; ++n) out[n] = centred[n] * inverse[n];
      return out;
    }
    PRNN_HD Values operator()(const Values& raw) const { return of_centred(centred(raw)); }
  };
  // Of gradients d of what Scale makes: Σ d and Σ d times the centred values.
  struct Sums {
    Values first = zeros(), second = zeros();
  };

  // f(unit, io) for each vector of units.
  template <class Visit>
  PRNN_HD static void each(std::int64_t hidden, Visit&& f) {
    for (std::int64_t unit = 0; unit < hidden; unit += Io::kUnits)
      f(unit, Io{(int)(hidden - unit < Io::kUnits ? hidden - unit : Io::kUnits)});
  }
  PRNN_HD static Values zeros() {
    Values out;
    for (int n = 0; n < N; ++n) out[n] = F(0.0f);
    return out;
  }
  // Of units that there are.
  PRNN_HD static void add(Values& sums, const Values& more, Io io) {
    for (int n = 0; n < N; ++n) sums[n] = sums[n] + there(more[n], io);
  }
  PRNN_HD static void add(Sums& sums, const Values& d, const Values& centred, Io io) {
    add(sums.first, d, io);
    Values products;
    for (int n = 0; n < N; ++n) products[n] = d[n] * centred[n];
    add(sums.second, products, io);
  }
  // Given the sums of values(unit, io).
  template <class Of>
  PRNN_HD Scale scale(const Values& sums, float epsilon, Of&& values) const {
    Scale out{means(sums), {}, {}};
    Values squares = zeros();
    each(hidden, [&](std::int64_t unit, Io io) __attribute__((always_inline)) {
      Values centred = out.centred(values(unit, io));
      for (int n = 0; n < N; ++n) centred[n] = centred[n] * centred[n];
      add(squares, centred, io);
    });
    out.variance = means(squares);
    for (int n = 0; n < N; ++n) {
      out.variance[n] += epsilon;
      out.inverse[n] = 1.0f / __builtin_sqrtf(out.variance[n]);
    }
    return out;
  }
  struct Gradient {
    Vec<N, float> inverse, first, second;  // the means; the second by the variance

    // Of raw values, from that of what Scale makes of them. The terms may all but cancel, as of two
    // values they do: so the second is divided by the variance itself, which is rounded once.
    PRNN_HD Values operator()(const Values& d, const Values& centred) const {
      Values out;
      for (int n = 0; n < N; ++n)
        out[n] = (d[n] - F(first[n]) - centred[n] * second[n]) * inverse[n];
      return out;
    }
  };
  PRNN_HD Gradient gradient(const Scale& scale, const Sums& sums) const {
    Gradient out{scale.inverse, means(sums.first), means(sums.second)};
    for (int n = 0; n < N; ++n) out.second[n] /= scale.variance[n];
    return out;
  }

 private:
  PRNN_HD static F there(F value, Io io) {
    if (io.lanes >= Io::kUnits) return value;
    float some[Io::kUnits] = {};  // GCC does not see that each that is read was written
    io.store(some, value);
    return io.load(some);
  }
  PRNN_HD Vec<N, float> means(const Values& sums) const {
    Vec<N, float> out;
    float all = 0.0f;
    for (int n = 0; n < N; ++n) all += out[n] = total(sums[n]);
    for (int n = 0; n < N; ++n) out[n] = apart ? out[n] / (float)hidden : all / (float)(N * hidden);
    return out;
  }
};

}  // namespace prnn
