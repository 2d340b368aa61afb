// Units left over that do not fill a vector: one, of a layer of 129.
//
// They have a panel of their own, the last of a phase, where that is cheaper than a vector for each
// of their products:
//   side by side  all their products in the lanes of a few vectors, a line for each k as in other
//                 panels. Of an LSTM with 132 units 33 vectors are multiplied so, and not 36.
//   along k       of few units, each product by itself. Its weights lie k beside k, as floats, and
//                 a vector of them is multiplied by a vector of the row. GRU 129 at batch 2 takes
//                 4 % less time than side by side.
#pragma once
#include "cpu/pack.h"
#include "cpu/problem.h"

namespace prnn::PRNN_ISA {

inline Remainder remainder(std::int64_t hidden, int products, std::int64_t depth,
                           bool allows_along_k) {
  // In multiply-adds of vectors: along k, the lanes of each sum are added at the end.
  constexpr std::int64_t kSumOfLanes = 8;
  const int units = (int)(hidden % kWidth), sums = units * products;
  const std::int64_t side_by_side = ceil_div(sums, kWidth) * depth;
  const std::int64_t along_k = sums * (ceil_div(depth, kWidth) + kSumOfLanes);
  // The weights of more units would have no place as floats where others are of 16 bits.
  const bool has_place = allows_along_k && 2 * units < kWidth;
  if (has_place && along_k < side_by_side) return {units, true};
  return {side_by_side < products * depth ? units : 0, false};
}

// Words of the panel: what the sums start from, and the weights, in so many lines if they are side
// by side.
inline std::int64_t words(Remainder remainder, int products, std::int64_t depth,
                          std::int64_t lines) {
  const std::int64_t sums = remainder.units * products, line = ceil_div(sums, kWidth) * kWidth;
  if (remainder.along_k) return line + sums * ceil_div(depth, kWidth) * kWidth;
  return line * lines;
}

// The weights of one sum: those of k lie at first[k · stride].
template <class T>
struct Column {
  const T* first;
  std::int64_t stride;

  // Of `count` k; zeros for the rest.
  PRNN_HD FloatVector load(std::int64_t k, int count) const {
    alignas(4 * kWidth) float weights[kWidth] = {};
    for (int n = 0; n < count; ++n) weights[n] = to_float(first[(k + n) * stride]);
    return Io<float>{kWidth}.load(weights).v;
  }
};
template <class T>
PRNN_HD Column<T> column(std::int64_t units, WeightRows<T> weights, int product,
                         std::int64_t unit) {
  return {weights.first + product * units + unit, weights.stride};
}
template <class T>
PRNN_HD Column<T> column(std::int64_t, WeightColumns<T> weights, int, std::int64_t unit) {
  return {weights.first + unit * weights.stride, 1};
}

// out[n] += Σ_k row[k] · weights(n, k, count) for kSums sums; `weights` gives those of `count` k
// from k on, and zeros. By turns to two vectors, whose lanes are summed at the end: results do not
// depend on what else is multiplied.
template <int kSums, class Weights>
PRNN_HD void add_along_k(const float* row, std::int64_t depth, const Weights& weights, float* out) {
  using Sums = FloatVector[kSums];
  const auto add = [&](Sums& sum, std::int64_t k, int count) __attribute__((always_inline)) {
    const FloatVector h = Io<float>{count}.load(row + k).v;
#pragma GCC unroll 4
    for (int n = 0; n < kSums; ++n) sum[n] = multiply_add(h, weights(n, k, count), sum[n]);
  };
  Sums even, odd;
#pragma GCC unroll 4
  for (int n = 0; n < kSums; ++n) even[n] = odd[n] = FloatVector{};
  std::int64_t k = 0;
  for (; k + 2 * kWidth <= depth; k += 2 * kWidth) {
    add(even, k, kWidth);
    add(odd, k + kWidth, kWidth);
  }
  if (k + kWidth <= depth) {
    add(even, k, kWidth);
    k += kWidth;
  }
  if (k < depth) add(odd, k, (int)(depth - k));
#pragma GCC unroll 4
  for (int n = 0; n < kSums; ++n) out[n] += sum_of_lanes(even[n] + odd[n]);
}

// The same for any number of sums.
template <class Weights>
PRNN_HD void add_along_k(const float* row, std::int64_t depth, int sums, const Weights& weights,
                         float* out) {
  constexpr int kAtOnce = 4;
  int first = 0;
  const auto of_rest = [&](int n, std::int64_t k, int count)
                           __attribute__((always_inline)) { return weights(first + n, k, count); };
  for (; first + kAtOnce <= sums; first += kAtOnce)
    add_along_k<kAtOnce>(row, depth, of_rest, out + first);
  switch (sums - first) {
    case 3:
      return add_along_k<3>(row, depth, of_rest, out + first);
    case 2:
      return add_along_k<2>(row, depth, of_rest, out + first);
    case 1:
      return add_along_k<1>(row, depth, of_rest, out + first);
  }
}

// The products of some rows by a panel along k, as those of product().
[[gnu::noinline]] inline void multiply_along_k(const float* panel, const float* const* rows,
                                               int row_count, std::int64_t depth, int sums,
                                               float* out) {
  const std::int64_t line = ceil_div(sums, kWidth) * kWidth;
  const std::int64_t stride = ceil_div(depth, kWidth) * kWidth;
  const auto weights = [&](int n, std::int64_t k, int) __attribute__((always_inline)) {
    return Io<float>{kWidth}.load(panel + line + n * stride + k).v;
  };
  for (int r = 0; r < row_count; ++r, out += line) {
    for (std::int64_t n = 0; n < line; n += kWidth)
      Io<float>{kWidth}.store(out + n, Io<float>{kWidth}.load(panel + n));
    add_along_k(rows[r], depth, sums, weights, out);
  }
}

}  // namespace prnn::PRNN_ISA
