// How the weights of a panel's units lie in memory, by the type they come in.
//   kPerLine           how many k a line of words holds
//   place(k, lane...)  where a weight goes in its line
//   value(weight)      what is stored there
//   widened            a vector of a line's weights, in float
#pragma once
#include "core/passes.h"
#include "cpu/half.h"

namespace prnn::PRNN_ISA {

template <class T>
struct Packed;

template <>
struct Packed<float> {
  static constexpr int kPerLine = 1;
  PRNN_HD static std::int64_t place(int, std::int64_t lane, std::int64_t) { return lane; }
  template <class T>
  PRNN_HD static float value(T weight) {
    return to_float(weight);
  }
  template <int kPart, int kVectors>
  PRNN_HD static FloatVector widened(const float* line, int v) {
    FloatVector weights;
    __builtin_memcpy(&weights, line + v * kWidth, sizeof weights);
    return weights;
  }
};

// The two in a word, which is what AVX512-BF16 multiplies (cpu/dot_product.cc), and as floats they
// are its halves.
template <>
struct Packed<Bfloat16> {
  static constexpr int kPerLine = 2;
  PRNN_HD static std::int64_t place(int part, std::int64_t lane, std::int64_t) {
    return 2 * lane + part;
  }
  PRNN_HD static std::uint16_t value(Bfloat16 weight) { return weight.bits; }
  template <int kPart, int kVectors>
  PRNN_HD static FloatVector widened(const float* line, int v) {
    UintVector words;
    __builtin_memcpy(&words, line + v * kWidth, sizeof words);
    return (FloatVector)(kPart == 0 ? words << 16 : words & 0xffff0000);
  }
};

#if defined(__AVX512F__) || defined(__F16C__)
// One after the other: an instruction widens what lies side by side.
template <>
struct Packed<Float16> {
  static constexpr int kPerLine = 2;
  PRNN_HD static std::int64_t place(int part, std::int64_t lane, std::int64_t lanes) {
    return part * lanes + lane;
  }
  PRNN_HD static std::uint16_t value(Float16 weight) { return weight.bits; }
  template <int kPart, int kVectors>
  PRNN_HD static FloatVector widened(const float* line, int v) {
    HalfVector weights;
    __builtin_memcpy(&weights, (const char*)line + 2 * (kPart * kVectors + v) * kWidth,
                     sizeof weights);
    return widen<Float16>(weights).v;
  }
};
#else
// As floats: without such an instruction, widening costs more than reading twice as much.
template <>
struct Packed<Float16> : Packed<float> {};
#endif

PRNN_HD std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Lines of a product that runs over `depth` weights, that of the bias included.
template <class T>
PRNN_HD std::int64_t lines(std::int64_t depth) {
  return 1 + ceil_div(depth, Packed<T>::kPerLine);
}

// Packs the weights of `vectors` vectors of units, in the order product() reads them. Units past
// the end of the layer, and a second k past the end of the depth, get zeros.
template <class Pass>
void pack_panel(const Pass& pass, std::int64_t group, int phase, std::int64_t first_unit,
                int vectors, float* panel) {
  using T = typename Pass::Value;
  using Format = Packed<T>;
  using Value = decltype(Format::value(T{}));
  const std::int64_t lanes = (std::int64_t)vectors * kWidth, depth = pass.depth(phase);
  const std::int64_t left = pass.shape.hidden - first_unit, units = left < lanes ? left : lanes;
  const int products = pass.products(phase);
  const std::int64_t line_words = products * lanes;
  for (int product = 0; product < products; ++product, panel += lanes)
    for (std::int64_t u = 0; u < lanes; ++u)
      panel[u] = u < units ? to_float(pass.bias(group, phase, first_unit + u, product)) : 0.0f;
  // Sixteen k at a time: where the matrix is read along k (backward), a cache line of it is
  // used whole before the next.
  for (std::int64_t k0 = 0; k0 < depth; k0 += 16, panel += 16 / Format::kPerLine * line_words) {
    const std::int64_t k1 =
        ceil_div(depth < k0 + 16 ? depth : k0 + 16, Format::kPerLine) * Format::kPerLine;
    for (int product = 0; product < products; ++product)
      for (std::int64_t k = k0; k < k1; ++k) {
        Value* line = (Value*)(panel + (k - k0) / Format::kPerLine * line_words);
        const int part = (int)(k % Format::kPerLine);
        const std::int64_t first = product * lanes, filled = k < depth ? units : 0;
        for (std::int64_t u = 0; u < filled; ++u)
          line[Format::place(part, first + u, line_words)] =
              Format::value(pass.weight(group, phase, first_unit + u, product, k));
        for (std::int64_t u = filled; u < lanes; ++u)
          line[Format::place(part, first + u, line_words)] = Value{};
      }
  }
}

}  // namespace prnn::PRNN_ISA
