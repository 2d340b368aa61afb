// How the weights of a panel's units lie in memory, by the type they come in.
//   kPerLine   how many k a line of words holds
//   beside     a line's words, of weights that lie unit beside unit, a k in each row
//   along      the words of one unit for a vector of lines, of weights that lie k beside k
//   store      puts some of a vector's words in their place in a line
//   widened    a vector of a line's weights, in float
#pragma once
#include "core/passes.h"
#include "cpu/io.h"

namespace prnn::PRNN_ISA {

template <class T>
struct Packed;

// Words that lie in their line as they are.
struct PackedWords {
  PRNN_HD static void store(float* line, int, int lane, int count, UintVector words) {
    Io<float>{count}.store(line + lane, (FloatVector)words);
  }
};

template <>
struct Packed<float> : PackedWords {
  static constexpr int kPerLine = 1;
  template <class T>
  PRNN_HD static UintVector beside(const T* weights, std::int64_t, bool, int units) {
    return (UintVector)Io<T>{units}.load(weights).v;
  }
  template <class T>
  PRNN_HD static UintVector along(const T* weights, int count) {
    return (UintVector)Io<T>{count}.load(weights).v;
  }
  template <int kPart, int kVectors>
  PRNN_HD static FloatVector widened(const float* line, int v) {
    FloatVector weights;
    __builtin_memcpy(&weights, line + v * kWidth, sizeof weights);
    return weights;
  }
};

// Two of a 16-bit format in a word, the first in the lower half.
struct PackedPairs {
  static constexpr int kPerLine = 2;
  template <class T>
  PRNN_HD static UintVector beside(const T* weights, std::int64_t stride, bool has_second,
                                   int units) {
    const UintVector first = __builtin_convertvector(halves(weights, units), UintVector);
    if (!has_second) return first;
    return first | __builtin_convertvector(halves(weights + stride, units), UintVector) << 16;
  }
  template <class T>
  PRNN_HD static UintVector along(const T* weights, int count) {
    UintVector words{};
    if (count == 2 * kWidth)
      __builtin_memcpy(&words, weights, sizeof words);
    else
      __builtin_memcpy(&words, weights, sizeof(T) * count);
    return words;
  }

 private:
  template <class T>
  PRNN_HD static HalfVector halves(const T* p, int count) {
    if (count < kWidth) return load_some(&p->bits, count);
    HalfVector v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
};

// The two in a word, which is what AVX512-BF16 multiplies (cpu/dot_product.cc), and as floats they
// are its halves.
template <>
struct Packed<Bfloat16> : PackedPairs, PackedWords {
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
struct Packed<Float16> : PackedPairs {
  PRNN_HD static void store(float* line, int lanes, int lane, int count, UintVector words) {
    std::uint16_t* const at = (std::uint16_t*)line + lane;
    store_halves(at, count, __builtin_convertvector(words & 0xffff, HalfVector));
    store_halves(at + lanes, count, __builtin_convertvector(words >> 16, HalfVector));
  }
  template <int kPart, int kVectors>
  PRNN_HD static FloatVector widened(const float* line, int v) {
    HalfVector weights;
    __builtin_memcpy(&weights, (const char*)line + 2 * (kPart * kVectors + v) * kWidth,
                     sizeof weights);
    return widen<Float16>(weights).v;
  }

 private:
  PRNN_HD static void store_halves(std::uint16_t* at, int count, HalfVector halves) {
    if (count < kWidth) return store_some(at, count, halves);
    __builtin_memcpy(at, &halves, sizeof halves);
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

// rows[n][i] becomes rows[i][n], by exchanging ever larger squares.
template <int kSquare = 1>
PRNN_HD void transpose(UintVector (&rows)[kWidth]) {
  if constexpr (kSquare < kWidth) {
    IntVector upper{}, lower{};  // lanes of the two rows, one after the other
    for (int i = 0; i < kWidth; ++i) {
      upper[i] = i & kSquare ? kWidth + i - kSquare : i;
      lower[i] = i & kSquare ? kWidth + i : i + kSquare;
    }
#pragma GCC unroll 16
    for (int n = 0; n < kWidth; ++n) {
      if (n & kSquare) continue;
      const UintVector first = rows[n], second = rows[n + kSquare];
      rows[n] = __builtin_shuffle(first, second, upper);
      rows[n + kSquare] = __builtin_shuffle(first, second, lower);
    }
    transpose<2 * kSquare>(rows);
  }
}

// The units of a panel, and how their products lie in its lines.
struct Units {
  std::int64_t first;
  int vectors;          // of units
  int product_stride;   // from a unit's product to its next
  int product_vectors;  // of all products

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

// All lines, of weights that lie unit beside unit. Not inlined, and the next neither: one of them
// serves all passes.
template <class T>
[[gnu::noinline]] void pack_rows(const Shape& shape, WeightRows<T> weights, std::int64_t depth,
                                 int products, const Units& units, float* line) {
  using Format = Packed<T>;
  const int lanes = units.lanes();
  for (std::int64_t k = 0; k < depth; k += Format::kPerLine, line += lanes)
    for (int product = 0; product < products; ++product)
      for (int v = 0; v < units.vectors; ++v) {
        const T* const from = weights.first + k * weights.stride + product * shape.hidden;
        const int count = units.count_of(shape, v);
        const UintVector words =
            Format::beside(from + units.first_of(v), weights.stride, k + 1 < depth, count);
        const int lane = product * units.product_stride + v * kWidth;
        Format::store(line, lanes, lane, units.share_vectors() ? count : kWidth, words);
      }
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

// Packs the weights of some units, in the order product() reads them. Lanes of no unit, and a
// second k past the end of the depth, get zeros.
template <class Pass>
void pack_panel(const Pass& pass, std::int64_t group, int phase, const Units& units, float* panel) {
  using T = typename Pass::Value;
  const std::int64_t depth = pass.depth(phase);
  const int products = pass.products(phase), lanes = units.lanes();
  __builtin_memset(panel, 0, sizeof(float) * lanes * (units.share_vectors() ? lines<T>(depth) : 1));
  for (int product = 0; product < products; ++product)
    for (int u = 0; u < units.vectors * kWidth && units.first + u < pass.shape.hidden; ++u)
      panel[product * units.product_stride + u] =
          to_float(pass.bias(group, phase, units.first + u, product));
  panel += lanes;
  if constexpr (requires { pass.weight_rows(group, phase); })
    pack_rows(pass.shape, pass.weight_rows(group, phase), depth, products, units, panel);
  else
    pack_columns(pass.shape, pass.weight_columns(group, phase), depth, units, panel);
}

}  // namespace prnn::PRNN_ISA
