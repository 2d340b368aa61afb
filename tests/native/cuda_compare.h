// Results of the CUDA engine against those of a naive run of the same pass, and of another
// schedule.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/number.h"

namespace prnn {

// Engine and naive run round the same numbers to the same formats, but of sums that were added in
// another order, and in float: seldom, one rounds to its neighbour, and that shows in the next
// steps. Where a derivative jumps (ReLU), both look at the same y. Seen at most, over all cases:
//
//            worst   mean
//   bf16      0.45  0.0033   one rounding is at most 1
//   f16       0.64  0.017
//   tf32      0.19  0.035    float where it is stored: only what is multiplied is rounded so
//   f32        2.9  2.2      nothing but sums; 3.3e-7 of a float near 1
struct Bound {
  double spacing;  // of numbers from 1 to 2
  double worst;    // in spacings of the array's largest number
  double mean;     // in spacings of the number itself, or of a 16th of the largest
};
constexpr Bound bound_of(Number number) {
  switch (number) {
    case Number::kBfloat16:
      return {0x1p-7, 1, 0.01};
    case Number::kFloat16:
      return {0x1p-10, 1, 0.03};
    case Number::kTf32:
      return {0x1p-10, 0.4, 0.1};
    case Number::kFloat32:
      return {0x1p-23, 8, 6};
  }
  return {};
}

// The bounds are those of few steps of small layers. Roundings of many steps add up, and in an
// array of a few numbers one of them shows in the average: seen in the emulator after 200 steps in
// f16, worst 0.86, mean 0.32. A GPU sums in an order of its own.
enum class Scale { kSmall, kLarge };

// How two arrays differ; empty where they do not, but for roundings. Those of one of a stack's
// layers show in the others, which multiply twice as many values.
template <Number kNumber, class T>
std::string difference(const std::vector<T>& got, const std::vector<T>& want,
                       Scale scale = Scale::kSmall, int layers = 1) {
  double largest = 0;
  for (const T& v : want)
    if (const double w = to_float(v); !std::isnan(w)) largest = std::max(largest, std::fabs(w));
  Bound bound = bound_of(kNumber);
  if (scale == Scale::kLarge) bound.worst = bound.mean = 4 * bound.worst;
  if (layers > 1) bound.mean *= 2 * layers;
  double worst = 0, sum = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double g = to_float(got[i]), w = to_float(want[i]);
    if (std::isnan(g) != std::isnan(w))
      return std::string("has ") + (std::isnan(g) ? "a NaN" : "no NaN") + " at " +
             std::to_string(i) + " of " + std::to_string(want.size());
    if (std::isnan(w) || g == w) continue;
    const double error = std::fabs(g - w) / bound.spacing;
    worst = std::max(worst, error / largest);
    sum += error / std::max(std::fabs(w), largest / 16);
  }
  const double mean = sum / static_cast<double>(std::max<std::size_t>(want.size(), 1));
  if (worst <= bound.worst && mean <= bound.mean) return "";
  char text[120];
  std::snprintf(text, sizeof text, "differs by up to %.3g, on average %.3g roundings", worst, mean);
  return text;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// What is wrong with results; empty if nothing is. `same`: of another schedule.
template <Number kNumber, class T>
std::string wrong(const char* what, const std::vector<std::vector<T>>& got,
                  const std::vector<std::vector<T>>& want, const std::vector<std::vector<T>>& same,
                  Scale scale = Scale::kSmall, int layers = 1) {
  for (std::size_t r = 0; r < got.size(); ++r) {
    const std::string result = what + std::to_string(r) + " ";
    if (const std::string d = difference<kNumber>(got[r], want[r], scale, layers); !d.empty())
      return result + d;
    if (!same_bits(got[r], same[r])) return result + "depends on the schedule";
  }
  return "";
}

}  // namespace prnn
