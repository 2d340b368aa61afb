// Packing: the weights of panels, in the order product() reads them. Lanes of no unit, and a second
// k past the end of the depth, get zeros.
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

// A product of a vector of units, in each slice of a micropanel.
struct Place {
  int product, count, lane;   // units that there are
  std::int64_t unit, column;  // the first; of the matrix
};

// The places of a micropanel, and where its slices begin.
struct MicropanelPlaces {
  float* slice;
  int lanes, count;
  bool are_whole;  // vectors
  Place all[kMaxVectors];
};

inline MicropanelPlaces places_of(std::int64_t of_phase, const Units& units,
                                  const Micropanel& micropanel, float* slice) {
  MicropanelPlaces out;
  out.slice = slice;
  out.lanes = micropanel.lanes();
  out.count = micropanel.vectors;
  out.are_whole = true;
  for (int n = 0; n < micropanel.vectors; ++n) {
    const int vector = micropanel.first_vector + n, product = vector / units.vectors;
    const std::int64_t unit = units.first_of(vector % units.vectors);
    const int count = units.count_of(of_phase, vector % units.vectors);
    out.all[n] = {product, count, n * kWidth, unit, product * of_phase + unit};
    out.are_whole = out.are_whole && count == kWidth;
  }
  return out;
}

// Writes what the sums start from, a micropanel's first slice.
template <class Pass>
void pack_starts(const Pass& pass, std::int64_t group, int phase, MicropanelPlaces& micropanel) {
  for (int n = 0; n < micropanel.count; ++n) {
    const Place& place = micropanel.all[n];
    for (int u = 0; u < kWidth; ++u)
      micropanel.slice[place.lane + u] =
          u < place.count ? to_float(pass.bias(group, phase, place.unit + u, place.product)) : 0.0f;
  }
  micropanel.slice += micropanel.lanes;
}

// All other slices, of weights that lie unit beside unit: some of each micropanel in turn, while
// those of the next are prefetched. Not inlined, and the next neither: one of them serves all
// passes.
template <class T>
[[gnu::noinline]] void pack_rows(WeightRows<T> weights, std::int64_t depth,
                                 MicropanelPlaces* micropanels, int count) {
  using Format = Packed<T>;
  constexpr std::int64_t kAtOnce = 8;
  const auto pack = [&](auto whole, MicropanelPlaces& micropanel, const T* next,
                        std::int64_t first) __attribute__((always_inline)) {
    float* slice = micropanel.slice;
    const std::int64_t end = min(depth, first + kAtOnce);
    for (std::int64_t k = first; k < end; k += Format::kPerSlice, slice += micropanel.lanes) {
      const T* const row = weights.first + k * weights.stride;
      for (int n = 0; n < Format::kPerSlice; ++n)
        __builtin_prefetch(next + (k + n) * weights.stride);
      for (int n = 0; n < micropanel.count; ++n) {
        const Place& place = micropanel.all[n];
        const UintVector words = Format::beside(row + place.column, weights.stride, k + 1 < depth,
                                                whole ? kWidth : place.count);
        Format::store(slice, micropanel.lanes, n * kWidth, words);
      }
    }
    micropanel.slice = slice;
  };
  for (std::int64_t first = 0; first < depth; first += kAtOnce)
    for (int s = 0; s < count; ++s) {
      const T* const next = weights.first + micropanels[s + 1 < count ? s + 1 : s].all[0].column;
      micropanels[s].are_whole ? pack(std::true_type{}, micropanels[s], next, first)
                               : pack(std::false_type{}, micropanels[s], next, first);
    }
}

// The same, a vector of slices at a time, of weights that lie k beside k.
template <class T>
[[gnu::noinline]] void pack_columns(std::int64_t of_phase, WeightColumns<T> weights,
                                    std::int64_t depth, const Units& units, float* panel) {
  using Format = Packed<T>;
  constexpr int kMost = Format::kPerSlice * kWidth;
  for (int v = 0; v < units.vectors; ++v) {
    const Micropanel micropanel = units.micropanel(v, slices<T>(depth));
    const int unit_count = units.count_of(of_phase, v), lane = v * kWidth - micropanel.first_lane();
    float* slice = panel + micropanel.first_word + micropanel.lanes();
    const T* const from = weights.first + units.first_of(v) * weights.stride;
    for (std::int64_t k = 0; k < depth; k += kMost) {
      const int count = depth - k < kMost ? (int)(depth - k) : kMost;
      UintVector words[kWidth];
#pragma GCC unroll 16
      for (int u = 0; u < kWidth; ++u)
        words[u] =
            u < unit_count ? Format::along(from + u * weights.stride + k, count) : UintVector{};
      transpose(words);
      for (int n = 0; n < ceil_div(count, Format::kPerSlice); ++n, slice += micropanel.lanes())
        Format::store(slice, micropanel.lanes(), lane, words[n]);
    }
  }
}

// Packs some panels of a group's phase, kPackedTogether of them at most.
template <class Pass>
void pack_panels(const Pass& pass, std::int64_t group, int phase, const Panel* panels, int count) {
  using T = typename Pass::Value;
  constexpr bool kAreRows = requires { pass.weight_rows(group, phase); };
  const std::int64_t depth = pass.depth(phase);
  const auto weights = [&] {
    if constexpr (kAreRows)
      return pass.weight_rows(group, phase);
    else
      return pass.weight_columns(group, phase);
  }();
  MicropanelPlaces micropanels[kPackedTogether * kMaxVectors];
  int micropanel_count = 0;
  for (int n = 0; n < count; ++n) {
    const auto& [at, units] = panels[n];
    for (int v = 0; v < units.product_vectors; v += units.micropanel_vectors) {
      const Micropanel micropanel = units.micropanel(v, slices<T>(depth));
      MicropanelPlaces& places = micropanels[micropanel_count++];
      places = places_of(pass.units(phase), units, micropanel, at + micropanel.first_word);
      pack_starts(pass, group, phase, places);
    }
    if constexpr (!kAreRows) pack_columns(pass.units(phase), weights, depth, units, at);
  }
  if constexpr (kAreRows) pack_rows(weights, depth, micropanels, micropanel_count);
}

}  // namespace prnn::PRNN_ISA
