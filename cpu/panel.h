// What a panel holds: which units, and their weights, packed.
#pragma once
#include <type_traits>

#include "cpu/left_over.h"

namespace prnn::PRNN_ISA {

// The units of a panel, and how their products lie in its lines, or in its first if they are taken
// along k.
struct Units {
  std::int64_t first;
  int vectors;          // of units
  int product_stride;   // from a unit's product to its next
  int product_vectors;  // of all products
  bool along_k;

  PRNN_HD int lanes() const { return product_vectors * kWidth; }
  // Of vector v.
  PRNN_HD std::int64_t first_of(int v) const { return first + v * kWidth; }
  PRNN_HD int count_of(const Shape& shape, int v) const {
    const std::int64_t left = shape.hidden - first_of(v);
    return left < kWidth ? (int)left : kWidth;
  }
  // Whether the products share vectors, and a vector of units must not write beyond its own.
  PRNN_HD bool share_vectors() const { return product_stride < kWidth; }
};

inline Units units_of(const Shape& shape, const Blocking& blocking, int phase, int products,
                      std::int64_t panel) {
  const LeftOver left_over = blocking.left_over[phase];
  const std::int64_t whole = ceil_div(shape.hidden - left_over.units, kWidth);
  if (left_over.units > 0 && panel == blocking.panels[phase] - 1)
    return {whole * kWidth, 1, left_over.units, (int)ceil_div(products * left_over.units, kWidth),
            left_over.along_k};
  const std::int64_t panels = blocking.panels[phase] - (left_over.units > 0 ? 1 : 0);
  const std::int64_t first = whole * panel / panels;
  const int vectors = (int)(whole * (panel + 1) / panels - first);
  return {first * kWidth, vectors, vectors * kWidth, products * vectors, false};
}

// rows[n][i] becomes rows[i][n], by exchanging ever larger squares.
template <int kSquare = 1>
PRNN_HD void transpose(UintVector (&rows)[kWidth]) {
  if constexpr (kSquare < kWidth) {
    const auto upper = [](int i) { return i & kSquare ? kWidth + i - kSquare : i; };
    const auto lower = [](int i) { return i & kSquare ? kWidth + i : i + kSquare; };
#pragma GCC unroll 16
    for (int n = 0; n < kWidth; ++n) {
      if (n & kSquare) continue;
      const UintVector first = rows[n], second = rows[n + kSquare];
      rows[n] = shuffle(first, second, upper);
      rows[n + kSquare] = shuffle(first, second, lower);
    }
    transpose<2 * kSquare>(rows);
  }
}

// All lines, of weights that lie unit beside unit. Not inlined, and the next neither: one of them
// serves all passes.
template <class T>
[[gnu::noinline]] void pack_rows(const Shape& shape, WeightRows<T> weights, std::int64_t depth,
                                 int products, const Units& units, float* first_line) {
  using Format = Packed<T>;
  // A vector of a line: where in a row its weights are, and how many.
  struct Place {
    std::int64_t from;
    int lane, count;
  } places[kMaxVectors];
  int vectors = 0;
  bool are_whole = !units.share_vectors();
  for (int product = 0; product < products; ++product)
    for (int v = 0; v < units.vectors; ++v) {
      const Place place{product * shape.hidden + units.first_of(v),
                        product * units.product_stride + v * kWidth, units.count_of(shape, v)};
      are_whole = are_whole && place.count == kWidth;
      places[vectors++] = place;
    }
  const int lanes = units.lanes();
  const auto pack = [&](auto whole) __attribute__((always_inline)) {
    float* line = first_line;
    for (std::int64_t k = 0; k < depth; k += Format::kPerLine, line += lanes) {
      const T* const row = weights.first + k * weights.stride;
      for (int n = 0; n < vectors; ++n) {
        const int count = whole ? kWidth : places[n].count;
        const int stored = whole || !units.share_vectors() ? kWidth : count;
        const UintVector words =
            Format::beside(row + places[n].from, weights.stride, k + 1 < depth, count);
        Format::store(line, lanes, places[n].lane, stored, words);
      }
    }
  };
  are_whole ? pack(std::true_type{}) : pack(std::false_type{});
}

// All lines, a vector of them at a time, of weights that lie k beside k.
template <class T>
[[gnu::noinline]] void pack_columns(const Shape& shape, WeightColumns<T> weights,
                                    std::int64_t depth, const Units& units, float* first_line) {
  using Format = Packed<T>;
  constexpr int kMost = Format::kPerLine * kWidth;
  const int lanes = units.lanes();
  for (int v = 0; v < units.vectors; ++v) {
    const int unit_count = units.count_of(shape, v);
    const T* const from = weights.first + units.first_of(v) * weights.stride;
    for (std::int64_t k = 0; k < depth; k += kMost) {
      const int count = depth - k < kMost ? (int)(depth - k) : kMost;
      UintVector words[kWidth];
#pragma GCC unroll 16
      for (int u = 0; u < kWidth; ++u)
        words[u] =
            u < unit_count ? Format::along(from + u * weights.stride + k, count) : UintVector{};
      transpose(words);
      float* line = first_line + k / Format::kPerLine * lanes;
      for (int n = 0; n < ceil_div(count, Format::kPerLine); ++n, line += lanes)
        Format::store(line, lanes, v * kWidth, kWidth, words[n]);
    }
  }
}

// All weights of a panel along k.
template <class Weights>
void pack_along_k(const Shape& shape, const Weights& weights, std::int64_t depth, int products,
                  const Units& units, float* panel) {
  for (int product = 0; product < products; ++product)
    for (int n = 0; n < units.product_stride; ++n) {
      const auto of_sum = column(shape, weights, product, units.first + n);
      for (std::int64_t k = 0; k < depth; k += kWidth, panel += kWidth)
        Io<float>{kWidth}.store(panel, of_sum.load(k, depth - k < kWidth ? depth - k : kWidth));
    }
}

// Packs the weights of some units, in the order product() reads them, or multiply_along_k(). Lanes
// of no unit, and a second k past the end of the depth, get zeros.
template <class Pass>
void pack_panel(const Pass& pass, std::int64_t group, int phase, const Units& units, float* panel) {
  using T = typename Pass::Value;
  const std::int64_t depth = pass.depth(phase);
  const int products = pass.products(phase), lanes = units.lanes();
  const bool clears_all = units.share_vectors() && !units.along_k;
  __builtin_memset(panel, 0, sizeof(float) * lanes * (clears_all ? lines<T>(depth) : 1));
  for (int product = 0; product < products; ++product)
    for (int u = 0; u < units.vectors * kWidth && units.first + u < pass.shape.hidden; ++u)
      panel[product * units.product_stride + u] =
          to_float(pass.bias(group, phase, units.first + u, product));
  panel += lanes;
  const auto weights = [&] {
    if constexpr (requires { pass.weight_rows(group, phase); })
      return pass.weight_rows(group, phase);
    else
      return pass.weight_columns(group, phase);
  }();
  if (units.along_k)
    pack_along_k(pass.shape, weights, depth, products, units, panel);
  else if constexpr (requires { pass.weight_rows(group, phase); })
    pack_rows(pass.shape, weights, depth, products, units, panel);
  else
    pack_columns(pass.shape, weights, depth, units, panel);
}

}  // namespace prnn::PRNN_ISA
