// Packing: the weights of panels, in the order product() reads them, or multiply_along_k(). Lanes
// of no unit, and a second k past the end of the depth, get zeros.
#pragma once
#include <type_traits>

#include "cpu/panel.h"

namespace prnn::PRNN_ISA {

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
  int product, count, stored, lane;
  std::int64_t unit, column;  // the first; of the matrix
};

// The places of a strip, and where its lines begin.
struct StripPlaces {
  float* line;
  int lanes, count;
  bool are_whole;  // vectors
  Place all[2 * kMaxVectors];
};

// Of products that share vectors, some lie in two strips.
inline StripPlaces places_of(std::int64_t of_phase, const Units& units, int products,
                             const Strip& strip, float* line) {
  StripPlaces out;
  out.line = line;
  out.lanes = strip.lanes();
  out.count = 0;
  out.are_whole = true;
  const int begin = strip.first_lane(), end = begin + out.lanes;
  for (int product = 0; product < products; ++product)
    for (int v = 0; v < units.vectors; ++v) {
      const int first = product * units.product_stride + v * kWidth;
      const int from = (int)max(first, begin);
      const int to = (int)min(first + units.count_of(of_phase, v), end);
      if (from >= to) continue;
      const std::int64_t unit = units.first_of(v) + from - first;
      out.all[out.count++] = {product,      to - from, units.share_vectors() ? to - from : kWidth,
                              from - begin, unit,      product * of_phase + unit};
      out.are_whole = out.are_whole && to - from == kWidth;
    }
  return out;
}

// Writes what the sums start from, a strip's first line.
template <class Pass>
void pack_starts(const Pass& pass, std::int64_t group, int phase, StripPlaces& strip) {
  for (int n = 0; n < strip.count; ++n) {
    const Place& place = strip.all[n];
    for (int u = 0; u < place.stored; ++u)
      strip.line[place.lane + u] =
          u < place.count ? to_float(pass.bias(group, phase, place.unit + u, place.product)) : 0.0f;
  }
  strip.line += strip.lanes;
}

// All other lines, of weights that lie unit beside unit: some of each strip in turn, while those of
// the next are asked for. Not inlined, and the next neither: one of them serves all passes.
template <class T>
[[gnu::noinline]] void pack_rows(WeightRows<T> weights, std::int64_t depth, StripPlaces* strips,
                                 int count) {
  using Format = Packed<T>;
  constexpr std::int64_t kAtOnce = 8;
  const auto pack = [&](auto whole, StripPlaces& strip, const T* next,
                        std::int64_t first) __attribute__((always_inline)) {
    float* line = strip.line;
    const std::int64_t end = min(depth, first + kAtOnce);
    for (std::int64_t k = first; k < end; k += Format::kPerLine, line += strip.lanes) {
      const T* const row = weights.first + k * weights.stride;
      for (int n = 0; n < Format::kPerLine; ++n)
        __builtin_prefetch(next + (k + n) * weights.stride);
      for (int n = 0; n < strip.count; ++n) {
        const Place& place = strip.all[n];
        const UintVector words = Format::beside(row + place.column, weights.stride, k + 1 < depth,
                                                whole ? kWidth : place.count);
        Format::store(line, strip.lanes, whole ? n * kWidth : place.lane,
                      whole ? kWidth : place.stored, words);
      }
    }
    strip.line = line;
  };
  for (std::int64_t first = 0; first < depth; first += kAtOnce)
    for (int s = 0; s < count; ++s) {
      const T* const next = weights.first + strips[s + 1 < count ? s + 1 : s].all[0].column;
      strips[s].are_whole ? pack(std::true_type{}, strips[s], next, first)
                          : pack(std::false_type{}, strips[s], next, first);
    }
}

// The same, a vector of lines at a time, of weights that lie k beside k.
template <class T>
[[gnu::noinline]] void pack_columns(std::int64_t of_phase, WeightColumns<T> weights,
                                    std::int64_t depth, const Units& units, float* panel) {
  using Format = Packed<T>;
  constexpr int kMost = Format::kPerLine * kWidth;
  for (int v = 0; v < units.vectors; ++v) {
    const Strip strip = units.strip(v, lines<T>(depth));
    const int unit_count = units.count_of(of_phase, v), lane = v * kWidth - strip.first_lane();
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
void pack_along_k(std::int64_t of_phase, const Weights& weights, std::int64_t depth, int products,
                  const Units& units, float* panel) {
  for (int product = 0; product < products; ++product)
    for (int n = 0; n < units.product_stride; ++n) {
      const auto of_sum = column(of_phase, weights, product, units.first + n);
      for (std::int64_t k = 0; k < depth; k += kWidth, panel += kWidth)
        Io<float>{kWidth}.store(panel, of_sum.load(k, depth - k < kWidth ? depth - k : kWidth));
    }
}

// Packs some panels of a group's phase, kPackedTogether of them at most.
template <class Pass>
void pack_panels(const Pass& pass, std::int64_t group, int phase, const Panel* panels, int count) {
  using T = typename Pass::Value;
  constexpr bool kAreRows = requires { pass.weight_rows(group, phase); };
  const std::int64_t depth = pass.depth(phase);
  const int products = pass.products(phase);
  const auto weights = [&] {
    if constexpr (kAreRows)
      return pass.weight_rows(group, phase);
    else
      return pass.weight_columns(group, phase);
  }();
  StripPlaces strips[kPackedTogether * kMaxVectors];
  int strip_count = 0;
  for (int n = 0; n < count; ++n) {
    const auto& [at, units] = panels[n];
    const std::int64_t line_count = units.along_k ? 1 : lines<T>(depth);
    if (units.share_vectors())  // no line fills its last vector
      __builtin_memset(at, 0, sizeof(float) * line_count * units.lanes());
    const int first_strip = strip_count;
    for (int v = 0; v < units.product_vectors; v += units.at_once) {
      const Strip strip = units.strip(v, line_count);
      StripPlaces& places = strips[strip_count++];
      places = places_of(pass.units(phase), units, products, strip, at + strip.first_word);
      pack_starts(pass, group, phase, places);
    }
    if (units.along_k) {
      pack_along_k(pass.units(phase), weights, depth, products, units, at + units.lanes());
      strip_count = first_strip;
    } else if constexpr (!kAreRows) {
      pack_columns(pass.units(phase), weights, depth, units, at);
    }
  }
  if constexpr (kAreRows) pack_rows(weights, depth, strips, strip_count);
}

}  // namespace prnn::PRNN_ISA
