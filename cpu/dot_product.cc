// Products of bfloat16 weights by the instruction for them, of AVX512-BF16 or Arm's FEAT_BF16: for
// processors that have it, the rest of the engine being avx512's or neon's. Compiled with PRNN_ISA
// their names and `_bf16`.
#include "cpu/io.h"
#include "cpu/matrix_block.h"
#include "cpu/product.h"

namespace prnn::PRNN_ISA {
namespace {

#if defined(__aarch64__)
PRNN_HD FloatVector dot(FloatVector sum, UintVector w, UintVector h) {
  return (FloatVector)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)h, (bfloat16x8_t)w);
}
// Of a row, two vectors of values, rounded.
PRNN_HD auto rounded(FloatVector low, FloatVector high) {
  return vcvtq_high_bf16_f32(vcvtq_low_bf16_f32((float32x4_t)low), (float32x4_t)high);
}
#else
PRNN_HD FloatVector dot(FloatVector sum, UintVector w, UintVector h) {
  return (FloatVector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)h, (__m512bh)w);
}
PRNN_HD auto rounded(FloatVector low, FloatVector high) {
  return _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}
#endif

// Takes the two weights of a word at once.
struct Dot : Biases {
  static constexpr int kPerSlice = Packed<Bfloat16>::kPerSlice;

  template <int kVectors, class Rows, int kRows>
  PRNN_HD static void add_slice(const float* slice, const Rows& rows, std::int64_t k, std::int64_t,
                                FloatVector (&sum)[kRows][kVectors]) {
    const auto weight = [&](int v) {
      UintVector words;
      __builtin_memcpy(&words, slice + v * kWidth, sizeof words);
      return words;
    };
    const auto row = [&](int r) { return rows.pair(r, k) - UintVector{}; };
    const auto add = [](FloatVector& sum, UintVector w, UintVector h) { sum = dot(sum, w, h); };
    add_products(weight, row, add, sum);
  }
};

// With rows of float, rounded to bfloat16, which they already are.
struct OfFloats : Dot {
  template <int kRows>
  struct Rows {
    std::uint32_t pairs[kRows][kAccumulationBlock / 2];  // past the end of a row: zeros
    PRNN_HD Rows(const float* const* rows, std::int64_t first, std::int64_t count, std::int64_t) {
      for (std::int64_t k = 0; k < count; k += 2 * kWidth)
        for (int r = 0; r < kRows; ++r) {
          const auto values = [&](std::int64_t from) __attribute__((always_inline)) {
            const std::int64_t left = count - from;
            const Io<float> io{left < 0 ? 0 : left < kWidth ? (int)left : kWidth};
            return io.load(rows[r] + first + from).v;
          };
          const auto both = rounded(values(k), values(k + kWidth));
          __builtin_memcpy(&pairs[r][k / 2], &both, sizeof both);
        }
    }
    PRNN_HD std::uint32_t pair(int r, std::int64_t k) const { return pairs[r][k / 2]; }
  };
};

// With rows of bfloat16, of an even number.
struct OfPairs : Dot {
  static constexpr bool kTakesPairs = true;

  template <int kRows>
  struct Rows {
    const float* at[kRows];
    PRNN_HD Rows(const float* const* rows, std::int64_t first, std::int64_t, std::int64_t) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) at[r] = rows[r] + first / 2;
    }
    PRNN_HD std::uint32_t pair(int r, std::int64_t k) const {
      std::uint32_t both;
      __builtin_memcpy(&both, at[r] + k / 2, sizeof both);
      return both;
    }
  };
};

constexpr Products make_dot_products() {
  Products out = kProducts<OfFloats>;
  out.are_of_bfloat16 = true;
  return out;
}

}  // namespace

extern const Products kDotProducts;
const Products kDotProducts = make_dot_products();

extern const MatrixFunctions kDotMatrices;
const MatrixFunctions kDotMatrices{transpose_rows<Bfloat16>, multiply_block<Bfloat16, OfPairs>};

}  // namespace prnn::PRNN_ISA
