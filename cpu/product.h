// The multiply-add: rows of published values times a panel of packed weights.
//
// A panel holds the weights of some units, `vectors` SIMD vectors wide, in the order they are
// read: [1 + depth][vectors][kWidth], the first line being what the sums start from (the bias).
// Each sum is taken in runs of kRun, in the order of k, whatever the blocking: results do not
// depend on how the work is cut. The runs keep the rounding error of long sums down: it grows
// with depth^(3/4) instead of depth.
#pragma once
#include "cpu/simd.h"

namespace prnn::PRNN_ISA {

inline constexpr int kMaxRows = 8, kMaxVectors = 16, kRun = 64;

// out[row][vector][kWidth] = panel[0] + Σ_k rows[row][k] panel[1 + k]
template <int kRows, int kVectors>
void product(const float* panel, const float* const* rows, std::int64_t depth, float* out) {
  FloatVector sum[kRows][kVectors];
  const float* row[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    row[r] = rows[r];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v)
      __builtin_memcpy(&sum[r][v], panel + v * kWidth, sizeof(FloatVector));
  }
  for (std::int64_t first = 0; first < depth; first += kRun) {
    const std::int64_t end = depth - first < kRun ? depth : first + kRun;
    FloatVector run[kRows][kVectors] = {};
    for (std::int64_t k = first; k < end; ++k) {
      panel += kVectors * kWidth;
      FloatVector weight[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v)
        __builtin_memcpy(&weight[v], panel + v * kWidth, sizeof(FloatVector));
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const FloatVector h = row[r][k] - FloatVector{};
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) run[r][v] += h * weight[v];
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] += run[r][v];
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v)
      __builtin_memcpy(out + (r * kVectors + v) * kWidth, &sum[r][v], sizeof(FloatVector));
}

using Product = void (*)(const float*, const float* const*, std::int64_t, float*);

// How many rows a block of so many vectors may have: sums, one line of weights and a broadcast
// value stay in registers.
constexpr int max_rows(int vectors) {
  const int rows = (kRegisters - 2 - vectors) / vectors;
  return rows < 1 ? 1 : rows > kMaxRows ? kMaxRows : rows;
}

template <int kRows, int kVectors>
constexpr Product product_or_null() {
  if constexpr (kRows <= max_rows(kVectors)) return product<kRows, kVectors>;
  return nullptr;
}

struct ProductTable {
  Product at[kMaxRows + 1][kMaxVectors + 1];
};
template <int kRows, int... kVectors>
constexpr void fill_row(ProductTable& table) {
  ((table.at[kRows][kVectors] = product_or_null<kRows, kVectors>()), ...);
}
template <int... kRows>
constexpr ProductTable make_products() {
  ProductTable table{};
  (fill_row<kRows, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16>(table), ...);
  return table;
}
inline constexpr ProductTable kProducts = make_products<1, 2, 3, 4, 5, 6, 7, 8>();

}  // namespace prnn::PRNN_ISA
