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

// Some products of a panel's units that lie side by side in each line of a strip.
struct Place {
  int product, count, strip, lane;
  std::int64_t unit;  // the first
};

// Where the places of a panel lie.
struct Places {
  Place all[2 * kMaxVectors];
  int count = 0, strips = 0;
  Strip strip[2] = {{0, 1, 0}, {0, 1, 0}};
  int end[2];  // of each strip's places

  // Of products that share vectors, some lie in two strips.
  PRNN_HD Places(const Shape& shape, const Units& units, int products, std::int64_t lines) {
    for (int product = 0; product < products; ++product)
      for (int v = 0; v < units.vectors; ++v) {
        const int first = product * units.product_stride + v * kWidth;
        const int last = first + units.count_of(shape, v);
        for (int lane = first; lane < last;) {
          const Strip of_lane(lane / kWidth, units.product_vectors, lines);
          if (strips == 0 || of_lane.first_vector != strip[strips - 1].first_vector)
            strip[strips++] = of_lane;
          const int next = (int)min(last, of_lane.first_lane() + of_lane.lanes());
          all[count++] = {product, next - lane, strips - 1, lane - of_lane.first_lane(),
                          units.first_of(v) + lane - first};
          end[strips - 1] = count;
          lane = next;
        }
      }
  }
};

// All lines but the first, of weights that lie unit beside unit. Not inlined, and the next neither:
// one of them serves all passes.
template <class T>
[[gnu::noinline]] void pack_rows(const Shape& shape, WeightRows<T> weights, std::int64_t depth,
                                 const Units& units, const Places& places, float* panel) {
  using Format = Packed<T>;
  std::int64_t from[2 * kMaxVectors];
  bool are_whole = !units.share_vectors();
  for (int n = 0; n < places.count; ++n) {
    from[n] = places.all[n].product * shape.hidden + places.all[n].unit;
    are_whole = are_whole && places.all[n].count == kWidth;
  }
  // Some lines of a strip, then those of the other, which are asked for meanwhile: pages of the
  // rows are looked up once.
  constexpr std::int64_t kAtOnce = 32;
  const auto pack = [&](auto whole) __attribute__((always_inline)) {
    for (std::int64_t first = 0; first < depth; first += kAtOnce)
      for (int s = 0, begin = 0; s < places.strips; begin = places.end[s++]) {
        const int end = places.end[s], lanes = places.strip[s].lanes();
        float* line = panel + places.strip[s].first_word + (1 + first / Format::kPerLine) * lanes;
        for (std::int64_t k = first; k < min(depth, first + kAtOnce); k += Format::kPerLine) {
          const T* const row = weights.first + k * weights.stride;
          if (end < places.count) __builtin_prefetch(row + from[end]);
          for (int n = begin; n < end; ++n) {
            const int count = whole ? kWidth : places.all[n].count;
            const int stored = whole || !units.share_vectors() ? kWidth : count;
            const int lane = whole ? (n - begin) * kWidth : places.all[n].lane;
            const UintVector words =
                Format::beside(row + from[n], weights.stride, k + 1 < depth, count);
            Format::store(line, lanes, lane, stored, words);
          }
          line += lanes;
        }
      }
  };
  are_whole ? pack(std::true_type{}) : pack(std::false_type{});
}

// The same, a vector of lines at a time, of weights that lie k beside k.
template <class T>
[[gnu::noinline]] void pack_columns(const Shape& shape, WeightColumns<T> weights,
                                    std::int64_t depth, const Units& units, float* panel) {
  using Format = Packed<T>;
  constexpr int kMost = Format::kPerLine * kWidth;
  for (int v = 0; v < units.vectors; ++v) {
    const Strip strip(v, units.product_vectors, lines<T>(depth));
    const int unit_count = units.count_of(shape, v), lane = v * kWidth - strip.first_lane();
    float* line = panel + strip.first_word + strip.lanes();
    const T* const from = weights.first + units.first_of(v) * weights.stride;
    for (std::int64_t k = 0; k < depth; k += kMost) {
      const int count = depth - k < kMost ? (int)(depth - k) : kMost;
      UintVector words[kWidth];
#pragma GCC unroll 16
      for (int u = 0; u < kWidth; ++u)
        words[u] =
            u < unit_count ? Format::along(from + u * weights.stride + k, count) : UintVector{};
      transpose(words);
      for (int n = 0; n < ceil_div(count, Format::kPerLine); ++n, line += strip.lanes())
        Format::store(line, strip.lanes(), lane, kWidth, words[n]);
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
  const int products = pass.products(phase);
  const std::int64_t of_panel = units.along_k ? 1 : lines<T>(depth);
  const Places places(pass.shape, units, products, of_panel);
  if (units.share_vectors())  // no line fills its last vector
    __builtin_memset(panel, 0, sizeof(float) * of_panel * units.lanes());
  for (int n = 0; n < places.count; ++n) {
    const Place& place = places.all[n];
    float* const starts = panel + places.strip[place.strip].first_word + place.lane;
    for (int u = 0; u < place.count; ++u)
      starts[u] = to_float(pass.bias(group, phase, place.unit + u, place.product));
    if (!units.share_vectors())
      for (int u = place.count; u < kWidth; ++u) starts[u] = 0.0f;
  }
  const auto weights = [&] {
    if constexpr (requires { pass.weight_rows(group, phase); })
      return pass.weight_rows(group, phase);
    else
      return pass.weight_columns(group, phase);
  }();
  if (units.along_k)
    pack_along_k(pass.shape, weights, depth, products, units, panel + units.lanes());
  else if constexpr (requires { pass.weight_rows(group, phase); })
    pack_rows(pass.shape, weights, depth, units, places, panel);
  else
    pack_columns(pass.shape, weights, depth, units, panel);
}

}  // namespace prnn::PRNN_ISA
